"""Groups: who is in them, what each member gets, what they have committed.

`coordinator` is what handlers call. Rules are in modules without sockets, files or clocks of their
own: `classic_group`, `classic_members` and `rebalance` (classic groups), `modern_group`,
`group_updates` and both heartbeats (consumer and share groups), `offset_commits`. What they decide
is written to `__consumer_offsets` by `offsets_topic`, and read from there by `replay`.
"""
