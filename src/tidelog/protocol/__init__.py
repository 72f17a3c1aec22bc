"""Kafka's wire protocol without input or output: bytes to messages and back.

`wire` has the primitive types, `schema` the language of message declarations. `messages` has the
declarations, and `codecs` compiles them to readers and writers. `framing` and `requests` split
streams into frames and match responses to requests. No module of this package opens a socket or
reads a clock. Clients and the broker use the same modules.
"""
