"""Calling the hooks of plugins, and handling what they raise.

hook_calls     all other hooks, including those called for each request
configuration  calling the hooks for the options of plugins, at the start and at a reload
completions    calling the hooks for completed requests, for each or with sums
authorization  calling the hooks that decide whether a client may do what it requests
relay          calling the hooks that decide which connections are relayed natively, and on which terms
sasl           calling the hooks for SASL exchanges that the proxy takes part in
users          calling the hook that rewrites the names of users
"""
