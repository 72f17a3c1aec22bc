"""The replay of a range of time."""
