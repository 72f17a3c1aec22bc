"""A commit log with a memory for time."""
