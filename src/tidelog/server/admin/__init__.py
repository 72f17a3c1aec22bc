"""The cluster's metadata, settings, quotas, and what Kafka lets clients ask of topics."""
