"""Comparison of two places by key."""
