"""Share groups: each record is delivered to any member, and again until it is acknowledged.

`share_partition` has the rules of one partition in one group, `record_runs` its record states,
`share_partitions` the open partitions and the sessions of members.

Source: KIP-932.
"""
