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
from headrace.quota_callbacks.escaping import printable
from headrace.quota_callbacks.records.replay import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.entities import QuotaEntity

Entity = tuple[str | None, str | None]
"""User and client id. ``None``: not part of the entity; "<default>": the default user or client id."""


def read_quotas(path: str) -> tuple[list[Change], dict[QuotaKey, Window]]:
    """Return the quotas of a file, as changes at time 0, and their windows. Raises `InputError`."""
    quotas, windows = read_configuration(path)
    if not quotas:
        raise InputError(f"{path} has no [[quotas]]")
    return [Change(t_ms=0, entity=entity, values=values, removed=()) for entity, values in quotas.items()], windows


def read_configuration(path: str) -> tuple[dict[QuotaEntity, dict[QuotaKey, float]], dict[QuotaKey, Window]]:
    """Return the quotas of a file, which may have none, and their windows. Raises `InputError`."""
    try:
        quotas, windows = load_quotas(path)
    except ConfigError as error:
        raise InputError("\n".join(map(str, error.problems))) from error
    return {entity: {key: quota.value for key, quota in each.items()} for entity, each in quotas.items()}, windows


def entity_of(quota: QuotaEntity) -> Entity:
    """Return the names of the entity that a quota is for."""
    user, client_id = (None if name is None else str(name) for name in (quota.user, quota.client_id))
    return user, client_id


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
        lines += [f"# {printable(reason)}", f"{key} = {_number(key, value)}"]
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
    """Return a TOML basic string. JSON's escapes are valid in TOML; other characters that are not printable are escaped
    as well, since the file is read by people.
    """
    return "".join(
        each if each.isprintable() else f"\\U{ord(each):08X}" for each in json.dumps(text, ensure_ascii=False)
    )
