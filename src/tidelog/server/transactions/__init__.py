"""Transactions: the coordinator, its log `__transaction_state`, and markers.

`coordinator` handles requests and time-outs, `metadata` has the state of one transactional id and
the steps that it may take, `state_topic` is the log, `markers` ends transactions in partitions and
groups.
"""
