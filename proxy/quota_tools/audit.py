"""The audit records of quotas, as the admin server has them, for people and as JSON. Pure functions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.proxy.admin.client import AdminUnreachableError
from headrace.proxy.admin.escaping import printable
from headrace.proxy.quota_tools.json_form import Json, entity_json, value_json
from headrace.proxy.quota_tools.text import entity_text, name_text, number_text
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Change = Mapping[str, Any]


def audit_lines(changes: Iterable[Change]) -> Iterator[str]:
    """Yield a line for each change. Raises `AdminUnreachableError` for a change that is not one."""
    for change in changes:
        entity = _entity(change)
        time = _time(change).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        old, new = (_value_text(change, each) for each in ("old", "new"))
        author = f"{name_text(str(change.get('principal')))} from {name_text(str(change.get('address')))}"
        yield f"{time}Z {author}: {entity_text(entity)} {printable(str(change.get('key')))} {old} -> {new}"


def audit_json(changes: Iterable[Change]) -> Json:
    """Return the changes. Raises `AdminUnreachableError` for a change that is not one."""
    return {
        "changes": [
            {
                "sequence": _number(change, "sequence"),
                "time_ms": _number(change, "time_ms"),
                "principal": str(change.get("principal")),
                "address": str(change.get("address")),
                "entity": entity_json(_entity(change)),
                "key": str(change.get("key")),
                **{each: value_json(_value(change, each)) for each in ("old", "new")},
            }
            for change in changes
        ]
    }


def _time(change: Change) -> datetime:
    try:
        return datetime.fromtimestamp(_number(change, "time_ms") / 1000, UTC)
    except (OSError, OverflowError, ValueError) as error:  # a number that is no time
        raise _not_a_change(change) from error


def _value_text(change: Change, name: str) -> str:
    value = _value(change, name)
    return "none" if value is None else number_text(value)


def _value(change: Change, name: str) -> float | None:
    return None if change.get(name) is None else _number(change, name)


def _number(change: Change, name: str) -> float:
    value = change.get(name)
    if not isinstance(value, int | float):
        raise _not_a_change(change)
    return value


def _entity(change: Change) -> QuotaEntity:
    try:
        return QuotaEntity.of(
            {str(each["type"]): DEFAULT if each["name"] is None else str(each["name"]) for each in change["entity"]}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_change(change) from error


def _not_a_change(change: Change) -> AdminUnreachableError:
    return AdminUnreachableError(f"the admin server answered {change!r}, which is not a change of a quota")
