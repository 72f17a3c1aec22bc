"""Quotas of clients: which one holds for whom, how much was used, how long to wait.

Rules without I/O; what is kept lies in `server/cluster_settings.py`, and a connection is silenced
in `server/connection.py`.
"""
