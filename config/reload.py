"""The difference between two configurations, and which changes take effect without a restart.

Called by the proxy at a reload. Compares typed values, so that a different notation of the same value is not a change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from headrace.config.keys import Key, Leaf, Section, keys
from headrace.config.quotas import LIMIT_KEYS
from headrace.config.schema import Config
from headrace.quota_callbacks.policies import KAFKA_POLICY, Quota
from headrace.quota_callbacks.value_texts import dotted, value_text

if TYPE_CHECKING:
    from headrace.quota_callbacks.entities import QuotaEntity

_QUOTAS = ("quotas",)
_PLUGIN_OPTIONS = ("plugins", "options")
_TABLES_BY_NAME = (_PLUGIN_OPTIONS, ("listeners",))
"""Keys whose values are tables with names of the user's own; of a change only the name is shown."""

_Options: TypeAlias = Mapping[str, Mapping[str, object]]
"""The options of plugins by their names."""

SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A key with a new value. ``old`` and ``new`` are typed; None is a key that is not set."""

    key: str
    old: object = field(repr=False)
    new: object = field(repr=False)
    needs_restart: bool
    text: str
    """``old -> new`` in the form of the file; for the tables of listeners and of plugins, whose options may be secrets,
    what was done."""

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" + (" (needs a restart)" if self.needs_restart else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """A quota that was set (``old`` None), changed, or removed (``new`` None). Takes effect immediately."""

    entity: QuotaEntity
    key: str
    old: Quota | None
    new: Quota | None

    def __str__(self) -> str:
        return f"quota {self.key} of {self.entity}: {_limit(self.old)} -> {_limit(self.new)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDiff:
    """The changes, and the configuration to run with until the next restart."""

    settings: tuple[SettingChange, ...]
    quotas: tuple[QuotaChange, ...]
    effective: Config
    """The new values of the keys that take effect immediately, and the old values of those that need a restart."""

    def __bool__(self) -> bool:
        return bool(self.settings or self.quotas)

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.settings, *self.quotas))) or "nothing changed"

    @property
    def at_once(self) -> tuple[SettingChange | QuotaChange, ...]:
        """The changes that take effect immediately."""
        return (*(change for change in self.settings if not change.needs_restart), *self.quotas)

    @property
    def needs_restart(self) -> tuple[SettingChange, ...]:
        """The changes that take effect after a restart."""
        return tuple(change for change in self.settings if change.needs_restart)


def diff(old: Config, new: Config, changeable: Collection[str] = ()) -> ConfigDiff:
    """Return the changes from the running configuration to a newly loaded one.

    ``changeable`` are the names of the plugins whose options take effect without a restart.
    """
    settings = [
        change
        for leaf in keys(Config)
        if leaf.path != _QUOTAS and leaf.value_of(old) != leaf.value_of(new)
        for change in _changes(leaf, old, new, changeable)
    ]
    effective = _effective(old, new)
    options = _options_in_force(old.plugins.options, new.plugins.options, changeable)
    return ConfigDiff(
        settings=tuple(settings),
        quotas=tuple(_quota_changes(old.entity_quotas(), new.entity_quotas())),
        effective=effective.model_copy(update={"plugins": effective.plugins.model_copy(update={"options": options})}),
    )


def _options_in_force(old: _Options, new: _Options, changeable: Collection[str]) -> _Options:
    """Return the options of all plugins to run with until the next restart."""
    return {
        name: table for name in {**old, **new} if (table := (new if name in changeable else old).get(name)) is not None
    }


def _effective(old: SectionT, new: SectionT) -> SectionT:
    """Return the new section with the old values of the keys that need a restart."""
    values: dict[str, object] = {}
    for name, about in type(new).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Section) and isinstance(after, Section):
            values[name] = _effective(before, after)
        elif any(isinstance(each, Key) and each.restart for each in about.metadata):
            values[name] = before
    return new.model_copy(update=values)


def _changes(leaf: Leaf, old: Config, new: Config, changeable: Collection[str]) -> Iterator[SettingChange]:
    restart = leaf.about.restart
    before, after = leaf.value_of(old), leaf.value_of(new)
    if leaf.path in _TABLES_BY_NAME and isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            was, will = before.get(name), after.get(name)
            if was != will:
                text = "added" if was is None else "removed" if will is None else "changed"
                key = dotted((*leaf.path, name))
                needs_restart = restart and not (leaf.path == _PLUGIN_OPTIONS and name in changeable)
                yield SettingChange(key=key, old=was, new=will, needs_restart=needs_restart, text=text)
        return
    text = f"{_value_text(leaf, old)} -> {_value_text(leaf, new)}"
    yield SettingChange(key=leaf.key, old=before, new=after, needs_restart=restart, text=text)


def _value_text(leaf: Leaf, config: Config) -> str:
    value = leaf.file_value_in(config)
    return "not set" if value is None else value_text(leaf.path, value)


def _quota_changes(
    old: Mapping[QuotaEntity, Mapping[str, Quota]], new: Mapping[QuotaEntity, Mapping[str, Quota]]
) -> Iterator[QuotaChange]:
    for entity in {**old, **new}:
        mine, others = old.get(entity, {}), new.get(entity, {})
        of_plugins = sorted({*mine, *others}.difference(LIMIT_KEYS))
        for key in (*LIMIT_KEYS, *of_plugins):
            before, after = mine.get(key), others.get(key)
            if before != after:
                yield QuotaChange(entity=entity, key=key, old=before, new=after)


def _limit(quota: Quota | None) -> str:
    if quota is None:
        return "none"
    value, policy = quota.value, quota.policy
    parts = [f"{value:g}" if isinstance(value, float) else str(value)]
    if policy.mode is not KAFKA_POLICY.mode:
        parts.append(policy.mode.value)
    if policy.observe:
        parts.append("observed")
    if policy.burst_s is not None:
        parts.append(f"burst {policy.burst_s:g} s")
    if policy.longest_throttle_ms != KAFKA_POLICY.longest_throttle_ms:
        parts.append(f"longest throttle {policy.longest_throttle_ms} ms")
    if policy.new_connections is not KAFKA_POLICY.new_connections:
        parts.append(f"new connections: {policy.new_connections}")
    return ", ".join(parts)
