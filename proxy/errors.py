"""Exceptions that end a connection, by the side at fault, and the one that prevents a start.

A `ConnectionFault` ends its own connection, which logs one line; other connections are not affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.quota_callbacks.options import Fault


class ConnectionFault(Exception):  # noqa: N818 -- named for the side at fault
    """A connection cannot continue. ``str()`` is the reason that is logged."""

    side = "proxy"


class ClientFault(ConnectionFault):
    """The client broke the protocol or a limit."""

    side = "client"


class ClientGone(ClientFault):
    """The client closed or reset its connection. Logged at debug level: clients may do so at any time."""


class UpstreamFault(ConnectionFault):
    """The broker could not be reached, broke the protocol, or closed the connection."""

    side = "upstream"


class StartupError(Exception):
    """The proxy cannot start: a port is in use, a plugin was rejected, or no plugin enforces a configured quota.

    Printed without a traceback.
    """


class PluginConfigurationError(StartupError):
    """Plugins have raised exceptions when they were configured. Contains no secret of their options.

    ``faults`` are the invalid options with their paths in the configuration; other errors have an empty path.
    """

    def __init__(self, message: str, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        super().__init__(message)
