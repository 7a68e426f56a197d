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
from headrace.proxy.kafka_client.error_codes import ErrorCode
from headrace.proxy.kafka_client.errors import BadReplyError, KafkaClientError, SettingsError, broker_error
from headrace.proxy.kafka_client.results import Results
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import DEFAULT, Default, QuotaEntity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.proxy.wire.messages.codec import Message
    from headrace.quota_callbacks.entities import EntityName


class AnyName(Enum):
    """Matches every entity that has the entity type, the default included."""

    ANY_NAME = "<any>"

    def __str__(self) -> str:
        return self.value


ANY_NAME: Final = AnyName.ANY_NAME

NameMatch: TypeAlias = "str | Default | AnyName"

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2  # DescribeClientQuotasRequest.MATCH_TYPE_...


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterComponent:
    """Matches entities by one entity type: by a name, `DEFAULT`, or `ANY_NAME` (``ClientQuotaFilterComponent``)."""

    entity_type: str
    """`headrace.quota_callbacks.entities.USER`, ``CLIENT_ID``, ``IP``, or a type of a plugin."""
    name: NameMatch


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFilter:
    """Matches entities that match every component (``ClientQuotaFilter``).

    With ``strict``, entities with further entity types do not match. No components match every entity, and, with
    ``strict``, none.
    """

    components: tuple[FilterComponent, ...] = ()
    strict: bool = False

    @classmethod
    def of(cls, names: Mapping[str, NameMatch], *, strict: bool = False) -> QuotaFilter:
        """Return the filter with one component for each entity type, such as ``{"user": "alice"}``."""
        components = tuple(FilterComponent(entity_type=each, name=name) for each, name in names.items())
        return cls(components=components, strict=strict)


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
                kind, name = _DEFAULT, None
            case AnyName():
                kind, name = _SPECIFIED, None
            case str():
                kind, name = _EXACT, each.name
        rows.append({"entity_type": each.entity_type, "match_type": kind, "match": name})
    message: Message = {"components": rows, "strict": wanted.strict}
    return Call(
        api_key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
        target=Target.ANY,
        build=lambda _version, _timeout_ms: message,
        error_codes=lambda reply: (reply["error_code"],),
    )


def read_description(
    reply: Message, report: Callable[[str], None] | None = None
) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas of each entity. Raises `BrokerError` and `BadReplyError`.

    ``report`` is called with the message of a reply without an error, such as a remark of the proxy.
    """
    code = reply["error_code"]
    if code:
        raise broker_error(code, reply["error_message"], explanation=_explanation(code, reply["error_message"]))
    if reply["error_message"] and report is not None:
        report(reply["error_message"])
    return {
        _entity(row["entity"]): {value["key"]: value["value"] for value in row["values"]}
        for row in reply["entries"] or ()
    }


def alter_call(alterations: Sequence[QuotaAlteration], *, validate_only: bool) -> Call:
    """Return the AlterClientQuotas request. Raises `SettingsError` if an entity is there twice."""
    for entity, count in Counter(each.entity for each in alterations).items():
        if count > 1:
            raise SettingsError(f"the quotas of {entity} are altered {count} times in one call; once is allowed")
    rows = [
        {
            "entity": [{"entity_type": each, "entity_name": _wire_name(name)} for each, name in one.entity.parts()],
            "ops": [
                {"key": str(key), "value": 0.0 if value is None else float(value), "remove": value is None}
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
    """Return what became of each entity's alteration."""
    found: dict[QuotaEntity, KafkaClientError | None] = {}
    for row in reply["entries"]:
        code, message = row["error_code"], row["error_message"]
        error = broker_error(code, message, explanation=_explanation(code, message)) if code else None
        found[_entity(row["entity"])] = error
    missing = BadReplyError("the broker's reply has no result for the entity")
    return Results(outcomes={each.entity: found.get(each.entity, missing) for each in alterations})


def _wire_name(name: EntityName) -> str | None:
    return None if isinstance(name, Default) else name


def _entity(rows: Sequence[Message]) -> QuotaEntity:
    parts: dict[str, EntityName] = {
        row["entity_type"]: DEFAULT if row["entity_name"] is None else row["entity_name"] for row in rows
    }
    try:
        return QuotaEntity.of(parts)
    except ValueError as error:
        raise BadReplyError(f"the broker's reply has an entity that cannot be: {error}") from error


def _explanation(code: int, message: str | None) -> str:
    """Return what an operator should know about an error; "" if the broker's message says it all."""
    about = (message or "").lower()
    if code == ErrorCode.INVALID_REQUEST and "configuration key" in about:
        return "the broker has the API, but not this quota key for this entity; it may need a newer version of Kafka"
    if code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION) and "entity type" in about:
        return "the broker has the API, but not this entity type; it may need a newer version of Kafka"
    return ""
