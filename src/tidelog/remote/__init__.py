"""Clusters of brokers, read and written through confluent-kafka and tidelog's own wire client.

`client` and `cluster` talk to brokers. `group_rewind` and `group_lag` use only the protocol class
in `view`, so tests run them without a cluster. confluent-kafka is imported at its first use;
without it, calls raise MissingDependency.
"""
