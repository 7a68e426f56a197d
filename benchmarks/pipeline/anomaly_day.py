"""Measures how anomalies compares a day with its past: ``python -m benchmarks.pipeline.anomaly_day``.

The windows of each day are random, with a day and a night, in groups of entities as in the job. The sketches of 30 days
are made from them, and the next day is compared with the last 1, 7 and 30 of these, as days and as the blocks that the
job has of them. The CPU seconds are those of the job's Python workers, without Spark's own work: reading usage, windows
and sketches, and shuffling them.
"""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np
import pyarrow as pa

from headrace.pipeline.analysis.anomalies.deviating import Examined, compared
from headrace.pipeline.analysis.anomalies.rules import DAY_S, Rules
from headrace.pipeline.analysis.anomalies.sketches import joined, sketched
from headrace.pipeline.analysis.anomalies.windows import WINDOWS_A_GROUP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.pipeline.analysis.anomalies.windows import Starts

MIDNIGHT: Final = 20_718 * DAY_S
PASTS: Final = (1, 7, 30)


def made_windows(entities: int, midnight: int, rules: Rules) -> Any:
    """Return an Arrow table with a day of windows."""
    dice, of_entity = np.random.default_rng(midnight), np.random.default_rng(1)
    each = DAY_S // rules.window_s
    count = entities * each
    entity, start = np.repeat(np.arange(entities), each), np.tile(np.arange(each) * rules.window_s, entities)
    level, size = of_entity.lognormal(4, 2, entities)[entity], of_entity.lognormal(6, 1, entities)[entity]
    requests = np.ceil(level * np.where(start < DAY_S // 2, 1, 3) * dice.lognormal(0, 0.3, count)).astype(np.int64)
    columns = {
        "start": start + midnight,
        "cluster": pa.array(["made"] * count),
        "user": pa.array([f"user-{number // 3}" for number in entity]),
        "client_id": pa.array([f"app-{number % 3}" for number in entity]),
        "requests": requests,
        "failed": dice.binomial(requests, 0.01),
        "bytes": (requests * size * dice.lognormal(0, 0.05, count)).astype(np.int64),
        "thread_ms": requests * 0.07,
        "new_ids": dice.poisson(0.2, count),
        "produced": requests // 2,
        "connections": dice.poisson(2, count),
    }
    return pa.table(columns)


def block(days: Sequence[Any], first: int, starts: Starts, rules: Rules) -> Any:
    """Return the block of some days, by joining two halves, of which the ``first`` is the number of the first day."""
    if len(days) == 1:
        return days[0]
    half = len(days) // 2
    halves = block(days[:half], first, starts, rules), block(days[half:], first + half, starts, rules)
    return joined(pa.concat_tables(halves), range(first * DAY_S, (first + len(days)) * DAY_S), starts, rules)


def parts_of(days: Sequence[Any], first: int, starts: Starts, rules: Rules) -> list[Any]:
    """Return the blocks and days that the job reads for a past, whose first day has the number ``first``."""
    parts, begin = [], 0
    while begin < len(days):
        lengths = (2**power for power in range(5, -1, -1))
        length = next(each for each in lengths if (first + begin) % each == 0 and begin + each <= len(days))
        parts.append(block(days[begin : begin + length], first + begin, starts, rules))
        begin += length
    return parts


@click.command()
@click.option("--groups", type=click.IntRange(min=1), default=1, show_default=True, help="Number of groups.")
def command(groups: int) -> None:
    """Print the CPU seconds for each million windows."""
    rules = Rules(past_days=PASTS[-1])
    entities = WINDOWS_A_GROUP * rules.window_s // DAY_S
    begin = MIDNIGHT - PASTS[-1] * DAY_S
    starts: Starts = {"made": list(range(begin, MIDNIGHT + DAY_S, rules.window_s))}
    examined = Examined(since_s=MIDNIGHT, until_s=MIDNIGHT + DAY_S, starts=starts, rules=rules)
    later = made_windows(entities, MIDNIGHT, rules)
    sketching, seconds = 0.0, dict.fromkeys(((kind, days) for kind in ("days", "blocks") for days in PASTS), 0.0)
    parts, joining = dict.fromkeys(PASTS, 0), 0.0
    for _ in range(groups):
        made = [made_windows(entities, each, rules) for each in range(begin, MIDNIGHT, DAY_S)]
        began = process_time()
        sketches = [
            sketched(windows, range(each, each + DAY_S), starts, rules)
            for windows, each in zip(made, range(begin, MIDNIGHT, DAY_S), strict=True)
        ]
        sketching += (process_time() - began) / len(made)
        began = process_time()
        block(sketches[:16], begin // DAY_S, starts, rules)
        joining += (process_time() - began) / 16
        for days in PASTS:
            blocks = parts_of(sketches[-days:], MIDNIGHT // DAY_S - days, starts, rules)
            parts[days] = len(blocks)
            for kind, tables in (("days", sketches[-days:]), ("blocks", blocks)):
                past = pa.concat_tables(tables)
                began = process_time()
                compared(later, past, examined)
                seconds[kind, days] += process_time() - began
    millions = groups * later.num_rows / 1e6
    each = sketches[0].nbytes / entities
    print(f"sketches: {sketching / millions:.1f} s a million windows of a day, {each:,.0f} bytes an entity")
    print(f"blocks: {joining / millions:.1f} s a million windows of a day")
    for (kind, days), taken in seconds.items():
        number = f" ({parts[days]} parts)" if kind == "blocks" else ""
        print(f"compared with {days} days as {kind}{number}: {taken / millions:.1f} s a million windows")


if __name__ == "__main__":
    command()
