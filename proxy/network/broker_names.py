"""The host names of brokers, by which TLS clients choose a broker on a port that all brokers share. Pure.

A client sends the host that it connects to as server name (SNI, RFC 6066 section 3), and the proxy advertises each
broker by a name of its own, such as ``broker-3.kafka.example.com``. Nothing here resolves names: in the DNS, the names
of all brokers must lead to the proxy.
"""

from __future__ import annotations

import re
from typing import Final

PLACEHOLDER: Final = "$(node_id)"
HIGHEST_NODE_ID: Final = 2**31 - 1
"""Node ids are INT32 in Kafka's protocol, and not negative."""
MAX_HOST_CHARACTERS: Final = 253
MAX_LABEL_CHARACTERS: Final = 63
"""RFC 1035 section 2.3.4; a host without the dot of the root."""

_LABEL: Final = re.compile("[a-z0-9]([a-z0-9-]*[a-z0-9])?")
"""RFC 1123 section 2.1. Underscores are excluded, since Java does not send names with them as SNI."""
_NODE_ID: Final = "(0|[1-9][0-9]{0,9})"


class BrokerNames:
    """The names of brokers by a pattern such as ``broker-$(node_id).kafka.example.com``. Immutable."""

    __slots__ = ("_after", "_before", "_name")

    def __init__(self, pattern: str) -> None:
        """Raise `ValueError` with the reason unless each node id gives a valid host name."""
        if not pattern.isascii():
            raise ValueError(
                f"{pattern!r} must be ASCII; names in other scripts have an ASCII form that begins with xn--"
            )
        if pattern.count(PLACEHOLDER) != 1:
            raise ValueError(f"{pattern!r} must have {PLACEHOLDER} exactly once")
        self._before, _, self._after = pattern.lower().removesuffix(".").partition(PLACEHOLDER)
        _check_host(self.host_of(0), pattern)
        _check_host(self.host_of(HIGHEST_NODE_ID), pattern)
        self._name = re.compile(f"{re.escape(self._before)}{_NODE_ID}{re.escape(self._after)}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._before + PLACEHOLDER + self._after!r})"

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


def _check_host(host: str, pattern: str) -> None:
    if len(host) > MAX_HOST_CHARACTERS:
        raise ValueError(f"{pattern!r} gives names of up to {len(host)} characters; the most is {MAX_HOST_CHARACTERS}")
    for label in host.split("."):
        if len(label) > MAX_LABEL_CHARACTERS:
            raise ValueError(
                f"{pattern!r} gives a label of {len(label)} characters, {label!r}; the most is {MAX_LABEL_CHARACTERS}"
            )
        if not _LABEL.fullmatch(label):
            raise ValueError(f"{pattern!r} gives {host!r}, which is not a host name: {label!r} is not a label")
    if host.rpartition(".")[2].isdigit():
        raise ValueError(f"{pattern!r} gives {host!r}, which ends with a number, as only IP addresses do")
