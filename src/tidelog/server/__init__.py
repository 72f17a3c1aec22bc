"""The broker: Kafka's clients write to the log and read from it over the network.

This package has sockets, requests, open partitions, coordinators, security, quotas, metrics and
background work, each in a package of its own. `broker` starts and stops these parts. `embedded`
runs a broker inside the caller's process. `net` receives and sends bytes, and splits received bytes
into requests. `api` answers the requests by calls to `partitions`, `groups`, `transactions` and
`shares`. `tidelog.storage` reads and writes the files. `tidelog.protocol` defines the form of
messages.

Invariants: every change of the data directory is decided on one event loop. If a call may block the
loop for a long time, a thread of `runtime` makes the call. Packages import only the layers below
them.

Source: ARCHITECTURE.md; Kafka's protocol guide.
"""
