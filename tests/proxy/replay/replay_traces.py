"""Short notation for traces in the tests of ``headrace replay``, and functions that return the results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from headrace.proxy.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click.testing import Result


HEADRACE = Path(sys.executable).parent / "headrace"
HOUR_MS = 3_600_000

Entry = dict[str, Any]


def window(samples: int = 11, seconds: int = 1, **others: Any) -> Entry:
    each = {"samples": samples, "seconds": seconds}
    return {"window": each, "controller_window": each, **others}


def alter(t: int, entity: Entry, remove: Iterable[str] = (), **values: Any) -> Entry:
    return {"t": t, "alter": {"entity": entity, "set": values, "remove": list(remove)}}


def use(t: float, op: str, amount: Any, user: str = "u", client_id: str | None = "c", **others: Any) -> Entry:
    return {"t": t, "user": user, "client_id": client_id, "op": op, "amount": amount, **others}


def text(*entries: Entry | str) -> str:
    return "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in entries)


def run(trace: str | bytes, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["replay", "-", *arguments], input=trace)


def answers(*entries: Entry) -> list[Entry]:
    result = run(text(*entries))
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def throttles(*entries: Entry) -> list[int]:
    return [each["throttle_time_ms"] for each in answers(*entries)]


def decisions(*entries: Entry) -> list[tuple[int, bool]]:
    return [(each["throttle_time_ms"], each["accepted"]) for each in answers(*entries)]


def error_of(*entries: Entry | str) -> str:
    result = run(text(*entries))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("headrace: standard input: line ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("headrace: standard input: ").rstrip("\n")


PAIR = {"user": None, "client-id": None}
GOOD = use(5, "produce", 1)
