"""Segments in their states, search by time in them, rules of roll and retention."""
