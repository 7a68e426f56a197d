"""The declaration of all configuration keys: type, default, valid values, and whether a change needs a restart.

The loader, the flags, the environment variables, the JSON Schema, the tests of the sample file and the comparison at a
reload are derived from it (see `keys`). To add a key, add a field here and its lines to `headrace.sample.toml`.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field, PrivateAttr

from headrace.config.keys import Key, Section
from headrace.config.problems import ConfigValueError, Problem, problem_without_position
from headrace.config.quotas import QUOTA_TABLES, ConfiguredQuota, merged_quotas
from headrace.config.tables.admin import Admin
from headrace.config.tables.client_quotas import ClientQuotas
from headrace.config.tables.limits import Limits
from headrace.config.tables.listeners import FURTHER_LISTENERS, FurtherListener, Listen, ListenerTables, Upstream
from headrace.config.tables.plugins import Plugins
from headrace.config.tables.windows import BrokerQuota, Controller, Producer
from headrace.config.values import thread_count
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.definitions import INT_MAX
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.options import TRUE_OR_FALSE, Fault, choice, list_of, text, whole
from headrace.quota_callbacks.policies import Quota
from headrace.quota_callbacks.units import duration, size
from headrace.quota_callbacks.value_texts import Path


class LogLevel(StrEnum):
    """The lowest level of events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


class DataPlane(StrEnum):
    """The implementation that relays connections as long as their requests need no decision."""

    AUTO = "auto"
    NATIVE = "native"
    PYTHON = "python"


class Shutdown(Section):
    """Stopping the proxy."""

    drain_timeout_s: Annotated[
        float,
        duration("0s", "1d"),
        Key(
            "Timeout for requests in flight when the proxy stops; 0s closes their connections immediately.",
            flag="--drain-timeout",
        ),
    ] = 30.0


class Log(Section):
    """Logging."""

    level: Annotated[
        LogLevel, choice(LogLevel), Key("The lowest level of events that are logged.", flag="--log-level")
    ] = LogLevel.INFO
    format: Annotated[
        LogFormat,
        choice(LogFormat),
        Key("text: human-readable lines; json: JSON objects.", restart=True, flag="--log-format"),
    ] = LogFormat.TEXT
    lines_per_minute: Annotated[
        int,
        whole(1, 1_000_000),
        Key(
            "Maximum number of lines a minute of each kind that clients can cause, such as faults of connections and "
            "throttled requests; the next line states how many were left out. Debug lines are not limited."
        ),
    ] = 100
    max_queued_lines: Annotated[
        int,
        whole(1, 10_000_000),
        Key("Maximum number of lines that wait to be written; further ones are dropped and counted.", restart=True),
    ] = 10_000
    max_queued_bytes: Annotated[
        int,
        size("1KiB", f"{INT_MAX}B"),
        Key("Maximum size of the lines that wait to be written; further ones are dropped.", restart=True),
    ] = 4 * 2**20


class Enforcement(Section):
    """Whether quotas are enforced, and exempt clients."""

    enabled: Annotated[
        bool, TRUE_OR_FALSE, Key("Whether quotas are enforced; if false, no quota callback is called.")
    ] = True
    exempt_users: Annotated[
        tuple[Annotated[str, text("a user")], ...],
        list_of("a list of users"),
        Key("Users that are exempt from all quotas."),
    ] = ()
    exempt_client_ids: Annotated[
        tuple[Annotated[str, text("a client id")], ...],
        list_of("a list of client ids"),
        Key("Client ids that are exempt from all quotas."),
    ] = ()


REMOVED: Final[Mapping[Path, str]] = {
    ("producer", "id", "quota", "cache"): (
        "cache.cleanup.scheduler.interval.ms was removed, since nothing reads it: expired filters of producer ids are "
        "dropped at the next look-up, without a scheduler; delete the line"
    ),
    ("watchdog",): (
        "removed, together with the worker processes that it supervised; delete it. The service manager restarts a "
        "proxy that hangs (WatchdogSec of systemd)"
    ),
}
"""Keys of earlier versions, with the error message for each."""


QuotaTables: TypeAlias = Mapping[int, Mapping[str, Any]]
"""``[[quotas]]`` tables as they are in the file, by index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncheckedQuotas:
    """The input of those checks of the ``[[quotas]]`` tables that are made after the plugins are loaded."""

    with_other_names: QuotaTables
    """The tables with names that are not built in."""
    locate: Callable[[Fault], Problem]
    """Returns a fault with its position. The first call parses the file's text again: seconds for a large file."""


class Config(Section):
    """The validated configuration of a proxy, including all defaults."""

    upstream: Upstream
    listen: Listen
    listeners: Annotated[
        Mapping[str, FurtherListener],
        FURTHER_LISTENERS,
        Key(
            "Further listeners by name, with the keys of [listen], each with its own security and brokers.",
            restart=True,
        ),
    ] = {}
    data_plane: Annotated[
        DataPlane,
        choice(DataPlane),
        Key(
            "What relays connections while nothing has to be decided: native, threads without the interpreter's lock; "
            "python, the event loop; or auto, native if the extension module is installed.",
            restart=True,
            flag="--data-plane",
        ),
    ] = DataPlane.AUTO
    data_plane_threads: Annotated[
        int,
        thread_count(),
        Key(
            'Number of threads of the native data plane; "auto" is one per core.',
            restart=True,
            flag="--data-plane-threads",
        ),
    ] = 1
    """If only ``workers`` is set, this is the value of ``workers``. `headrace.config.values.AUTO` stands for one thread
    per core."""
    workers: Annotated[int | None, thread_count(), Key("Deprecated: sets data_plane_threads.", flag="--workers")] = None
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
        Key("The quotas: for each table, an entity and its limits."),
    ] = ()
    client_quotas: ClientQuotas = Field(default_factory=ClientQuotas)
    plugins: Plugins = Field(default_factory=Plugins)
    _unchecked_quotas: UncheckedQuotas | None = PrivateAttr(default=None)

    @property
    def tables_with_other_names(self) -> QuotaTables:
        """The tables of ``quotas`` whose names are to be checked once the plugins are loaded (`quota_names`)."""
        return {} if self._unchecked_quotas is None else self._unchecked_quotas.with_other_names

    def quotas_were_checked(self, *, waiting: UncheckedQuotas | None = None) -> None:
        """Note that ``quotas`` are checked, except for ``waiting``."""
        self._unchecked_quotas = waiting

    def error_of(self, faults: Iterable[Fault]) -> ConfigValueError:
        """Return faults of ``quotas`` as an error, with their positions unless `quotas_were_checked` was called.

        Takes seconds for a large file: call it in a thread, not on the event loop.
        """
        waiting = self._unchecked_quotas
        return ConfigValueError(map(problem_without_position if waiting is None else waiting.locate, faults))

    def all_listeners(self) -> tuple[ListenerTables, ...]:
        """Return the tables of all listeners; the first one is ``[listen]``."""
        first = ListenerTables(
            setting="listen", listen=self.listen, upstream_setting="upstream", upstream=self.upstream
        )
        return first, *(self._tables_of(name, table) for name, table in self.listeners.items())

    def _tables_of(self, name: str, table: FurtherListener) -> ListenerTables:
        setting = f"listeners.{name}"
        if table.upstream is None:
            return ListenerTables(setting=setting, listen=table, upstream_setting="upstream", upstream=self.upstream)
        return ListenerTables(
            setting=setting, listen=table, upstream_setting=f"{setting}.upstream", upstream=table.upstream
        )

    def entity_quotas(self) -> dict[QuotaEntity, dict[str, Quota]]:
        """Return ``quotas`` by entity and key."""
        return merged_quotas(self.quotas)

    def windows(self) -> dict[QuotaKey, Window]:
        """Return the window of each quota key."""
        usual, ids = self.quota.window.rate_window, self.producer.id.quota.window
        return {
            QuotaKey.PRODUCER_BYTE_RATE: usual,
            QuotaKey.CONSUMER_BYTE_RATE: usual,
            QuotaKey.REQUEST_PERCENTAGE: usual,
            QuotaKey.CONTROLLER_MUTATION_RATE: self.controller.quota.window.rate_window,
            QuotaKey.PRODUCER_IDS_RATE: Window(samples=ids.num, seconds=ids.size.seconds),
        }
