"""Failover: whether a group that continues on another cluster misses no records."""
