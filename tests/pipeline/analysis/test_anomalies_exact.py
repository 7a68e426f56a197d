"""Anomalies in random usage with planted ones: the same as an exact computation, written here with NumPy alone."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from headrace.pipeline.analysis.anomalies.deviating import Examined, compared
from headrace.pipeline.analysis.anomalies.rules import DAY_S, ENTITY, HOUR_S, QUANTITIES, Rules
from headrace.pipeline.analysis.anomalies.sketches import WIDTH, joined, known_levels, sketched
from headrace.pipeline.analysis.anomalies.windows import numbered, packed, unpacked

RULES = Rules(window_s=900, past_days=6)
MIDNIGHT = 20_718 * DAY_S
CLIENTS = 15
PLANTED_KINDS = ("new_ids", "failed_share", "requests", "connections", "bytes", "thread_ms")

Window = dict[str, float]
Usage = dict[tuple[int, int], Window]
"""Windows by client and start."""
Found = dict[tuple[int, int, str], tuple[float, float | None, float | None]]
"""Value, usual value and score, by client, start and quantity."""


def made_usage(seed: int) -> tuple[Usage, set[tuple[int, int, str]]]:
    """Return a week of clients whose loads vary by day and at random, some seldom, with a day on which nothing was
    recorded, and what is planted on its last day: forty times the usual and the like, and for one client nothing;
    clients that are active seldom have none.
    """
    dice = np.random.default_rng(seed)
    usage: Usage = {}
    for client in range(CLIENTS):
        level, size = dice.lognormal(8, 0.5), dice.lognormal(9, 0.5)
        swing, share = dice.uniform(1, 2), 0.3 if client % 5 == 4 else 1.0
        for start in range(MIDNIGHT - 6 * DAY_S, MIDNIGHT + DAY_S, RULES.window_s):
            if dice.random() < share and not MIDNIGHT - 4 * DAY_S <= start < MIDNIGHT - 3 * DAY_S:
                requests = round(level * (swing if start % DAY_S < DAY_S // 2 else 1) * dice.lognormal(0, 0.1))
                usage[client, start] = {
                    "requests": requests, "failed": dice.poisson(2), "bytes": round(requests * size),
                    "thread_ms": requests * 3.0 + 3000, "new_ids": dice.poisson(1), "produced": requests // 2,
                    "connections": dice.poisson(5),
                }  # fmt: skip
    planted = set()
    for number, client in enumerate(each for each in range(CLIENTS) if each % 5 != 4):
        kind, start = PLANTED_KINDS[number % 6], MIDNIGHT + (20 + 2 * number) * RULES.window_s
        window = usage[client, start]
        if number == 10:
            del usage[client, start]
        elif kind == "failed_share":
            window["failed"] = window["requests"] // 2
        elif kind == "requests":
            window["requests"] *= 40
        elif kind == "new_ids":
            window[kind] = window["produced"]
        elif kind == "connections":
            window[kind] = 500
        else:
            window[kind] *= 40
        planted.add((client, start, kind))
    return usage, planted


def table(usage: Usage) -> Any:
    columns: dict[str, Any] = {
        "start": pa.array([start for _, start in usage], pa.int64()),
        "cluster": pa.array(["a" if client % 2 else None for client, _ in usage], pa.string()),
        "user": pa.array(["alice" for _ in usage], pa.string()),
        "client_id": pa.array([str(client) for client, _ in usage], pa.string()),
    }
    names = ("requests", "failed", "bytes", "thread_ms", "new_ids", "produced", "connections")
    return pa.table(columns | {name: pa.array([each[name] for each in usage.values()]) for name in names})


def before(days: int, until: int = 0) -> range:
    """Return the seconds from so many days before the examined day on, until so many days before it."""
    return range(MIDNIGHT - days * DAY_S, MIDNIGHT - until * DAY_S)


def found_by_sketches(usage: Usage, rules: Rules = RULES, *, in_blocks: bool = False) -> Found:
    """Compare the last day with its past: six days, or the two oldest days as a block and a block of two blocks."""
    starts = {cluster: sorted({start for _, start in usage}) for cluster in ("a", None)}
    past = {key: window for key, window in usage.items() if key[1] < MIDNIGHT}
    of_day = {key: window for key, window in usage.items() if key[1] >= MIDNIGHT - RULES.window_s}
    sketches = [
        sketched(table(past), range(day, day + DAY_S), starts, rules)
        for day in range(MIDNIGHT - rules.past_days * DAY_S, MIDNIGHT, DAY_S)
    ]
    if in_blocks:
        of_two = [
            joined(pa.concat_tables(sketches[6 - days : 8 - days]), before(days, days - 2), starts, rules)
            for days in (6, 4, 2)
        ]
        sketches = [of_two[0], joined(pa.concat_tables(of_two[1:]), before(4), starts, rules)]
    examined = Examined(since_s=MIDNIGHT, until_s=MIDNIGHT + DAY_S, starts=starts, rules=rules)
    rows = compared(table(of_day), pa.concat_tables(sketches), examined).to_pylist()
    return {
        (int(row["client_id"]), row["start"], row["quantity"]): (row["value"], row["usual"], row["score"])
        for row in rows
    }


def value_of(window: Window | None, quantity: str) -> float:
    if window is None:
        return 0.0
    if quantity == "failed_share":
        return window["failed"] / window["requests"]
    return window["bytes"] / window["requests"] if quantity == "bytes_per_request" else window[quantity]


def found_exactly(usage: Usage) -> Found:
    """Compare each window with the values of all earlier windows, up to its hour."""
    found: Found = {}
    recorded = {start for _, start in usage}
    for client in range(CLIENTS):
        starts = sorted(start for each, start in usage if each == client)
        ends = {start + RULES.window_s for start in starts} - set(starts)
        rows = {start: usage.get((client, start)) for start in {*starts, *ends} & recorded}
        used = {start for start, window in rows.items() if window is not None}
        for hour in range(MIDNIGHT, MIDNIGHT + DAY_S, HOUR_S):
            earlier = {start: window for start, window in rows.items() if start < hour}
            possible = sum(min(earlier) <= start < hour for start in recorded)
            usual = {
                quantity: usual_of({start: value_of(window, quantity) for start, window in earlier.items()},
                                   used, possible, quantity)
                for quantity in QUANTITIES
            }  # fmt: skip
            for start in (each for each in rows if hour <= each < hour + HOUR_S):
                for quantity, entry in judged(rows[start], start, usual).items():
                    found[client, start, quantity] = entry
    return found


Usual = tuple[int, int, float, float, float, float]
"""Number of windows, and of those with usage of any client since the first; median, spread, and the fifth most extreme
levels of hours."""


def usual_of(values: dict[int, float], used: set[int], possible: int, quantity: str) -> Usual:
    counted = [value for start, value in values.items() if start in used]
    lower, median, upper = np.percentile(counted, [25, 50, 75], method="inverted_cdf")
    nothing = QUANTITIES[quantity]
    spread = max((math.log(upper + nothing) - math.log(lower + nothing)) / 1.349, 0.1)
    hours: dict[int, list[float]] = {}
    for start, value in values.items():
        hours.setdefault(start // HOUR_S, []).append(value)
    most = sorted(map(max, hours.values()), reverse=True)[4]
    return len(counted), possible, median, spread, most, sorted(map(min, hours.values()))[4]


def judged(
    window: Window | None, start: int, usual: dict[str, Usual]
) -> dict[str, tuple[float, float | None, float | None]]:
    value = {quantity: value_of(window, quantity) for quantity in QUANTITIES}
    produced, failed = (0, 0) if window is None else (window["produced"], window["failed"])
    emptier = value["bytes_per_request"] * 3 < usual["bytes_per_request"][2]
    enough = {
        "new_ids": value["new_ids"] >= max(20, produced * 0.05),
        "failed_share": failed >= 50 and value["failed_share"] >= 0.1,
        "requests": value["requests"] >= 1000 and emptier,
        "connections": value["connections"] >= 60,
        "bytes": value["bytes"] >= 10 * 2**20,
        "thread_ms": value["thread_ms"] >= 3000,
    }
    alone = {
        "new_ids": value["new_ids"] >= max(100, produced * 0.5),
        "failed_share": failed >= 250 and value["failed_share"] >= 0.5,
        "connections": value["connections"] >= max(300, value["requests"] * 0.5),
    }
    found = {}
    for quantity, is_enough in enough.items():
        count, possible, median, spread, most, least = usual[quantity]
        assert count >= RULES.least_past
        nothing, steady = QUANTITIES[quantity], count >= 0.9 * possible
        score = (math.log(value[quantity] + nothing) - math.log(median + nothing)) / spread
        above = value[quantity] > 3 * median and score >= 5 and value[quantity] > most and is_enough
        below = value[quantity] * 3 < median and score <= -5 and value[quantity] < least and steady
        below = below and {"bytes": median >= 10 * 2**20, "thread_ms": median >= 3000}.get(quantity, False)
        if above or below or alone.get(quantity, False):
            found[quantity] = (value[quantity], median, score)
    return found


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_planted_anomalies_are_those_of_an_exact_computation(seed: int) -> None:
    usage, planted = made_usage(seed)
    exact, found = found_exactly(usage), found_by_sketches(usage)
    assert planted <= exact.keys(), planted - exact.keys()
    assert found.keys() == exact.keys()
    for key, (value, usual, score) in exact.items():
        nothing = QUANTITIES[key[2]]
        assert found[key][0] == pytest.approx(value)
        estimate = found[key][1]
        assert usual is not None
        assert estimate is not None
        assert abs(math.log(estimate + nothing) - math.log(usual + nothing)) < WIDTH
        assert found[key][2] == pytest.approx(score, rel=0.3), "the spread is at least 0.1, and at most 0.03 off"


@pytest.mark.parametrize("known_hours", [5, 30])
def test_days_in_blocks_are_the_same_past(known_hours: int) -> None:
    """Thirty hours are more than a day has, so that blocks have levels that no single day has."""
    usage, _ = made_usage(3)
    rules = dataclasses.replace(RULES, known_hours=known_hours)
    found = found_by_sketches(usage, rules)
    assert found
    assert found_by_sketches(usage, rules, in_blocks=True) == found


@pytest.mark.parametrize("known_hours", [5, 30])
def test_a_block_has_the_windows_and_the_extreme_hours_of_its_days(known_hours: int) -> None:
    usage, _ = made_usage(1)
    rules = dataclasses.replace(RULES, known_hours=known_hours)
    every = {cluster: sorted({start for _, start in usage}) for cluster in ("a", None)}
    days = sketched(table(usage), before(3), every, rules)
    block = joined(days, before(3), every, rules)
    assert block.num_rows == CLIENTS
    for name in ("highest", "lowest"):
        of_days, of_block = (
            known_levels(rows, name, numbered(rows)[1][0], CLIENTS, rules).tolist() for rows in (days, block)
        )
        assert of_block == of_days
    for row in block.to_pylist():
        mine = [each for each in days.to_pylist() if each["client_id"] == row["client_id"]]
        assert (row["days"], row["first"]) == (3, min(each["first"] for each in mine))
        assert row["windows"] == sum(each["windows"] for each in mine)
        assert unpacked(row["starts"], before(3).start, 900) == [start for start in every["a"] if start in before(3)]


def test_starts_of_windows_are_kept_as_bits() -> None:
    starts = {"a": [MIDNIGHT - 900, MIDNIGHT, MIDNIGHT + 9 * 900, MIDNIGHT + DAY_S]}
    stored = packed(starts, "a", range(MIDNIGHT, MIDNIGHT + DAY_S), 900)
    assert len(stored) == 96 // 8
    assert unpacked(stored, MIDNIGHT, 900) == [MIDNIGHT, MIDNIGHT + 9 * 900]
    assert unpacked(packed(starts, None, range(MIDNIGHT, MIDNIGHT + DAY_S), 900), MIDNIGHT, 900) == []


def test_a_group_without_windows_and_one_without_a_past() -> None:
    usage = {(1, MIDNIGHT): {"requests": 10, "failed": 0, "bytes": 10, "thread_ms": 1, "new_ids": 100, "produced": 9,
                             "connections": 0}}  # fmt: skip
    starts = {"a": [MIDNIGHT]}
    sketches = sketched(table(usage), range(MIDNIGHT, MIDNIGHT + DAY_S), starts, RULES)
    examined = Examined(since_s=MIDNIGHT, until_s=MIDNIGHT + DAY_S, starts=starts, rules=RULES)
    assert compared(table({}), sketches, examined).num_rows == 0
    (row,) = compared(table(usage), sketches.slice(0, 0), examined).to_pylist()
    assert (row["quantity"], row["value"], row["usual"], row["score"]) == ("new_ids", 100, None, None)
    assert sketched(table({}), range(MIDNIGHT), starts, RULES).select(ENTITY).num_rows == 0
