"""The broker: what Kafka's clients connect to, over the storage of one directory of topics."""
