"""Authentication and authorization rules, without sockets and event loop.

`sasl`, `plain_users` and `bearer_tokens` authenticate clients. `authentication` maps certificates
to principals. `operations` names resources and operations. `authorizer` decides what a client may
do. `tls` loads the certificates of listeners. This package imports no other package of the server.
docs/security.md describes threats and measures.
"""
