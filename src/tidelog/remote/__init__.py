"""Other people's brokers, seen from outside through confluent-kafka: rewind, lag and their like.

What talks to a broker is in `connection` and `groups`; what decides and counts (`rewind`, `lag`)
asks through the protocol in `view` and runs in tests on a cluster that is not there. Nothing here
imports confluent-kafka before it is used; who has not installed it gets MissingDependency.
"""
