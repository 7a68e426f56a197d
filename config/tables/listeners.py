"""The tables ``[upstream]``, ``[listen]`` and ``[listeners.NAME]``: where brokers are, and where clients connect to."""
# pydantic reads annotations at run time, so they are not postponed here.

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from headrace.config.keys import Key, Section
from headrace.config.tables.broker_hosts import NODE_ID, split_pattern
from headrace.config.tables.sasl import ListenSasl, OwnerLookup, UpstreamSasl
from headrace.config.tables.tls import ListenTls, UpstreamTls
from headrace.config.values import Network, NodeIds, host_port, id_ranges, network, parse_node_ids, reachable_host
from headrace.quota_callbacks.options import TRUE_OR_FALSE, Fault, Parsed, list_of, validation_error, whole
from headrace.quota_callbacks.requests import Address
from headrace.quota_callbacks.units import duration

DEFAULT_NODE_IDS: Final = parse_node_ids("0-31")


def name_of_brokers() -> Parsed:
    """Return the annotation for the host name of a broker, with `NODE_ID` in place of its id."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError  # noqa: TRY004  reported like every invalid value
        split_pattern(raw)
        return raw.removesuffix(".")

    return Parsed(
        f'a host name with {NODE_ID}, such as "broker-{NODE_ID}.kafka.example.com"',
        parse,
        {"type": "string", "pattern": r"^[A-Za-z0-9.-]*\$\(node_id\)[A-Za-z0-9.-]*$"},
    )


class Upstream(Section):
    """The Kafka cluster behind the proxy."""

    bootstrap_servers: Annotated[
        tuple[Annotated[Address, host_port(wildcard=False)], ...],
        list_of('a list of one or more host:port, such as ["kafka-1:9092"]', shortest=1),
        Key("Bootstrap brokers of the cluster, as host:port; IPv6 addresses in brackets.", flag="--bootstrap-servers"),
    ]
    connect_timeout_s: Annotated[
        float, duration("10ms", "10m"), Key("Timeout of an attempt to connect to a broker.")
    ] = 10.0
    reply_timeout_s: Annotated[
        float,
        duration("1s", "30d"),
        Key(
            "Timeout of a request to a broker, after which the connection is closed. Must exceed the longest intended "
            "wait: a rebalance of a consumer group takes up to max.poll.interval.ms."
        ),
    ] = 3600.0
    proxy_protocol: Annotated[
        bool,
        TRUE_OR_FALSE,
        Key(
            "Whether connections to brokers begin with a header of the PROXY protocol, version 2, with the client's "
            "address, for a load balancer in front of the brokers. Brokers themselves do not understand it.",
            restart=True,
        ),
    ] = False
    tls: UpstreamTls = Field(default_factory=UpstreamTls)
    sasl: UpstreamSasl = Field(default_factory=UpstreamSasl)
    owner_lookup: OwnerLookup = Field(default_factory=OwnerLookup)


class Listen(Section):
    """The addresses that clients connect to. Broker n is at the bootstrap port + 1 + n, on every proxy."""

    address: Annotated[
        Address,
        host_port(wildcard=True),
        Key("The bootstrap address, host:port; broker n is at this port + 1 + n.", restart=True, flag="--listen"),
    ]
    advertised_host: Annotated[
        str | None,
        reachable_host(),
        Key(
            "The host that is advertised to clients; not a wildcard. The default is the host of listen.address, so it "
            "is required if that is a wildcard.",
            restart=True,
            flag="--advertised-host",
        ),
    ] = None
    advertised_port: Annotated[
        int | None,
        whole(1, 65535),
        Key(
            "The bootstrap port that is advertised to clients, if a load balancer or NAT maps ports. The default is "
            "the port of listen.address. Broker n is advertised at this port + 1 + n.",
            restart=True,
            flag="--advertised-port",
        ),
    ] = None
    node_ids: Annotated[
        NodeIds,
        id_ranges(),
        Key(
            "The broker ids that have a port, as ranges. Clients cannot reach other brokers.",
            restart=True,
            flag="--node-ids",
        ),
    ] = DEFAULT_NODE_IDS
    backlog: Annotated[
        int,
        whole(1, 65535),
        Key("Maximum number of connections per port that wait to be accepted; at most somaxconn.", restart=True),
    ] = 1024
    broker_host: Annotated[
        str | None,
        name_of_brokers(),
        Key(
            "The host name of each broker, with $(node_id) in place of its id. With it all brokers are at the one "
            "port, chosen by the host name that TLS clients send (SNI), and need no ports of their own.",
            restart=True,
        ),
    ] = None
    proxy_protocol_from: Annotated[
        tuple[Annotated[Network, network()], ...],
        list_of('a list of networks, such as ["10.0.0.0/24"]'),
        Key(
            "Networks of load balancers whose connections begin with a header of the PROXY protocol, version 2, which "
            "has the client's address. Connections from elsewhere must not have one.",
            restart=True,
        ),
    ] = ()
    tls: ListenTls = Field(default_factory=ListenTls)
    sasl: ListenSasl = Field(default_factory=ListenSasl)

    @property
    def advertised(self) -> Address:
        """The bootstrap address that is advertised to clients."""
        return Address(host=self.advertised_host or self.address.host, port=self.advertised_port or self.address.port)


class FurtherListener(Listen):
    """A listener beside that of ``[listen]``, with its own security, in the table ``[listeners.NAME]``."""

    upstream: Annotated[
        Upstream | None,
        Key(
            "The brokers' listener that this one leads to, with the keys of [upstream]. The default is [upstream].",
            restart=True,
        ),
    ] = None


_NAME: Final = re.compile("[a-z][a-z0-9_-]{0,30}")


def _named(raw: Any) -> Any:
    """Check the names of the tables. What else is wrong, pydantic reports."""
    if isinstance(raw, Mapping):
        rule = 'expected a name of lower-case letters, digits, "_" and "-", of at most 31 characters'
        if faults := [Fault(path=(each,), rule=rule) for each in raw if not _NAME.fullmatch(each)]:
            raise validation_error(faults)
    return raw


FURTHER_LISTENERS: Final = BeforeValidator(_named)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTables:
    """The tables of one listener, and their names in the configuration."""

    setting: str
    """``listen``, or ``listeners.NAME``."""
    listen: Listen
    upstream_setting: str
    """``upstream``, or ``listeners.NAME.upstream``."""
    upstream: Upstream
