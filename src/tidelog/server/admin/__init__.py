"""Cluster metadata, described settings, quotas, and Kafka's rules for topics."""
