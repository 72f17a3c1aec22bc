"""Transactions: the coordinator, its log `__transaction_state`, and markers.

`metadata` is the state of one transactional id, `rules` the steps that it may take, `coordinator`
handles requests, `markers` ends transactions in partitions and groups, `state_topic` is the log.
"""
