"""Who a client is and what it may do: rules without sockets, without a loop.

`sasl`, `plain_users` and `bearer_tokens` tell who somebody is, `authentication` what a
certificate's owner is called, `operations` what rights are about, `authorizer` what is allowed;
`tls` reads the certificates of listeners.
Nothing here imports the rest of the server. Threats and answers: docs/security.md.
"""
