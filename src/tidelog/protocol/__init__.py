"""Kafka's wire protocol without input or output: bytes to messages and back.

`wire` has the primitive types, `schema` the language of message declarations. `codecs` compiles the
declarations to readers and writers; `messages` holds them. `framing` and `requests` split streams
into frames and match responses to requests. Nothing here opens a socket or reads a clock; clients
and the broker share it.
"""
