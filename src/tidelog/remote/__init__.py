"""Clusters of brokers, read and written through confluent-kafka and a wire client of our own.

`client` and `cluster` talk to brokers; `group_rewind` and `group_lag` compute through the protocol
in `view`, so tests run them without a cluster. confluent-kafka is imported at its first use;
without it, calls raise MissingDependency.
"""
