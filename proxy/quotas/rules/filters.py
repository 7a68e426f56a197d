"""The filters of DescribeClientQuotas: which are valid, and which entities they match.

The rules and the texts of errors are those of ``ClientQuotasImage.describe`` of Kafka 4.3.1; a test compares them with
a broker. Names are compared as they are, without any escaping (see `headrace.proxy.quotas.rules.validation`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.quotas.rules.refusals import Refusal, invalid
from headrace.proxy.wire.client_quotas import MatchType
from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, IP, USER, EntityName, QuotaEntity
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from headrace.proxy.wire.client_quotas import EntityPart, FilterComponent, QuotaFilter
    from headrace.quota_callbacks.definitions import QuotaSchema

EntityPredicate: TypeAlias = Callable[[QuotaEntity], bool]

_NameOf: TypeAlias = Callable[[QuotaEntity], EntityName | None]

_BUILTIN: Final[dict[str, _NameOf]] = {
    USER: attrgetter("user"),
    CLIENT_ID: attrgetter("client_id"),
    IP: attrgetter("ip"),
}


def compile_filter(quota_filter: QuotaFilter, schema: QuotaSchema) -> EntityPredicate | Refusal:
    """Return a function that decides whether an entity matches, or the error of an invalid filter.

    An entity matches if it matches every component, and, with a strict filter, has no further parts. So a filter
    without components matches every entity, or none if it is strict. The function takes less than a microsecond.
    """
    seen: set[str] = set()
    for component in quota_filter.components:
        refusal = _check_component(component, seen, schema)
        if refusal is not None:
            return refusal
        seen.add(component.entity_type)
    if IP in seen and (USER in seen or CLIENT_ID in seen):
        return invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId"
            " filter component."
        )
    return _predicate(quota_filter)


def described_parts(entity: QuotaEntity) -> tuple[EntityPart, ...]:
    """Return the parts of an entity as DescribeClientQuotas has them, in a broker's order: client-id before user."""
    parts = ((each, None if name is DEFAULT else str(name)) for each, name in entity.parts())
    return tuple(sorted(parts, key=lambda part: part[0] == USER))


def _check_component(component: FilterComponent, seen: set[str], schema: QuotaSchema) -> Refusal | None:
    entity_type = component.entity_type
    if not entity_type:
        return invalid("Invalid empty entity type.")
    if entity_type in seen:
        return invalid(f"Entity type {entity_type} cannot appear more than once in the filter.")
    if entity_type not in schema.entity_types:
        return Refusal(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=f"Unsupported entity type {entity_type}")
    if component.match_type == MatchType.EXACT:
        if component.match is None:
            return invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    elif component.match_type not in (MatchType.DEFAULT, MatchType.SPECIFIED):
        return invalid(f"Unknown match type {int(component.match_type)}")
    elif component.match is not None:
        name = MatchType(component.match_type).name
        return invalid(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")
    return None


def _predicate(quota_filter: QuotaFilter) -> EntityPredicate:
    """Return the predicate of a valid filter."""
    components, strict = quota_filter.components, quota_filter.strict
    named: list[tuple[_NameOf, EntityName]] = []
    specified: list[_NameOf] = []
    for component in components:
        name_of = _BUILTIN.get(component.entity_type) or _other_name(component.entity_type)
        if component.match_type == MatchType.SPECIFIED:
            specified.append(name_of)
        else:
            named.append((name_of, DEFAULT if component.match is None else component.match))
    size = len(components)

    def matches(entity: QuotaEntity) -> bool:
        for name_of, name in named:
            if name_of(entity) != name:
                return False
        for name_of in specified:
            if name_of(entity) is None:
                return False
        return not strict or 0 < size == _size(entity)

    return matches


def _other_name(entity_type: str) -> _NameOf:
    """Return the function that returns the name of an entity for an entity type of a plugin."""

    def name_of(entity: QuotaEntity) -> EntityName | None:
        for each, name in entity.other:
            if each == entity_type:
                return name
        return None

    return name_of


def _size(entity: QuotaEntity) -> int:
    """Return the number of parts."""
    return (entity.user is not None) + (entity.client_id is not None) + (entity.ip is not None) + len(entity.other)
