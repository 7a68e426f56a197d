"""The kinds of values that name hosts, ports and brokers.

Called by `schema`. They give `addresses`' parsers the form that `kinds` asks for.
"""

from __future__ import annotations

import re

from config.addresses import (
    HOST_PATTERN,
    HOST_PORT_PATTERN,
    NODE_IDS_PATTERN,
    HostPort,
    NodeIds,
    is_wildcard_host,
    parse_host,
    parse_host_port,
    parse_node_ids,
)
from config.kinds import JsonSchema, Kind


class Address(Kind[HostPort]):
    """A ``host:port`` to listen on or to connect to."""

    __slots__ = ("_any_port", "_wildcard")

    def __init__(self, *, wildcard: bool, any_port: bool = False) -> None:
        """``wildcard``: the host may mean every interface. ``any_port``: port 0 stands for one that is free."""
        self._any_port = any_port
        self._wildcard = wildcard
        host = "0.0.0.0" if wildcard else "kafka-1"  # noqa: S104  an example in a sentence
        examples = f'"{host}:9192", "127.0.0.1:9192" or "[::1]:9192"'
        self.expected = f"host:port, such as {examples}, port {self._lowest}-65535"

    @property
    def _lowest(self) -> int:
        return 0 if self._any_port else 1

    def _read(self, raw: object) -> HostPort:
        if not isinstance(raw, str):
            raise self.unfit(raw)
        try:
            address = parse_host_port(raw)
        except ValueError as why:
            raise self.unfit(raw, str(why)) from None
        if address.port < self._lowest:
            raise self.unfit(raw)
        if address.is_wildcard and not self._wildcard:
            raise self.unfit(raw, "a wildcard address cannot be connected to")
        return address

    def _spell(self, value: HostPort) -> object:
        return str(value)

    def _schema(self) -> JsonSchema:
        return {"type": "string", "pattern": f"^{HOST_PORT_PATTERN}$"}


class AdvertisedHost(Kind[str]):
    """A host that clients are told to connect to; an IPv6 address comes out without brackets."""

    __slots__ = ()

    def __init__(self) -> None:
        self.expected = 'a host name or IP address that clients can reach, such as "kafka.example.com"'

    def _read(self, raw: object) -> str:
        if not isinstance(raw, str):
            raise self.unfit(raw)
        if is_wildcard_host(raw):
            raise self.unfit(raw, "a wildcard is for listening; clients cannot connect to it")
        try:
            return parse_host(raw)
        except ValueError as not_a_host:
            why = str(not_a_host)
            if re.fullmatch(r"[^:]+:[0-9]+|\[.*\]:[0-9]+", raw):
                why = "without the port, which follows from listen.address or listen.advertised_port"
            raise self.unfit(raw, why) from None

    def _schema(self) -> JsonSchema:
        pattern = rf"^({HOST_PATTERN}|\[?[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[^\]]+)?\]?)$"
        return {"type": "string", "pattern": pattern, "not": {"enum": ["0.0.0.0", "::", "[::]"]}}  # noqa: S104


class NodeIdRanges(Kind[NodeIds]):
    """Broker ids as ranges."""

    __slots__ = ()

    def __init__(self) -> None:
        self.expected = 'broker ids as ranges and commas, such as "0-2,1001-1010"'

    def _read(self, raw: object) -> NodeIds:
        if not isinstance(raw, str):
            raise self.unfit(raw)
        try:
            return parse_node_ids(raw)
        except ValueError as why:
            raise self.unfit(raw, str(why)) from None

    def _spell(self, value: NodeIds) -> object:
        return str(value)

    def _schema(self) -> JsonSchema:
        return {"type": "string", "pattern": f"^{NODE_IDS_PATTERN}$"}
