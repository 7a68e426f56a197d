"""The typed configuration: every key, its default, what it may be, and whether a change needs a restart.

This is the only list of the keys. The loader, the flags, the environment variables, the JSON Schema, the check of the
sample file and the reload diff are all derived from it (`keys` says how); to add a key, add a field here and its lines
to `headrace.sample.toml`.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from headrace.config.keys import Key, Section
from headrace.config.quotas import INT_MAX, QUOTA_TABLES, ConfiguredQuota, merged_quotas
from headrace.config.values import (
    HostPort,
    NodeIds,
    duration,
    host_port,
    id_ranges,
    parse_node_ids,
    reachable_host,
    size,
    worker_count,
)
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.options import TRUE_OR_FALSE, Fault, Parsed, Path, choice, list_of, misfits, text, whole
from headrace.quota_callbacks.policies import Quota

IMPORT_PATTERN: Final = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?"
DEFAULT_NODE_IDS: Final = parse_node_ids("0-31")


class LogLevel(StrEnum):
    """The least severe events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class OnError(StrEnum):
    """What happens to a request when a plugin raises."""

    OPEN = "open"
    """The request goes on as if the plugin had not been asked."""
    CLOSED = "closed"
    """The request is not forwarded, and its connection is closed."""


class UnknownNodeIdError(LookupError):
    """A broker's id has no port here, because ``listen.node_ids`` does not have it."""


class Upstream(Section):
    """The Kafka cluster behind the proxy."""

    bootstrap_servers: Annotated[
        tuple[Annotated[HostPort, host_port(wildcard=False)], ...],
        list_of('a list of one or more host:port, such as ["kafka-1:9092"]', shortest=1),
        Key("Brokers that are asked first, host:port each; IPv6 addresses in brackets.", flag="--bootstrap-servers"),
    ]
    connect_timeout_s: Annotated[
        float, duration("10ms", "10m"), Key("How long one attempt to connect to a broker may take.")
    ] = 10.0
    reply_timeout_s: Annotated[
        float,
        duration("1s", "30d"),
        Key(
            "How long a broker may take to answer one request before its connection is given up. Above the longest "
            "wait that is meant: a consumer group's rebalance takes up to max.poll.interval.ms."
        ),
    ] = 3600.0


class Listen(Section):
    """Where clients connect. Broker n is at the bootstrap port + 1 + n, on every proxy and after every restart."""

    address: Annotated[
        HostPort,
        host_port(wildcard=True),
        Key("The bootstrap address, host:port; broker n is at this port + 1 + n.", restart=True, flag="--listen"),
    ]
    advertised_host: Annotated[
        str | None,
        reachable_host(),
        Key(
            "The host that clients are told to connect to; never a wildcard. The listening host unless given, so "
            "required where that is a wildcard.",
            restart=True,
            flag="--advertised-host",
        ),
    ] = None
    advertised_port: Annotated[
        int | None,
        whole(1, 65535),
        Key(
            "The bootstrap port that clients are told, where a load balancer or NAT maps ports; the listening port "
            "unless given. Broker n is advertised at this port + 1 + n.",
            restart=True,
            flag="--advertised-port",
        ),
    ] = None
    node_ids: Annotated[
        NodeIds,
        id_ranges(),
        Key(
            "The broker ids that have a port, as ranges; an id outside them cannot be reached.",
            restart=True,
            flag="--node-ids",
        ),
    ] = DEFAULT_NODE_IDS
    backlog: Annotated[
        int,
        whole(1, 65535),
        Key("Connections that may wait to be accepted, per port; the kernel's somaxconn caps it.", restart=True),
    ] = 1024

    @property
    def advertised(self) -> HostPort:
        """The bootstrap address that clients are told."""
        return HostPort(host=self.advertised_host or self.address.host, port=self.advertised_port or self.address.port)

    def broker_address(self, node_id: int) -> HostPort:
        """Where to listen for clients of one broker; `UnknownNodeIdError` outside ``node_ids``."""
        return HostPort(host=self.address.host, port=self.address.port + self._offset(node_id))

    def advertised_broker(self, node_id: int) -> HostPort:
        """Where clients are told that one broker is; `UnknownNodeIdError` outside ``node_ids``."""
        return HostPort(host=self.advertised.host, port=self.advertised.port + self._offset(node_id))

    def _offset(self, node_id: int) -> int:
        if node_id not in self.node_ids:
            raise UnknownNodeIdError(f"broker {node_id} has no port here: widen listen.node_ids, now {self.node_ids}")
        return 1 + node_id


class Limits(Section):
    """Caps that keep one client from starving the others."""

    max_frame_bytes: Annotated[
        int,
        size("1KiB", f"{INT_MAX}B"),  # a frame's length is an INT32
        Key(
            "The longest request or reply; a longer one closes its connection (Kafka: socket.request.max.bytes).",
            flag="--max-frame-bytes",
        ),
    ] = 100 * 2**20  # Kafka's default
    max_collected_bytes: Annotated[
        int,
        size("1KiB", f"{INT_MAX}B"),
        Key("The longest message that is held in memory whole to be rewritten (Metadata, CreateTopics, ...)."),
    ] = 64 * 2**20  # Metadata of a million partitions: 42 bytes each with three replicas
    # Each connection is two sockets and, while it moves large frames, a pipe each way: 10,000 stay below the 65,536
    # open files that service managers commonly allow.
    max_connections: Annotated[
        int, whole(1, INT_MAX), Key("Client connections open at a time; more are closed at once.")
    ] = 10_000
    max_connections_per_ip: Annotated[
        int,
        whole(0, INT_MAX),
        Key("Client connections open at a time from one address (Kafka: max.connections.per.ip); 0 is no limit."),
    ] = 0
    max_in_flight_requests: Annotated[
        int,
        whole(1, 1_000_000),
        Key("Unanswered requests per connection; beyond it the client's socket is not read until an answer comes."),
    ] = 1000
    idle_timeout_s: Annotated[
        float,
        duration("1s", "30d"),
        Key("A client connection that says nothing for so long is closed (Kafka: connections.max.idle.ms)."),
    ] = 600.0  # Kafka's default


class Shutdown(Section):
    """How the proxy stops."""

    drain_timeout_s: Annotated[
        float,
        duration("0s", "1d"),
        Key(
            "How long requests in flight may take to finish after a stop is asked for; 0s cuts them.",
            flag="--drain-timeout",
        ),
    ] = 30.0


class Admin(Section):
    """The HTTP server for health, metrics and quotas."""

    listen: Annotated[
        HostPort | None,
        host_port(wildcard=True, any_port=True),
        Key(
            "The admin server's address, host:port (port 0: any that is free); without it there is no admin server.",
            restart=True,
            flag="--admin",
        ),
    ] = None


class Log(Section):
    """What is logged, and how."""

    level: Annotated[
        LogLevel, choice(LogLevel), Key("The least severe events that are logged.", flag="--log-level")
    ] = LogLevel.INFO
    format: Annotated[
        LogFormat, choice(LogFormat), Key("Lines for people, or JSON objects.", restart=True, flag="--log-format")
    ] = LogFormat.TEXT


class Enforcement(Section):
    """Whether quotas throttle, and whom they never do."""

    enabled: Annotated[
        bool, TRUE_OR_FALSE, Key("Whether anybody is throttled; while false no quota callback is asked.")
    ] = True
    exempt_users: Annotated[
        tuple[Annotated[str, text("a user")], ...], list_of("a list of users"), Key("Users that no quota holds.")
    ] = ()
    exempt_client_ids: Annotated[
        tuple[Annotated[str, text("a client id")], ...],
        list_of("a list of client ids"),
        Key("Client ids that no quota holds."),
    ] = ()


# --- the broker's own names: one section for each word between the dots -----------------------------------------------

_SAMPLES: Final = Key("Samples that a rate is kept in.", restart=True)


class SampleSize(Section):
    """How long one sample is."""

    seconds: Annotated[int, whole(1, INT_MAX), Key("Seconds that one sample spans.", restart=True)] = 1


class QuotaWindow(Section):
    """The samples that a rate is measured over; the names are the broker's own."""

    num: Annotated[int, whole(1, INT_MAX), _SAMPLES] = 11
    size: SampleSize = Field(default_factory=SampleSize)


class QuotaState(Section):
    """Where usage is kept over a restart."""

    file: Annotated[
        str | None,
        text("the path of a file"),
        Key(
            "The file that rates, tokens and producer ids are saved to, and taken up from at start; without it a "
            "restart forgets all usage. One file for each proxy.",
            restart=True,
        ),
    ] = None
    interval_s: Annotated[
        float,
        duration("1s", "1h"),
        Key("How often what has changed is saved; a stop saves, too.", restart=True),
    ] = 5.0


class BrokerQuota(Section):
    """What byte rates and request time are measured over, and where usage is kept."""

    window: Annotated[QuotaWindow, Key("What byte rates and request time are measured over.")] = Field(
        default_factory=QuotaWindow
    )
    state: QuotaState = Field(default_factory=QuotaState)


class ControllerQuota(Section):
    """What mutations are measured over."""

    window: Annotated[QuotaWindow, Key("What sets the burst of controller_mutation_rate.")] = Field(
        default_factory=QuotaWindow
    )


class Controller(Section):
    """Settings that a broker has for its controller."""

    quota: ControllerQuota = Field(default_factory=ControllerQuota)


class ProducerIdSize(Section):
    """How long a producer id is remembered."""

    seconds: Annotated[
        int,
        whole(1, INT_MAX),
        Key(
            "Seconds that a producer id is remembered, and in which producer_ids_rate new ones may come.", restart=True
        ),
    ] = 3600


class ProducerIdWindow(Section):
    """The windows of producer_ids_rate (KIP-936)."""

    num: Annotated[int, whole(1, INT_MAX), _SAMPLES] = 11
    size: ProducerIdSize = Field(default_factory=ProducerIdSize)


class ProducerIdQuota(Section):
    """The quota of new producer ids (KIP-936)."""

    window: ProducerIdWindow = Field(default_factory=ProducerIdWindow)


class ProducerId(Section):
    """What concerns producer ids."""

    quota: ProducerIdQuota = Field(default_factory=ProducerIdQuota)


class Producer(Section):
    """Settings that a broker has for producers."""

    id: ProducerId = Field(default_factory=ProducerId)


REMOVED: Final[Mapping[Path, str]] = {
    ("producer", "id", "quota", "cache"): (
        "cache.cleanup.scheduler.interval.ms was removed, since nothing reads it: expired filters of producer ids are "
        "dropped when the next id comes, and no scheduler wakes; delete the line"
    ),
}
"""Keys that earlier versions took, and what to do about each."""


# --- plugins ----------------------------------------------------------------------------------------------------------


def _parse_options(raw: object) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(raw, Mapping):
        raise ValueError  # noqa: TRY004  a misfit like any other
    faults = [
        Fault(path=(name,), found=options, rule=f"expected a table, headed [plugins.options.{name}]")
        for name, options in raw.items()
        if not isinstance(options, Mapping)
    ]
    if faults:
        raise misfits(faults)
    return {name: dict(options) for name, options in raw.items()}


_OPTIONS: Final = Parsed(
    "a table for each plugin, headed [plugins.options.NAME]",
    _parse_options,
    {"type": "object", "additionalProperties": {"type": "object"}},
)


class Plugins(Section):
    """Which plugins run, and with what options. All that are installed do, unless disabled."""

    disabled: Annotated[
        tuple[Annotated[str, text("a plugin's name")], ...],
        list_of("a list of plugin names"),
        Key("Installed plugins (entry points headrace.plugins) that are not loaded, by name.", restart=True),
    ] = ()
    load: Annotated[
        tuple[
            Annotated[
                str, text('an import path, such as "my_package.my_module:MyPlugin" or "my_module"', IMPORT_PATTERN)
            ],
            ...,
        ],
        list_of("a list of import paths"),
        Key("Further plugins, by import path: module, or module:object.", restart=True),
    ] = ()
    on_error: Annotated[
        OnError, choice(OnError), Key("When a plugin raises: open lets the request through, closed refuses it.")
    ] = OnError.OPEN
    options: Annotated[
        Mapping[str, Mapping[str, Any]],
        _OPTIONS,
        Key("A table of its own for each plugin, which checks it.", restart=True),
        Field(repr=False),  # secrets may be among them
    ] = {}


class Config(Section):
    """The whole configuration of one proxy, as `loading` gives it: checked, with all defaults filled in."""

    upstream: Upstream
    listen: Listen
    workers: Annotated[
        int,
        worker_count(),
        Key(
            'Processes that serve clients, on the same ports; "auto" is one for each core.',
            restart=True,
            flag="--workers",
        ),
    ] = 1
    """`headrace.config.values.AUTO` stands for one for each core."""
    limits: Limits = Field(default_factory=Limits)
    shutdown: Shutdown = Field(default_factory=Shutdown)
    admin: Admin = Field(default_factory=Admin)
    log: Log = Field(default_factory=Log)
    enforcement: Enforcement = Field(default_factory=Enforcement)
    quota: BrokerQuota = Field(default_factory=BrokerQuota)
    controller: Controller = Field(default_factory=Controller)
    producer: Producer = Field(default_factory=Producer)
    quotas: Annotated[
        tuple[ConfiguredQuota, ...],
        QUOTA_TABLES,
        Key("Quotas that hold unless one is stored for the same entity and key."),
    ] = ()
    plugins: Plugins = Field(default_factory=Plugins)

    def entity_quotas(self) -> dict[QuotaEntity, dict[QuotaKey, Quota]]:
        """All of ``quotas`` by entity."""
        return merged_quotas(self.quotas)

    def windows(self) -> dict[QuotaKey, Window]:
        """What each key is measured over."""
        broker, controller, ids = self.quota.window, self.controller.quota.window, self.producer.id.quota.window
        usual = Window(samples=broker.num, seconds=broker.size.seconds)
        return {
            QuotaKey.PRODUCER_BYTE_RATE: usual,
            QuotaKey.CONSUMER_BYTE_RATE: usual,
            QuotaKey.REQUEST_PERCENTAGE: usual,
            QuotaKey.CONTROLLER_MUTATION_RATE: Window(samples=controller.num, seconds=controller.size.seconds),
            QuotaKey.PRODUCER_IDS_RATE: Window(samples=ids.num, seconds=ids.size.seconds),
        }
