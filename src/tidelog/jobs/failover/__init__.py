"""Proof of a failover: whether a group that continues on another cluster misses no record."""
