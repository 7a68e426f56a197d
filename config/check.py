"""The report of ``headrace check-config``: a summary of a valid configuration, or all problems of an invalid one.

Called by the command line, which prints the lines and derives the exit status from ``ok``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.config.loading import load
from headrace.config.problems import ConfigError
from headrace.config.values import AUTO
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping

    from headrace.config.loading import PluginFaults
    from headrace.config.schema import Config, Listen
    from headrace.quota_callbacks.definitions import QuotaSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The lines to print, and the configuration if it is valid."""

    lines: tuple[str, ...]
    config: Config | None = None

    @property
    def ok(self) -> bool:
        """Whether the configuration is valid."""
        return self.config is not None

    def __str__(self) -> str:
        return "\n".join(self.lines)


def check(
    path: str | os.PathLike[str] | None,
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    plugins: Collection[str] | None = None,
    plugin_faults: PluginFaults | None = None,
    schema: QuotaSchema | None = BUILTIN_SCHEMA,
) -> CheckReport:
    """Load a configuration as `loading.load` does; return a report instead of raising.

    Opens no socket and has no side effects.
    """
    try:
        config = load(path, flags, environment=environment, plugins=plugins, plugin_faults=plugin_faults, schema=schema)
    except ConfigError as error:
        counted = _counted(len(error.problems), "problem", "s")
        return CheckReport(lines=(*map(str, error.problems), counted))
    return CheckReport(lines=tuple(summary(config)), config=config)


def summary(config: Config) -> list[str]:
    """Return a human-readable summary of a configuration, in lines that begin with ``ok:``."""
    upstream = ", ".join(map(str, config.upstream.bootstrap_servers))
    admin = "no admin server" if config.admin.listen is None else f"admin server at {config.admin.listen}"
    lines = (*_listeners(config.listen), *_workers(config.workers), f"upstream {upstream}", admin, _quotas(config))
    return [f"ok: {line}" for line in lines]


def _workers(workers: int) -> tuple[str, ...]:
    if workers == 1:
        return ()
    return ("a worker for each core",) if workers == AUTO else (f"{workers} workers",)


def _listeners(listen: Listen) -> tuple[str, str]:
    brokers = f"brokers {listen.node_ids} at ports {_ports(listen, listen.address.port)}"
    if listen.advertised.port != listen.address.port:
        brokers += f", advertised as {_ports(listen, listen.advertised.port)}"
    return f"listening at {listen.address}, advertised as {listen.advertised}", brokers


def _ports(listen: Listen, bootstrap_port: int) -> str:
    ranges = [(bootstrap_port + 1 + first, bootstrap_port + 1 + last) for first, last in listen.node_ids.ranges]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _quotas(config: Config) -> str:
    by_entity = config.entity_quotas()
    limits = sum(map(len, by_entity.values()))
    enforced = "enforcement on" if config.enforcement.enabled else "enforcement off"
    if not limits:
        return f"no quotas, {enforced}"
    return f"{_counted(limits, 'quota', 's')} for {_counted(len(by_entity), 'entit', 'ies', 'y')}, {enforced}"


def _counted(count: int, stem: str, many: str, one: str = "") -> str:
    return f"{count} {stem}{one if count == 1 else many}"
