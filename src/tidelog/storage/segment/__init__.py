"""Segments of a log, searches by time in them, and the rules for rolls and retention."""
