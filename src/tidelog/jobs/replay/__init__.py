"""Replay of a topic's records in a time range."""
