"""Stored cluster metadata, settings (display and changes), quotas, and Kafka's rules for topics."""
