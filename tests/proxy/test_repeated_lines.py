"""Limits of repeated log lines: by cause, by kind, and that no line left out is forgotten."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.repeated_lines import EVERY_S, MAX_CAUSES, RepeatedLines, place_of

if TYPE_CHECKING:
    from random import Random

LIMIT = RepeatedLines.lines_per_minute


def test_a_cause_has_a_line_a_minute_which_counts_those_left_out() -> None:
    lines = RepeatedLines()
    assert lines.due("fault", "host", now_s=0.0) == 0
    assert [lines.due("fault", "host", now_s=float(second)) for second in range(1, 60)] == [None] * 59
    assert lines.due("fault", "another host", now_s=59.0) == 0
    assert lines.due("other", "host", now_s=59.0) == 0
    assert lines.due("fault", "host", now_s=60.0) == 59
    assert lines.due("fault", "host", now_s=119.0) is None
    assert lines.due("fault", "host", now_s=180.0) == 1


def test_a_kind_has_a_limit_however_many_causes_there_are() -> None:
    lines = RepeatedLines()
    due = [lines.due("fault", number, now_s=number / 100) for number in range(5000)]
    assert due == [0] * LIMIT + [None] * (5000 - LIMIT)
    assert lines.due("other", 0, now_s=50.0) == 0, "other kinds are not affected"
    assert lines.due("fault", "next", now_s=60.0) == 5000 - LIMIT
    assert lines.due("fault", "next but one", now_s=60.0) == 0


def test_no_line_is_forgotten_whatever_the_order(rng: Random) -> None:
    lines, now_s = RepeatedLines(), 0.0
    counted = 0
    for _ in range(30_000):
        now_s += rng.random() / 50
        left_out = lines.due("fault", rng.randrange(2 * MAX_CAUSES), now_s=now_s)
        counted += 0 if left_out is None else 1 + left_out
    remembered = sum(cause.left_out for cause in lines._written.values())
    assert counted + remembered + lines._kinds["fault"].left_out == 30_000
    assert len(lines._written) <= MAX_CAUSES


def test_long_causes_need_no_memory() -> None:
    lines = RepeatedLines()
    tracemalloc.start()
    for number in range(2 * MAX_CAUSES):
        lines.due("fault", f"{number}" * 10_000, now_s=number * EVERY_S)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 1_000_000


def failure(text: str) -> Exception:
    def fail() -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match=f"^{text}$") as caught:
        fail()
    return caught.value


def test_the_place_of_an_error_does_not_depend_on_its_text() -> None:
    assert place_of(failure("a client's text")) == place_of(failure("another"))
    assert place_of(failure(""))[0] == "failure.<locals>.fail"
    assert place_of(ValueError()) == ("ValueError", 0)
