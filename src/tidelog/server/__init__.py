"""The broker: Kafka's clients write to the log and read from it over the network.

Owns sockets, requests, open partitions, coordinators, security, quotas, metrics and background
work, one package each. `broker` starts and stops them; `embedded` runs a broker inside the caller's
process. `net` moves bytes and splits them into requests, `api` answers them from `partitions`,
`groups`, `transactions` and `shares`. Not owned: bytes on disk (`tidelog.storage`) and the form of
messages (`tidelog.protocol`).

Invariants: one event loop changes the directory. Blocking calls run in the threads of `runtime`,
never on the loop. Packages import only the layers below them.

Source: ARCHITECTURE.md; Kafka's protocol guide.
"""
