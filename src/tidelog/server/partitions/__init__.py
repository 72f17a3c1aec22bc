"""Partitions of the broker: appends, visibility, reads, topics."""
