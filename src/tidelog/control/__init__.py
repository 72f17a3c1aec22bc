"""Control channel: requests to the process that holds a directory's lock.

The process listens on the Unix socket `tidelog-control.sock` in the directory. `channel` defines
frames, requests and responses; `verbs` defines the operations. For an error response, the client
raises an exception of the class in `tidelog.errors` that the response names.

Source: docs/control.md.
"""
