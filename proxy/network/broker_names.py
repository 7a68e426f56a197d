"""The host names of brokers, by which TLS clients choose a broker on a port that all brokers share. Pure.

A client sends the host that it connects to as server name (SNI, RFC 6066 section 3), and the proxy advertises each
broker by a name of its own, such as ``broker-3.kafka.example.com``. Nothing here resolves names: in the DNS, the names
of all brokers must lead to the proxy.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.config.tables.broker_hosts import HIGHEST_NODE_ID, MAX_HOST_CHARACTERS, NODE_ID, split_pattern

_NODE_ID: Final = "(0|[1-9][0-9]{0,9})"


class BrokerNames:
    """The names of brokers by a pattern such as ``broker-$(node_id).kafka.example.com``. Immutable."""

    __slots__ = ("_after", "_before", "_name")

    def __init__(self, pattern: str) -> None:
        """Raise `ValueError` for a pattern that `split_pattern` refuses."""
        self._before, self._after = split_pattern(pattern)
        self._name = re.compile(f"{re.escape(self._before)}{_NODE_ID}{re.escape(self._after)}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._before + NODE_ID + self._after!r})"

    def host_of(self, node_id: int) -> str:
        """Return the host name of a broker, in lower case. Raises `ValueError` for an id that is not one."""
        if not 0 <= node_id <= HIGHEST_NODE_ID:
            raise ValueError(f"{node_id} is not a node id")
        return f"{self._before}{node_id}{self._after}"

    def node_id_of(self, server_name: str) -> int | None:
        """Return the node id in the server name that a client sent; ``None`` if it is no broker's name.

        Upper and lower case are equal, and a dot may follow. Ids with leading zeros are not accepted, so each broker
        has one name.
        """
        if len(server_name) > MAX_HOST_CHARACTERS + 1 or not server_name.isascii():
            return None
        match = self._name.fullmatch(server_name.lower().removesuffix("."))
        node_id = int(match[1]) if match is not None else HIGHEST_NODE_ID + 1
        return node_id if node_id <= HIGHEST_NODE_ID else None
