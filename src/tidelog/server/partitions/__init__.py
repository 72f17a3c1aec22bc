"""Partitions behind the broker: appends, visibility, reads, topics."""
