"""Share groups: a record is acquired by one member; if it is released, any member can acquire it.

`share_partition` has the rules of one partition in one group, `record_runs` has the states of the
partition's records, and `share_partitions` has the open partitions and the sessions of members.

Source: KIP-932.
"""
