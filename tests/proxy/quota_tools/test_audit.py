"""Audit records as text and as JSON; also those of an admin server that is none."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.proxy.admin.client import AdminUnreachableError
from headrace.proxy.admin.operations import MOST_CHANGES
from headrace.proxy.quota_tools.arguments import filter_of
from headrace.proxy.quota_tools.audit import FoundChanges, audit_json, audit_lines, find_changes

CHANGE: dict[str, Any] = {
    "sequence": 7,
    "time_ms": 1_764_000_000_123,
    "principal": "admin",
    "address": "192.0.2.1",
    "entity": [{"type": "client-id", "name": None}, {"type": "user", "name": "a\nb"}],
    "key": "request_percentage",
    "old": None,
    "new": 12.5,
}


def test_a_change() -> None:
    (line,) = audit_lines([CHANGE])
    author, change = "admin from 192.0.2.1", "request_percentage none -> 12.5"
    assert line == f'2025-11-24T16:00:00.123Z {author}: {{user="a\\nb", client-id=<default>}} {change}'
    found = audit_json(FoundChanges(changes=[CHANGE], next_before=7))
    assert found == {"changes": [{**CHANGE, "entity": {"user": "a\nb", "client-id": None}}], "next_before": 7}


@pytest.mark.parametrize("field", ["principal", "address", "key"])
def test_what_others_chose_cannot_forge_lines(field: str) -> None:
    (line,) = audit_lines([{**CHANGE, field: "x\n2025-11-24T00:00:00.000Z admin\x1b[2J"}])
    assert line.isprintable()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("time_ms", each) for each in (None, "now", 1e30, float("nan"))),
        *(("entity", each) for each in (None, [], {}, [{}], [{"type": "user", "name": ""}])),
        ("new", "many"),
    ],
)
def test_what_is_no_change(field: str, value: object) -> None:
    with pytest.raises(AdminUnreachableError, match="which is not a change of a quota"):
        list(audit_lines([{**CHANGE, field: value}]))


# --- pages and filters ---


class Server:
    """An admin server with so many changes, at every second position; those of one user are at every hundredth."""

    def __init__(self, count: int) -> None:
        self.changes = [
            {
                **CHANGE,
                "sequence": 2 * number,
                "entity": [{"type": "user", "name": "rare" if number % 100 == 0 else "usual"}],
            }
            for number in range(count, 0, -1)
        ]
        self.read: list[tuple[int, int | None]] = []

    def page(self, size: int, before: int | None) -> list[dict[str, Any]]:
        assert 1 <= size <= MOST_CHANGES
        self.read.append((size, before))
        return [each for each in self.changes if before is None or each["sequence"] < before][:size]

    def found(self, *names: str, newest: int, before: int | None = None) -> tuple[list[int], int | None]:
        found = find_changes(self.page, filter_of(names, ()), newest=newest, before=before)
        return [each["sequence"] for each in found.changes], found.next_before


def test_pages() -> None:
    server = Server(5)
    assert server.found(newest=3) == ([10, 8, 6], 6)
    assert server.found(newest=3, before=6) == ([4, 2], None)
    assert server.found(newest=5) == ([10, 8, 6, 4, 2], None), "the last change is known to be the last"
    assert server.found(newest=2, before=5) == ([4, 2], None)
    assert server.found(newest=1, before=1) == ([], None)
    assert Server(0).found(newest=3) == ([], None)


def test_more_changes_than_a_page_has() -> None:
    server = Server(2 * MOST_CHANGES + 5)
    positions, next_before = server.found(newest=MOST_CHANGES + 2)
    assert positions == [each["sequence"] for each in server.changes[: MOST_CHANGES + 2]]
    assert next_before == positions[-1]
    assert [size for size, _ in server.read] == [MOST_CHANGES, 3]


def test_a_page_that_is_shorter_than_asked_for_is_not_the_last() -> None:
    changes = Server(10).changes

    def read_page(_size: int, before: int | None) -> list[dict[str, Any]]:
        return [each for each in changes if before is None or each["sequence"] < before][:3]

    found = find_changes(read_page, filter_of([], []), newest=100, before=None)
    assert (list(found.changes), found.next_before) == (list(changes), None)


def test_changes_of_an_entity_are_looked_for_until_enough_are_found() -> None:
    server = Server(3 * MOST_CHANGES)
    rare = [each["sequence"] for each in server.changes if each["entity"][0]["name"] == "rare"]
    assert server.found("user=rare", newest=50) == (rare[:50], rare[49])
    assert len(server.read) == 1
    assert server.found("user=rare", newest=250, before=rare[49]) == (rare[50:], None)
    assert server.found("user=nobody", newest=1) == ([], None)


def test_a_server_that_repeats_its_changes() -> None:
    """A page that is full, and not before the position that was asked for, would be read forever."""
    server = Server(MOST_CHANGES)
    with pytest.raises(AdminUnreachableError, match=r"a change at 20000, not before 2"):
        find_changes(lambda size, _: server.page(size, None), filter_of(["user=nobody"], ()), newest=1, before=None)


@pytest.mark.parametrize("change", [7, [], {}, {**CHANGE, "sequence": float("nan")}, {**CHANGE, "entity": None}])
def test_a_server_whose_records_are_none(change: Any) -> None:
    with pytest.raises(AdminUnreachableError, match="which is not a change of a quota"):
        find_changes(lambda _size, _before: [change], filter_of(["user=a"], ()), newest=1, before=None)
