"""The ``[[quotas]]`` of the file: entities and their limits, the floor under what AlterClientQuotas stores.

Called by `schema`. What a quota may be is `quota_callbacks.entities`' to say; here is how it is written.
"""
# Annotations are read at run time (`keys`), so they are not postponed here.

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from config.keys import Leaf, Setting, build, leaves, read_table, value_of
from config.kinds import Boolean, Choice, Duration, Fault, JsonSchema, Kind, UnfitError, did_you_mean
from config.units import SIZE_PATTERN, SIZE_UNITS, parse_size_bytes
from quota_callbacks.entities import DEFAULT, LONG_MAX, EntityName, QuotaEntity, QuotaKey, check_quota_value
from quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from quota_callbacks.verdicts import MAX_THROTTLE_MS

INT_MAX: Final = 2**31 - 1  # throttle_time_ms is an INT32

ENTITY_TYPES: Final = ("user", "client-id")
"""The entity types that a quota here can have, as Kafka's tools spell them (KIP-546)."""


class ByteRate(Kind[float]):
    """Bytes a second: a whole number, or a size with its unit. Kept as an int, since a LONG does not fit a double."""

    __slots__ = ("_key",)

    def __init__(self, key: QuotaKey) -> None:
        self._key = key
        units = ", ".join(SIZE_UNITS)
        self.expected = f'whole bytes a second, above 0 and at most {LONG_MAX}, or a size such as "2MiB" ({units})'

    def _read(self, raw: object) -> float:
        try:
            rate = parse_size_bytes(raw) if isinstance(raw, str) else raw
            checked = _checked(self._key, rate)
        except (ValueError, OverflowError):
            raise self.unfit(raw) from None
        return round(checked)

    def _schema(self) -> JsonSchema:
        number: JsonSchema = {"type": "integer", "exclusiveMinimum": 0, "maximum": LONG_MAX}
        return {"oneOf": [{"type": "string", "pattern": f"^{SIZE_PATTERN}$"}, number]}


class Positive(Kind[float]):
    """A finite number above 0."""

    __slots__ = ("_key",)

    def __init__(self, key: QuotaKey) -> None:
        self._key = key
        self.expected = "a finite number above 0"

    def _read(self, raw: object) -> float:
        try:
            return float(_checked(self._key, raw))
        except (ValueError, OverflowError):
            raise self.unfit(raw) from None

    def _schema(self) -> JsonSchema:
        return {"type": "number", "exclusiveMinimum": 0}


def _checked(key: QuotaKey, raw: object) -> float:
    if not isinstance(raw, int | float) or isinstance(raw, bool):
        raise ValueError(f"{raw!r} is not a number")  # noqa: TRY004  callers take every misfit alike
    check_quota_value(key, raw)
    return raw


class Entity(Kind[QuotaEntity]):
    """``{ user = "alice", client-id = "<default>" }``, at least one of the two."""

    __slots__ = ()

    def __init__(self) -> None:
        self.expected = 'a user, a client-id or both, such as { user = "alice", client-id = "<default>" }'

    def _read(self, raw: object) -> QuotaEntity:
        if not isinstance(raw, Mapping) or not raw:
            raise self.unfit(raw)
        names: dict[str, EntityName] = {}
        faults: list[Fault] = []
        for entity_type, name in raw.items():
            if entity_type not in ENTITY_TYPES:
                hint = did_you_mean(entity_type, ENTITY_TYPES) or f"known: {', '.join(ENTITY_TYPES)}"
                faults.append(Fault(path=(entity_type,), rule=f"unknown entity type; {hint}"))
            elif not isinstance(name, str) or not name:
                rule = 'expected a name, or "<default>" for the default entity'
                faults.append(Fault(path=(entity_type,), rule=rule, found=name))
            else:
                names[entity_type] = DEFAULT if name == str(DEFAULT) else name
        if faults:
            raise UnfitError(faults)
        return QuotaEntity(user=names.get("user"), client_id=names.get("client-id"))

    def _spell(self, value: QuotaEntity) -> object:
        names = {"user": value.user, "client-id": value.client_id}
        return {entity_type: str(name) for entity_type, name in names.items() if name is not None}

    def _schema(self) -> JsonSchema:
        name = {"type": "string", "minLength": 1}
        return {
            "type": "object",
            "properties": dict.fromkeys(ENTITY_TYPES, name),
            "additionalProperties": False,
            "minProperties": 1,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredQuota:
    """One ``[[quotas]]`` table: an entity and at least one limit."""

    entity: Annotated[
        QuotaEntity,
        Setting("entity", Entity(), "Who it is for: a user, a client id or a pair; <default> is all others."),
    ]
    producer_byte_rate: Annotated[
        float | None,
        Setting(
            "producer_byte_rate", ByteRate(QuotaKey.PRODUCER_BYTE_RATE), "Bytes a second that it may produce (KIP-13)."
        ),
    ] = None
    consumer_byte_rate: Annotated[
        float | None,
        Setting(
            "consumer_byte_rate", ByteRate(QuotaKey.CONSUMER_BYTE_RATE), "Bytes a second that it may fetch (KIP-13)."
        ),
    ] = None
    request_percentage: Annotated[
        float | None,
        Setting(
            "request_percentage",
            Positive(QuotaKey.REQUEST_PERCENTAGE),
            "Thread time in percent of one thread; above 100 is more than one thread (KIP-124).",
        ),
    ] = None
    controller_mutation_rate: Annotated[
        float | None,
        Setting(
            "controller_mutation_rate",
            Positive(QuotaKey.CONTROLLER_MUTATION_RATE),
            "Partitions created, added or deleted a second (KIP-599).",
        ),
    ] = None
    producer_ids_rate: Annotated[
        float | None,
        Setting(
            "producer_ids_rate",
            Positive(QuotaKey.PRODUCER_IDS_RATE),
            "New producer ids in producer.id.quota.window.size.seconds; for users only (KIP-936).",
        ),
    ] = None

    enforcement: Annotated[
        EnforcementMode,
        Setting(
            "enforcement",
            Choice(EnforcementMode),
            "kafka: the broker's arithmetic, each connection delayed by itself; paced: the entity's connections take "
            "turns, so that the limit holds however many there are.",
        ),
    ] = EnforcementMode.KAFKA
    observe: Annotated[
        bool,
        Setting(
            "observe",
            Boolean(),
            "Shadow mode: measured, logged, counted and traced as if it were enforced, and nobody is throttled.",
        ),
    ] = False
    burst_s: Annotated[
        float | None,
        Setting(
            "burst",
            Duration("0s", "30d"),
            "Paced only: how much may come at once, as a time at the limit; 1s, and for controller_mutation_rate and "
            "producer_ids_rate their whole window, unless given.",
        ),
    ] = None
    longest_throttle_s: Annotated[
        float | None,
        Setting(
            "longest_throttle",
            Duration("1ms", f"{INT_MAX // 1000}s"),
            "Nobody is throttled for longer at a time; what is owed stays owed.",
        ),
    ] = None

    def limits(self) -> dict[QuotaKey, float]:
        """The limits that are set, in the units of their keys."""
        limits = {key: getattr(self, key.value) for key in QuotaKey}
        return {key: limit for key, limit in limits.items() if limit is not None}

    def policy(self) -> QuotaPolicy:
        """How they are enforced."""
        longest_s = self.longest_throttle_s
        return QuotaPolicy(
            mode=self.enforcement,
            observe=self.observe,
            burst_s=self.burst_s,
            longest_throttle_ms=MAX_THROTTLE_MS if longest_s is None else round(longest_s * 1000),
        )


def merged_quotas(quotas: tuple[ConfiguredQuota, ...]) -> dict[QuotaEntity, dict[QuotaKey, Quota]]:
    """All quotas by entity; an entity may have stood in several tables, with different keys."""
    merged: dict[QuotaEntity, dict[QuotaKey, Quota]] = {}
    for table in quotas:
        policy = table.policy()
        of_entity = merged.setdefault(table.entity, {})
        of_entity.update((key, Quota(value=limit, policy=policy)) for key, limit in table.limits().items())
    return merged


class QuotaTables(Kind[tuple[ConfiguredQuota, ...]]):
    """The array of ``[[quotas]]`` tables."""

    __slots__ = ()

    def __init__(self) -> None:
        self.expected = "tables, each headed [[quotas]]"

    def _read(self, raw: object) -> tuple[ConfiguredQuota, ...]:
        if not isinstance(raw, list):
            raise self.unfit(raw)
        quotas: list[ConfiguredQuota] = []
        faults: list[Fault] = []
        first_set: dict[tuple[QuotaEntity, QuotaKey], int] = {}
        for index, table in enumerate(raw):
            try:
                quota = _read_quota(table)
            except UnfitError as unfit:
                faults += (fault.under(index) for fault in unfit.faults)
                continue
            quotas.append(quota)
            for key in quota.limits():
                first = first_set.setdefault((quota.entity, key), index)
                if first != index:
                    rule = f"set twice for {quota.entity}"
                    faults.append(Fault(path=(index, key.value), rule=rule, first=(first, key.value)))
        if faults:
            raise UnfitError(faults)
        return tuple(quotas)

    def _spell(self, value: tuple[ConfiguredQuota, ...]) -> object:
        return [
            {
                leaf.key: leaf.setting.kind.to_toml(value_of(quota, leaf))
                for leaf in _KEYS
                if leaf.required or value_of(quota, leaf) != leaf.default
            }
            for quota in value
        ]

    def _schema(self) -> JsonSchema:
        properties = {leaf.key: leaf.setting.kind.json_schema() | {"description": leaf.setting.doc} for leaf in _KEYS}
        users_only = {"properties": {"entity": {"not": {"required": ["client-id"]}}}}
        return {
            "type": "array",
            "items": {
                "type": "object",
                "properties": properties,
                "additionalProperties": False,
                "required": [leaf.key for leaf in _KEYS if leaf.required],
                "anyOf": [{"required": [key.value]} for key in QuotaKey],
                "dependentSchemas": {QuotaKey.PRODUCER_IDS_RATE.value: users_only},
            },
        }


_KEYS: Final = leaves(ConfiguredQuota)
_POLICY_KEYS: Final = ("enforcement", "observe", "burst", "longest_throttle")


def _read_quota(table: object) -> ConfiguredQuota:
    if not isinstance(table, Mapping):
        raise UnfitError([Fault(rule="expected a table, headed [[quotas]]", found=table)])
    reading = read_table(ConfiguredQuota, table)
    faults = [*reading.faults, *_faults_between_keys(table, reading.values)]
    faults += (
        Fault(rule=f"no {leaf.key}; expected {leaf.setting.kind.expected}") for leaf in reading.missing(ConfiguredQuota)
    )
    if faults:
        raise UnfitError(faults)
    return build(ConfiguredQuota, reading.values)


def _faults_between_keys(table: Mapping[str, object], values: Mapping[Leaf, object]) -> Iterator[Fault]:
    keys = [key.value for key in QuotaKey]
    if table.keys() <= {
        "entity",
        *_POLICY_KEYS,
    }:  # an unknown key is a fault by itself, and probably a limit misspelled
        yield Fault(rule=f"limits nothing; expected at least one of {', '.join(keys)}")
    by_key = {leaf.key: value for leaf, value in values.items()}
    if "burst" in by_key and by_key.get("enforcement") is not EnforcementMode.PACED:
        rule = 'only with enforcement = "paced"; Kafka\'s way has the burst of its window'
        yield Fault(path=("burst",), found=table["burst"], rule=rule)
    entity = by_key.get("entity")
    key = QuotaKey.PRODUCER_IDS_RATE
    if isinstance(entity, QuotaEntity) and entity.client_id is not None and key.value in by_key:
        rule = f"for users only (KIP-936), not for {entity}; the entity must have no client-id"
        yield Fault(path=(key.value,), found=table[key.value], rule=rule)
