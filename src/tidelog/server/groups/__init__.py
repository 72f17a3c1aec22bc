"""Consumer groups: who is in them, what each member gets, what they have committed.

`coordinator` is what handlers call. Rules are in modules without sockets, files or clocks of their
own: `group` (one group), `membership` and `rebalance` (joining, syncing, leaving, time-outs),
`commits` (offsets). What they decide is written to `__consumer_offsets` by `journal`, and read from
there by `loading` at the start.
"""
