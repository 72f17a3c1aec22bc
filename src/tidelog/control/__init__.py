"""Control channel: requests to the process that holds a directory's lock.

The process listens on the Unix socket `tidelog-control.sock` in the directory. `channel` has
frames, requests and responses, `verbs` the operations. Errors are returned as types of
`tidelog.errors`.

Source: docs/control.md.
"""
