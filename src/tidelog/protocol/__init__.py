"""Kafka's wire protocol without input or output: bytes to messages and back.

`wire` has the primitive types, `schema` the language of message declarations. `messages` has the
declarations, and `codecs` compiles them to readers and writers. `framing` and `requests` split
streams into frames and match responses to requests. Nothing here opens a socket or reads a clock;
clients and the broker share it.
"""
