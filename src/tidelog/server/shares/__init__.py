"""Share groups: records handed out one by one to whoever asks, and handed out again until done.

`share_partition.py` has the rules of one partition in one group, `runs.py` what it keeps of its
records, `sessions.py` what a member has asked for once. All of that is without I/O.

Source: KIP-932.
"""
