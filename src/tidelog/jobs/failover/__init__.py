"""Failover: moves a consumer group to another cluster without missing records."""
