"""Replay of a time range."""
