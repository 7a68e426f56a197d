"""Audit records as text and as JSON; also those of an admin server that is none."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.proxy.admin.client import AdminUnreachableError
from headrace.proxy.quota_tools.audit import audit_json, audit_lines

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
    (row,) = audit_json([CHANGE])["changes"]
    assert row == {**CHANGE, "entity": {"user": "a\nb", "client-id": None}}


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
