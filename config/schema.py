"""The typed configuration: every key, its default, what it may be, and whether a change needs a restart.

This is the only list of the keys. The loader, the flags, the JSON Schema, the check of the sample file and the reload
diff are all derived from it (`keys` says how); to add a key, add a field here and its lines to `headrace.sample.toml`.
"""
# Annotations are read at run time (`keys`), so they are not postponed here.

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from config.address_kinds import Address, AdvertisedHost, NodeIdRanges
from config.addresses import HostPort, NodeIds, parse_node_ids
from config.keys import Reload, Section, Setting
from config.kinds import Boolean, Choice, Duration, ListOf, Size, Text, Whole
from config.plugin_options import PluginOptions
from config.quotas import ConfiguredQuota, QuotaTables, merged_quotas
from config.usage import INT_MAX, ProducerIdQuota, QuotaState, QuotaWindow
from config.workers import Workers
from quota_callbacks.entities import QuotaEntity, QuotaKey
from quota_callbacks.policies import Quota
from quota_callbacks.sampled_rate import Window

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The Kafka cluster behind the proxy."""

    bootstrap_servers: Annotated[
        tuple[HostPort, ...],
        Setting(
            "bootstrap_servers",
            ListOf('a list of one or more host:port, such as ["kafka-1:9092"]', Address(wildcard=False), shortest=1),
            "Brokers that are asked first, host:port each; IPv6 addresses in brackets.",
            flag="--bootstrap-servers",
        ),
    ]
    connect_timeout_s: Annotated[
        float,
        Setting("connect_timeout", Duration("10ms", "10m"), "How long one attempt to connect to a broker may take."),
    ] = 10.0
    reply_timeout_s: Annotated[
        float,
        Setting(
            "reply_timeout",
            Duration("1s", "30d"),
            "How long a broker may take to answer one request before its connection is given up. Above the longest "
            "wait that is meant: a consumer group's rebalance takes up to max.poll.interval.ms.",
        ),
    ] = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where clients connect. Broker n is at the bootstrap port + 1 + n, on every proxy and after every restart."""

    address: Annotated[
        HostPort,
        Setting(
            "address",
            Address(wildcard=True),
            "The bootstrap address, host:port; broker n is at this port + 1 + n.",
            Reload.RESTART,
            "--listen",
        ),
    ]
    advertised_host: Annotated[
        str,
        Setting(
            "advertised_host",
            AdvertisedHost(),
            "The host that clients are told to connect to; never a wildcard.",
            Reload.RESTART,
            "--advertised-host",
        ),
    ]
    advertised_port: Annotated[
        int | None,
        Setting(
            "advertised_port",
            Whole(1, 65535),
            "The bootstrap port that clients are told, where a load balancer or NAT maps ports; the listening port "
            "unless given. Broker n is advertised at this port + 1 + n.",
            Reload.RESTART,
            "--advertised-port",
        ),
    ] = None
    node_ids: Annotated[
        NodeIds,
        Setting(
            "node_ids",
            NodeIdRanges(),
            "The broker ids that have a port, as ranges; an id outside them cannot be reached.",
            Reload.RESTART,
            "--node-ids",
        ),
    ] = DEFAULT_NODE_IDS
    backlog: Annotated[
        int,
        Setting(
            "backlog",
            Whole(1, 65535),
            "Connections that may wait to be accepted, per port; the kernel's somaxconn caps it.",
            Reload.RESTART,
        ),
    ] = 1024

    @property
    def advertised(self) -> HostPort:
        """The bootstrap address that clients are told."""
        return HostPort(host=self.advertised_host, port=self.advertised_port or self.address.port)

    def broker_address(self, node_id: int) -> HostPort:
        """Where to listen for clients of one broker; `UnknownNodeIdError` outside ``node_ids``."""
        return HostPort(host=self.address.host, port=self.address.port + self._offset(node_id))

    def advertised_broker(self, node_id: int) -> HostPort:
        """Where clients are told that one broker is; `UnknownNodeIdError` outside ``node_ids``."""
        return HostPort(host=self.advertised_host, port=self.advertised.port + self._offset(node_id))

    def _offset(self, node_id: int) -> int:
        if node_id not in self.node_ids:
            raise UnknownNodeIdError(f"broker {node_id} has no port here: widen listen.node_ids, now {self.node_ids}")
        return 1 + node_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The caps that keep one client from taking the proxy from the others."""

    max_frame_bytes: Annotated[
        int,
        Setting(
            "max_frame_bytes",
            Size("1KiB", f"{INT_MAX}B"),  # a frame's length is an INT32
            "The longest request or reply; a longer one closes its connection (Kafka: socket.request.max.bytes).",
            flag="--max-frame-bytes",
        ),
    ] = 100 * 2**20  # Kafka's default
    max_collected_bytes: Annotated[
        int,
        Setting(
            "max_collected_bytes",
            Size("1KiB", f"{INT_MAX}B"),
            "The longest message that is held in memory whole to be rewritten (Metadata, CreateTopics, ...).",
        ),
    ] = 64 * 2**20  # Metadata of a million partitions: 42 bytes each with three replicas
    # Each connection is two sockets and, while it moves large frames, a pipe each way: 10,000 stay below the 65,536
    # open files that service managers commonly allow.
    max_connections: Annotated[
        int,
        Setting("max_connections", Whole(1, INT_MAX), "Client connections open at a time; more are closed at once."),
    ] = 10_000
    max_connections_per_ip: Annotated[
        int,
        Setting(
            "max_connections_per_ip",
            Whole(0, INT_MAX),
            "Client connections open at a time from one address (Kafka: max.connections.per.ip); 0 is no limit.",
        ),
    ] = 0
    max_in_flight_requests: Annotated[
        int,
        Setting(
            "max_in_flight_requests",
            Whole(1, 1_000_000),
            "Unanswered requests per connection; beyond it the client's socket is not read until an answer comes.",
        ),
    ] = 1000
    idle_timeout_s: Annotated[
        float,
        Setting(
            "idle_timeout",
            Duration("1s", "30d"),
            "A client connection that says nothing for so long is closed (Kafka: connections.max.idle.ms).",
        ),
    ] = 600.0  # Kafka's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """How the proxy stops."""

    drain_timeout_s: Annotated[
        float,
        Setting(
            "drain_timeout",
            Duration("0s", "1d"),
            "How long requests in flight may take to finish after a stop is asked for; 0s cuts them.",
            flag="--drain-timeout",
        ),
    ] = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """The HTTP server for health, metrics and quotas."""

    listen: Annotated[
        HostPort | None,
        Setting(
            "listen",
            Address(wildcard=True, any_port=True),
            "The admin server's address, host:port (port 0: any that is free); without it there is no admin server.",
            Reload.RESTART,
            "--admin",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What is logged, and how."""

    level: Annotated[
        LogLevel,
        Setting("level", Choice(LogLevel), "The least severe events that are logged.", flag="--log-level"),
    ] = LogLevel.INFO
    format: Annotated[
        LogFormat,
        Setting("format", Choice(LogFormat), "Lines for people, or JSON objects.", Reload.RESTART, "--log-format"),
    ] = LogFormat.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Whether quotas throttle, and whom they never do."""

    enabled: Annotated[
        bool, Setting("enabled", Boolean(), "Whether anybody is throttled; while false no quota callback is asked.")
    ] = True
    exempt_users: Annotated[
        tuple[str, ...],
        Setting("exempt_users", ListOf("a list of users", Text("a user")), "Users that no quota holds."),
    ] = ()
    exempt_client_ids: Annotated[
        tuple[str, ...],
        Setting(
            "exempt_client_ids", ListOf("a list of client ids", Text("a client id")), "Client ids that no quota holds."
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """Which plugins run, and with what options. All that are installed do, unless disabled."""

    disabled: Annotated[
        tuple[str, ...],
        Setting(
            "disabled",
            ListOf("a list of plugin names", Text("a plugin's name")),
            "Installed plugins (entry points headrace.plugins) that are not loaded, by name.",
            Reload.RESTART,
        ),
    ] = ()
    load: Annotated[
        tuple[str, ...],
        Setting(
            "load",
            ListOf(
                "a list of import paths",
                Text('an import path, such as "my_package.my_module:MyPlugin" or "my_module"', IMPORT_PATTERN),
            ),
            "Further plugins, by import path: module, or module:object.",
            Reload.RESTART,
        ),
    ] = ()
    on_error: Annotated[
        OnError,
        Setting(
            "on_error",
            Choice(OnError),
            "When a plugin raises: open lets the request through, closed refuses it.",
        ),
    ] = OnError.OPEN
    options: Annotated[
        Mapping[str, Mapping[str, object]],
        Setting("options", PluginOptions(), "A table of its own for each plugin, which checks it.", Reload.RESTART),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration of one proxy, as `loading` gives it: checked, with all defaults filled in."""

    upstream: Annotated[Upstream, Section("upstream", "The Kafka cluster behind the proxy.")]
    listen: Annotated[Listen, Section("listen", "Where clients connect.")]
    workers: Annotated[
        int,
        Setting(
            "workers",
            Workers(),
            'Processes that serve clients, on the same ports; "auto" is one for each core.',
            Reload.RESTART,
            "--workers",
        ),
    ] = 1
    """`config.workers.AUTO` stands for one for each core."""
    limits: Annotated[Limits, Section("limits", "Caps that keep one client from starving the others.")] = field(
        default_factory=Limits
    )
    shutdown: Annotated[Shutdown, Section("shutdown", "How the proxy stops.")] = field(default_factory=Shutdown)
    admin: Annotated[Admin, Section("admin", "The HTTP server for health, metrics and quotas.")] = field(
        default_factory=Admin
    )
    log: Annotated[Log, Section("log", "What is logged, and how.")] = field(default_factory=Log)
    enforcement: Annotated[Enforcement, Section("enforcement", "Whether quotas throttle, and whom.")] = field(
        default_factory=Enforcement
    )
    quota_window: Annotated[
        QuotaWindow, Section("quota.window", "What byte rates and request time are measured over.")
    ] = field(default_factory=QuotaWindow)
    controller_quota_window: Annotated[
        QuotaWindow, Section("controller.quota.window", "What sets the burst of controller_mutation_rate.")
    ] = field(default_factory=QuotaWindow)
    producer_id_quota: Annotated[
        ProducerIdQuota, Section("producer.id.quota", "The windows of producer_ids_rate (KIP-936).")
    ] = field(default_factory=ProducerIdQuota)
    quota_state: Annotated[QuotaState, Section("quota.state", "Where usage is kept over a restart.")] = field(
        default_factory=QuotaState
    )
    quotas: Annotated[
        tuple[ConfiguredQuota, ...],
        Setting("quotas", QuotaTables(), "Quotas that hold unless one is stored for the same entity and key."),
    ] = ()
    plugins: Annotated[Plugins, Section("plugins", "Which plugins run, and with what options.")] = field(
        default_factory=Plugins
    )

    def entity_quotas(self) -> dict[QuotaEntity, dict[QuotaKey, Quota]]:
        """All of ``quotas`` by entity."""
        return merged_quotas(self.quotas)

    def windows(self) -> dict[QuotaKey, Window]:
        """What each key is measured over."""
        broker, controller, ids = self.quota_window, self.controller_quota_window, self.producer_id_quota
        usual = Window(samples=broker.num, seconds=broker.size_s)
        return {
            QuotaKey.PRODUCER_BYTE_RATE: usual,
            QuotaKey.CONSUMER_BYTE_RATE: usual,
            QuotaKey.REQUEST_PERCENTAGE: usual,
            QuotaKey.CONTROLLER_MUTATION_RATE: Window(samples=controller.num, seconds=controller.size_s),
            QuotaKey.PRODUCER_IDS_RATE: Window(samples=ids.num, seconds=ids.size_s),
        }
