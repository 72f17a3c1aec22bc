"""Transactions: the coordinator, its log `__transaction_state`, and markers.

`coordinator` handles requests and timeouts. `metadata` has the state of one transactional id and
its possible transitions. `state_topic` is the log, and `markers` ends transactions in partitions
and groups.
"""
