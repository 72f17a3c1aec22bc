"""The broker: Kafka's clients write to the log and read from it over the network.

Owns sockets, requests, partitions in use, coordinators, security, quotas, metrics and background
work, a package each. `broker` starts and stops them; `embedded` runs a broker inside the caller's
process. `net` moves bytes and finds requests, `api` answers them from `partitions`, `groups`,
`transactions` and `shares`. Not owned: bytes on disk (`tidelog.storage`) and the form of messages
(`tidelog.protocol`).

Invariants: one event loop changes the directory. Calls that block run in the threads of `runtime`,
never on the loop. Packages import only the layers below them.

Source: ARCHITECTURE.md; Kafka's protocol guide.
"""
