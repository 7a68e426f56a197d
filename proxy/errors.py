"""Why a connection ends, split by whose fault it is. The connection logs one line for it and nobody else is
disturbed."""

from __future__ import annotations


class ConnectionFault(Exception):  # noqa: N818 -- named for whose fault it is
    """A connection cannot go on. ``str()`` is the reason that is logged."""

    side = "proxy"


class ClientFault(ConnectionFault):
    """The client broke the protocol or a limit."""

    side = "client"


class ClientGone(ClientFault):
    """The client closed or reset its connection. Logged at debug level: clients may do so at any time."""


class UpstreamFault(ConnectionFault):
    """The broker could not be reached, broke the protocol, or went away."""

    side = "upstream"


class StartupError(Exception):
    """The proxy cannot start: a port is taken, a plugin was refused, a quota is enforced by nobody. Printed without
    traceback."""
