"""Transactions: the coordinator, its log `__transaction_state`, the seam to the partitions.

`seam.py` says what the coordinator and the partitions ask of each other; `metadata.py` what is
known of one transactional id and which steps it may take; `coordinator.py` the requests.
"""
