"""Reads and writes clusters of brokers, through confluent-kafka and tidelog's own wire client.

`client` and `cluster` talk to brokers. `group_rewind` and `group_lag` use only the protocol class
`ClusterView` in `view`, so tests can run them without a cluster. confluent-kafka is imported at its
first use; without it, calls raise MissingDependency.
"""
