"""Who a client is and what it may do: rules without sockets, without a loop.

`sasl`, `scram`, `passwords` and `bearer_tokens` tell who somebody is, `principals` what a
certificate's owner is called, `authorizer` what is allowed; `listeners` and `tls` read the settings
of doors.
Nothing here imports the rest of the server. Threats and answers: docs/security.md.
"""
