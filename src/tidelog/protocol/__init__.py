"""Kafka's wire protocol without input or output: bytes in, messages out, and back.

`wire` has the primitive types, `schema` makes codecs out of declarations, `messages` are the
declarations, `connection` cuts streams into frames and matches answers to questions. Nothing here
opens a socket or asks a clock; both a client and a broker are built on it.
"""
