"""Clients of a proxy that authorizes, beside clients of a broker with ``StandardAuthorizer`` and the same rules.

scene                 the broker and the proxy, the rules as ACLs and as configuration
requests              requests of every API, about resources of which the rules allow some
denied_clients        what each kind of client reports for what is denied
test_same_errors      the same requests in every version: the same errors
test_same_exceptions  the same calls of clients: the same exceptions
"""
