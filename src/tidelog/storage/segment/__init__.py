"""Segments in their states, searches by time in them, and the rules of roll and retention."""
