"""The broker: Kafka's clients write to the log and read from it over the network.

`server` listens, `connection` moves bytes, `dispatch` finds the handler, `handlers/` answer, `node`
is what they may use. One event loop owns the directory; what blocks goes through `node.work`.
"""
