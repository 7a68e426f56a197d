"""Connections that the native data plane relays, as the control plane sees them.

relay        giving the connection to the native data plane, and continuing it when it returns
completions  requests of the native data plane as plugins see them
"""
