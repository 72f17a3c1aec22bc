"""The control channel: asking the process that holds a directory's lock to change it.

A unix socket `tidelog-control.sock` in the directory, served by whoever holds the lock and wants
to. Requests and answers are JSON in frames (`frames`); the verbs are in `verbs`; errors come back
as the types of `tidelog.errors` (`messages`). Source: docs/control.md.
"""
