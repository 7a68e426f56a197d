"""The report of ``headrace check-config``: a summary of a valid configuration, or all problems of an invalid one.

Called by the command line, which prints the lines and derives the exit status from ``config``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.config.problems import ConfigError
from headrace.config.schema import DataPlane
from headrace.config.values import AUTO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.config.schema import Config
    from headrace.config.tables.admin import Admin
    from headrace.config.tables.listeners import Listen, ListenerTables, Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The lines to print, and the configuration if it is valid."""

    lines: tuple[str, ...]
    config: Config | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines)


def check(read: Callable[[], Config]) -> CheckReport:
    """Return a report of the configuration that ``read`` returns, or of the problems in the `ConfigError` it raises.

    ``read`` is a call of `headrace.config.loading.load`. Opens no socket and has no side effects.
    """
    try:
        config = read()
    except ConfigError as error:
        counted = _counted(len(error.problems), "problem", "s")
        return CheckReport(lines=(*map(str, error.problems), counted))
    return CheckReport(lines=tuple(summary(config)), config=config)


def summary(config: Config) -> list[str]:
    """Return a human-readable summary of a configuration, in lines that begin with ``ok:``."""
    listeners = [line for each in config.all_listeners() for line in _listener(each)]
    lines = (*listeners, *_threads(config), _upstream(config.upstream), _admin(config.admin), _quotas(config))
    return [f"ok: {line}" for line in lines]


def _admin(admin: Admin) -> str:
    if admin.listen is None:
        return "no admin server"
    return f"admin server at {admin.listen}{'' if admin.tls.certificate_file is None else ' with TLS'}"


def _threads(config: Config) -> tuple[str, ...]:
    threads = config.data_plane_threads
    if threads == 1 or config.data_plane is DataPlane.PYTHON:
        return ()
    return ("a native thread for each core",) if threads == AUTO else (f"{threads} native threads",)


def _listener(tables: ListenerTables) -> Iterator[str]:
    listen = tables.listen
    name = "" if tables.setting == "listen" else f"{tables.setting} "
    tls = " with TLS" if listen.tls.certificate_file is not None else ""
    yield f"{name}listening at {listen.address}{tls}, advertised as {listen.advertised}"
    if listen.broker_host is not None:
        yield f"{name}brokers {listen.node_ids} advertised as {listen.broker_host}:{listen.advertised.port}"
    else:
        brokers = f"{name}brokers {listen.node_ids} at ports {_ports(listen, listen.address.port)}"
        if listen.advertised.port != listen.address.port:
            brokers += f", advertised as {_ports(listen, listen.advertised.port)}"
        yield brokers
    if tables.upstream_setting != "upstream":
        yield f"{name}{_upstream(tables.upstream)}"


def _upstream(upstream: Upstream) -> str:
    return f"upstream {', '.join(map(str, upstream.bootstrap_servers))}"


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
