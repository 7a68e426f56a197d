"""The audit records of quotas: read from the admin server page by page, selected, and written for people and as JSON.

The admin server selects by position alone, so changes of certain entities are looked for here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.proxy.admin.client import AdminUnreachableError
from headrace.proxy.admin.operations import MOST_CHANGES
from headrace.proxy.quota_tools.json_form import Json, entity_json, value_json
from headrace.proxy.quota_tools.text import entity_text, name_text, number_text
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from headrace.quota_callbacks.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headrace.proxy.kafka_client.quotas import QuotaFilter

    Change = Mapping[str, Any]
    ReadPage = Callable[[int, int | None], Sequence[Change]]
    """Called with the maximum number of changes, and a position or ``None``. Returns the newest changes before the
    position, or of all changes, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChanges:
    """Changes, the newest first."""

    changes: Sequence[Change]
    next_before: int | None
    """The position before which there are further changes that match; ``None`` if there are none."""


def find_changes(read_page: ReadPage, wanted: QuotaFilter, *, newest: int, before: int | None) -> FoundChanges:
    """Return at most ``newest`` changes of entities that match, before the position ``before`` if it is set.

    Reads pages from the newest change on until it knows whether there is one more that matches. Raises what
    ``read_page`` raises, and `AdminUnreachableError` for a change that is not one.
    """
    found: list[Change] = []
    while True:
        size = MOST_CHANGES if wanted.components else min(newest - len(found) + 1, MOST_CHANGES)
        page = read_page(size, before)
        for change in page:
            position = _position(change)
            if before is not None and position >= before:
                raise AdminUnreachableError(f"the admin server answered a change at {position}, not before {before}")
            before = position
            if not wanted.matches(_entity(change)):
                continue
            if len(found) == newest:
                return FoundChanges(changes=found, next_before=_position(found[-1]))
            found.append(change)
        if not page:  # a page can be shorter than asked for, since its names have a bound
            return FoundChanges(changes=found, next_before=None)


def audit_lines(changes: Iterable[Change]) -> Iterator[str]:
    """Yield a line for each change. Raises `AdminUnreachableError` for a change that is not one."""
    for change in changes:
        entity = _entity(change)
        time = _time(change).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        old, new = (_value_text(change, each) for each in ("old", "new"))
        author = f"{name_text(str(change.get('principal')))} from {name_text(str(change.get('address')))}"
        yield f"{time}Z {author}: {entity_text(entity)} {printable(str(change.get('key')))} {old} -> {new}"


def audit_json(found: FoundChanges) -> Json:
    """Return the changes, and where further ones are. Raises `AdminUnreachableError` for a change that is not one."""
    return {
        "changes": [
            {
                "sequence": _position(change),
                "time_ms": _number(change, "time_ms"),
                "principal": str(change.get("principal")),
                "address": str(change.get("address")),
                "entity": entity_json(_entity(change)),
                "key": str(change.get("key")),
                **{each: value_json(_value(change, each)) for each in ("old", "new")},
            }
            for change in found.changes
        ],
        "next_before": found.next_before,
    }


def _position(change: Change) -> int:
    position = change.get("sequence") if isinstance(change, Mapping) else None
    if not isinstance(position, int):
        raise _not_a_change(change)
    return position


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
