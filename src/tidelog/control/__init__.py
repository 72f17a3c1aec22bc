"""Control channel: requests to the process that holds a directory's lock.

The process listens on the Unix socket `tidelog-control.sock` in the directory. `channel` defines
frames, requests and responses; `verbs` defines the operations. An error response names a class in
`tidelog.errors`, and the client raises an exception of this class.

Source: docs/control.md.
"""
