"""Share groups: each record goes to one member, and to any member again after it was released.

`share_partition` has the rules of one partition in one group, `record_runs` has its record states,
and `share_partitions` has the open partitions and the sessions of members.

Source: KIP-932.
"""
