"""Client quotas in DescribeClientQuotas and AlterClientQuotas (KIP-546): filters, alterations, and their messages.

The classes are those of ``org.apache.kafka.common.quota``. Entities are
`headrace.quota_callbacks.entities.QuotaEntity`, whose default is `DEFAULT`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.kafka_client.calls import Call, Target
from headrace.proxy.kafka_client.errors import BadReplyError, KafkaClientError, SettingsError, broker_error
from headrace.proxy.kafka_client.results import Results
from headrace.proxy.wire.client_quotas import MatchType
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, Default, QuotaEntity, QuotaKey
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.proxy.kafka_client.errors import BrokerError
    from headrace.proxy.wire.messages.codec import Message
    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.entities import EntityName


class AnyName(Enum):
    """What matches every entity that has the entity type, the default included."""

    ANY_NAME = "<any>"

    def __str__(self) -> str:
        return self.value


ANY_NAME: Final = AnyName.ANY_NAME

NameMatch: TypeAlias = "str | Default | AnyName"

_UNKNOWN_KEY: Final = "configuration key"  # ClientQuotaControlManager: "Invalid configuration key ..."
_UNKNOWN_TYPE: Final = "entity type"  # "Unhandled client quota entity type: ..."; ClientQuotasImage: "Unsupported ..."
_NEEDED: Final = "it may need a newer version of Kafka, or, if it is a proxy, a plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterComponent:
    """A condition on one entity type: by a name, `DEFAULT`, or `ANY_NAME` (``ClientQuotaFilterComponent``)."""

    entity_type: str
    """`headrace.quota_callbacks.entities.USER`, ``CLIENT_ID``, ``IP``, or a type of a plugin."""
    name: NameMatch


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFilter:
    """A filter for entities that match every component (``ClientQuotaFilter``).

    With ``strict``, entities with further entity types do not match. A filter without components matches every entity,
    or with ``strict`` none.
    """

    components: tuple[FilterComponent, ...] = ()
    strict: bool = False

    @classmethod
    def of(cls, names: Mapping[str, NameMatch], *, strict: bool = False) -> QuotaFilter:
        """Return the filter with one component for each entity type, such as ``{"user": "alice"}``."""
        components = tuple(FilterComponent(entity_type=each, name=name) for each, name in names.items())
        return cls(components=components, strict=strict)

    def matches(self, entity: QuotaEntity) -> bool:
        """Return whether an entity matches. Names are compared as they are."""
        names = dict(entity.parts())
        for each in self.components:
            name = names.get(each.entity_type)
            if name is None or (each.name is not ANY_NAME and each.name != name):
                return False
        return not self.strict or 0 < len(self.components) == len(names)


EVERY_QUOTA: Final = QuotaFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAlteration:
    """New values of some quota keys of one entity; ``None`` removes the key (``ClientQuotaAlteration``)."""

    entity: QuotaEntity
    values: Mapping[str, float | None] = field(default_factory=dict)


def describe_call(wanted: QuotaFilter) -> Call:
    """Return the DescribeClientQuotas request."""
    rows = []
    for each in wanted.components:
        match each.name:
            case Default():
                kind, name = MatchType.DEFAULT, None
            case AnyName():
                kind, name = MatchType.SPECIFIED, None
            case str():
                kind, name = MatchType.EXACT, each.name
        rows.append({"entity_type": each.entity_type, "match_type": kind, "match": name})
    message: Message = {"components": rows, "strict": wanted.strict}
    return Call(
        api_key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
        target=Target.ANY,
        build=lambda _version, _timeout_ms: message,
        error_codes=lambda reply: (reply["error_code"],),
    )


def read_remark(reply: Message) -> str:
    """Return the message of a description without an error, such as a remark of the proxy. Raises `BrokerError`."""
    code, message = reply["error_code"], reply["error_message"]
    if code:
        raise broker_error(code, message, explanation=_explanation(code, message))
    return message or ""


def read_description(reply: Message) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas of each entity of a description without an error. Raises `BadReplyError`.

    Takes the rows out of ``reply``, so that their memory is freed here, row by row, and not by the caller at once.
    """
    rows = (reply.pop("entries") or [])[::-1]
    found: dict[QuotaEntity, dict[str, float]] = {}
    while rows:
        row = rows.pop()
        found[_entity(row["entity"])] = {value["key"]: value["value"] for value in row["values"]}
    return found


def alter_call(alterations: Sequence[QuotaAlteration], *, validate_only: bool) -> Call:
    """Return the AlterClientQuotas request.

    Raises `SettingsError` for an entity that occurs twice, and for a value that is not a number.
    """
    for entity, count in Counter(each.entity for each in alterations).items():
        if count > 1:
            raise SettingsError(f"the quotas of {entity} are altered {count} times in one call; once is allowed")
    rows = [
        {
            "entity": [{"entity_type": each, "entity_name": _wire_name(name)} for each, name in one.entity.parts()],
            "ops": [
                {"key": str(key), "value": _wire_value(one.entity, key, value), "remove": value is None}
                for key, value in one.values.items()
            ],
        }
        for one in alterations
    ]
    message: Message = {"entries": rows, "validate_only": validate_only}
    return Call(
        api_key=ApiKey.ALTER_CLIENT_QUOTAS,
        target=Target.ANY,
        build=lambda _version, _timeout_ms: message,
        error_codes=lambda reply: (row["error_code"] for row in reply["entries"]),
    )


def read_alterations(alterations: Sequence[QuotaAlteration], reply: Message) -> Results[QuotaEntity, None]:
    """Return the result of each entity's alteration."""
    found: dict[QuotaEntity, KafkaClientError | None] = {}
    values = {each.entity: each.values for each in alterations}
    for row in reply["entries"]:
        code, message, entity = row["error_code"], row["error_message"], _entity(row["entity"])
        found[entity] = None
        if code:
            explanation = misplaced_key(BUILTIN_SCHEMA, message, entity, values.get(entity, ()))
            found[entity] = broker_error(code, message, explanation=explanation or _explanation(code, message))
    missing = BadReplyError("the broker's reply has no result for the entity")
    return Results(outcomes={each.entity: found.get(each.entity, missing) for each in alterations})


def _wire_value(entity: QuotaEntity, key: str, value: float | None) -> float:
    try:
        return 0.0 if value is None else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SettingsError(f"{key} of {entity} = {value!r}: expected a number, or None to remove the quota") from error


def _wire_name(name: EntityName) -> str | None:
    return None if isinstance(name, Default) else name


def _entity(rows: Sequence[Message]) -> QuotaEntity:
    parts: dict[str, EntityName] = {
        row["entity_type"]: DEFAULT if row["entity_name"] is None else row["entity_name"] for row in rows
    }
    try:
        return QuotaEntity.of(parts)
    except ValueError as error:
        raise BadReplyError(f"the broker's reply has an invalid entity: {error}") from error


def misplaced_key(schema: QuotaSchema, message: str | None, entity: QuotaEntity, keys: Iterable[str]) -> str:
    """Return which entities can have the key that ``message`` refuses; "" unless the key is one for other entities."""
    if message is None or _UNKNOWN_KEY not in message.lower():
        return ""
    entity_types = frozenset(each for each, _ in entity.parts())
    rules = (schema.misplaced(key, entity_types) for key in keys if message.endswith(f" {key}"))
    return next(filter(None, rules), "")


def refuses_key(error: BrokerError) -> bool:
    """Return whether the broker refuses a quota key that it does not know for the entity."""
    return error.code == ErrorCode.INVALID_REQUEST and _UNKNOWN_KEY in error.message.lower()


def refuses_type(error: BrokerError) -> bool:
    """Return whether the broker refuses an entity type that it does not know."""
    return _refuses_type(error.code, error.message.lower())


def _refuses_type(code: int, message: str) -> bool:
    return code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION) and _UNKNOWN_TYPE in message


def _explanation(code: int, message: str | None) -> str:
    """Return what an operator should know about an error; "" if the broker's message says it all."""
    about = (message or "").lower()
    if code == ErrorCode.INVALID_REQUEST and _UNKNOWN_KEY in about:
        if about.endswith(f" {QuotaKey.PRODUCER_IDS_RATE}"):
            return "no version of Kafka has this quota key (KIP-936), and a proxy has it for users"
        return f"the broker has the API, but not this quota key for this entity; {_NEEDED}"
    if _refuses_type(code, about):
        return f"the broker has the API, but not this entity type; {_NEEDED}"
    return ""
