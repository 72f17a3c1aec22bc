"""Groups whose coordinator assigns (KIP-848): members, epochs, assignments, regular expressions.

`group` is one group, changed only by `changes`, which are also what is written and read back;
`reconcile` moves one member towards its target; `assignors` make targets; `heartbeats` is what
members ask; `classic` serves members of the classic protocol in such a group, and `conversion`
makes such a group of a classic one and back while it is used.
"""
