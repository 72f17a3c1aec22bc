"""Share groups: a record is delivered to one member, and again to any member if it isn't accepted.

`share_partition` has the rules of one partition in one group, `record_runs` its record states,
`share_partitions` the open partitions and the sessions of members.

Source: KIP-932.
"""
