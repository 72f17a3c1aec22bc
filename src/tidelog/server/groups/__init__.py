"""Groups: members, assignments and committed offsets.

Request handlers call `coordinator`. These modules have the rules, without sockets, files or clocks
of their own:

- classic groups: `classic_group`, `classic_members` and `classic_rebalance`;
- consumer and share groups: `modern_group`, `group_updates` and the two heartbeat modules;
- committed offsets: `offset_commits`.

`offsets_topic` writes the changes of groups to `__consumer_offsets`. `replay` reads these
changes after a restart.
"""
