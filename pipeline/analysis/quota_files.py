"""Quotas as files: read for what-if, written by recommend.

Input is any configuration file of the proxy, or a file with nothing but its ``[[quotas]]`` and windows. Output are
``[[quotas]]`` tables for such a file, and commands for Kafka's ``kafka-configs``.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from headrace.config.loading import load_quotas
from headrace.config.problems import ConfigError
from headrace.pipeline.errors import InputError
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, QuotaKey
from headrace.quota_callbacks.records.replay import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.quota_callbacks.buckets.sampled_rate import Window

Entity = tuple[str | None, str | None]
"""User and client id. ``None``: not part of the entity; "<default>": the default user or client id."""


def read_quotas(path: str) -> tuple[list[Change], dict[QuotaKey, Window]]:
    """Return the quotas of a file, as changes at time 0, and their windows. Raises `InputError`."""
    try:
        quotas, windows = load_quotas(path)
    except ConfigError as error:
        raise InputError("\n".join(map(str, error.problems))) from error
    changes = [
        Change(t_ms=0, entity=entity, values={key: quota.value for key, quota in values.items()}, removed=())
        for entity, values in quotas.items()
    ]
    if not changes:
        raise InputError(f"{path} has no [[quotas]]")
    return changes, windows


def read_windows(path: str) -> dict[QuotaKey, Window]:
    """Return the windows of the quotas from a configuration file. Raises `InputError`."""
    try:
        return load_quotas(path)[1]
    except ConfigError as error:
        raise InputError("\n".join(map(str, error.problems))) from error


def as_toml(quotas: Mapping[Entity, Mapping[QuotaKey, tuple[float, str]]]) -> str:
    """Return ``[[quotas]]`` tables; each value is preceded by its reason as a comment."""
    return "\n".join(_table(entity, values) for entity, values in quotas.items())


def _table(entity: Entity, values: Mapping[QuotaKey, tuple[float, str]]) -> str:
    user, client_id = entity
    names = [
        f"{kind} = {_quoted(name)}" for kind, name in (("user", user), ("client-id", client_id)) if name is not None
    ]
    lines = ["[[quotas]]", f"entity = {{ {', '.join(names)} }}"]
    for key, (value, reason) in values.items():
        lines += [f"# {reason}", f"{key} = {_number(key, value)}"]
    return "\n".join(lines) + "\n"


def as_kafka_configs(quotas: Mapping[Entity, Mapping[QuotaKey, tuple[float, str]]], servers: str) -> Iterable[str]:
    """Yield shell commands that set the quotas; for ``producer_ids_rate``, which stock tools reject, a comment."""
    for (user, client_id), values in quotas.items():
        if "\0" in f"{user}{client_id}":
            yield "# left out: an entity with a NUL character in its name, which arguments cannot have; use [[quotas]]"
            continue
        entity = (*_named("users", user), *_named("clients", client_id))
        known = {key: value for key, (value, _) in values.items() if key is not QuotaKey.PRODUCER_IDS_RATE}
        if known:
            sets = ",".join(f"{key}={_number(key, value)}" for key, value in known.items())
            yield shlex.join(["kafka-configs", "--bootstrap-server", servers, "--alter", *entity, "--add-config", sets])
        if QuotaKey.PRODUCER_IDS_RATE in values:
            yield f"# {QuotaKey.PRODUCER_IDS_RATE}: only as [[quotas]], since kafka-configs does not support the key"


def _named(kind: str, name: str | None) -> tuple[str, ...]:
    if name is None:
        return ()
    return ("--entity-type", kind, *(("--entity-default",) if name == str(DEFAULT) else ("--entity-name", name)))


def _number(key: QuotaKey, value: float) -> str:
    return str(round(value)) if BUILTIN_SCHEMA.keys[key].integral else f"{value:.10g}"


def _quoted(text: str) -> str:
    """Return a TOML basic string. JSON's escapes are valid in TOML; JSON leaves DEL unescaped, which TOML does not
    allow.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
