"""Quotas, results, plans and changes as JSON: the stable form of ``--json``, which docs/changing-quotas.md describes.

An entity is an object with the name by entity type, exactly as it is, and ``null`` for the default. A value is a
number, or one of the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which a broker's quota can be and JSON
has no numbers for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headrace.proxy.quota_tools.plans import sort_key
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.proxy.quota_tools.plans import Plan, Refusal
    from headrace.proxy.quota_tools.resolution import ResolvedQuota

Json = dict[str, Any]


def entity_json(entity: QuotaEntity) -> Json:
    """Return an entity."""
    return {each: None if name is DEFAULT else str(name) for each, name in entity.parts()}


def value_json(value: float | None) -> int | float | str | None:
    """Return a value, as an int if it is a whole number."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return int(value) if float(value).is_integer() else value


def quotas_json(quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> Json:
    """Return the quotas of all entities, sorted."""
    return {
        "quotas": [
            {
                "entity": entity_json(entity),
                "values": {key: value_json(value) for key, value in sorted(quotas[entity].items())},
            }
            for entity in sorted(quotas, key=sort_key)
        ]
    }


def resolved_json(resolved: Iterable[ResolvedQuota]) -> Json:
    """Return the effective quotas of a client."""
    return {
        "resolved": [
            {
                "key": quota.key,
                "value": value_json(quota.value),
                "source": entity_json(quota.source),
                "overrides": [
                    {"value": value_json(value), "source": entity_json(entity)} for entity, value in quota.overridden
                ],
            }
            for quota in resolved
        ]
    }


def plan_json(plan: Plan, *, applied: bool, refused: Iterable[Refusal] = ()) -> Json:
    """Return the steps of a plan, whether they were made, and what was refused."""
    return {
        "applied": applied,
        "unchanged": plan.unchanged,
        "steps": [
            {
                "action": step.action.value,
                "entity": entity_json(step.entity),
                "key": step.key,
                "old": value_json(step.old),
                "new": value_json(step.new),
            }
            for step in plan.steps
        ],
        "refused": [refusal_json(each) for each in refused],
    }


def refusal_json(refusal: Refusal) -> Json:
    """Return what was refused, and the reason. ``key`` is ``null`` if all values of the entity were refused."""
    return {"entity": entity_json(refusal.entity), "key": refusal.key, "reason": refusal.reason}


def alteration_json(
    entity: QuotaEntity, values: Mapping[str, float | None], refused: Iterable[Refusal], *, validate_only: bool
) -> Json:
    """Return the result of one alteration."""
    return {
        "entity": entity_json(entity),
        "set": {key: value_json(value) for key, value in sorted(values.items()) if value is not None},
        "removed": sorted(key for key, value in values.items() if value is None),
        "validate_only": validate_only,
        "refused": [refusal_json(each) for each in refused],
    }
