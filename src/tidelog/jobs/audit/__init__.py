"""Comparison of two directories or clusters, key by key."""
