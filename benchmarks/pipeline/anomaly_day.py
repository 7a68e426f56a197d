"""Measures how anomalies compares a day with its past: ``python -m benchmarks.pipeline.anomaly_day``.

The windows of a day are random, with a day and a night, in groups of entities as in the job. The sketches of a day are
made from them, and a second day is compared with 1, 7 and 30 of them. The CPU seconds are those of the job's Python
workers, without Spark's own work: reading usage, windows and sketches, and shuffling them.
"""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np
import pyarrow as pa

from headrace.pipeline.analysis.anomalies.deviating import Examined, compared
from headrace.pipeline.analysis.anomalies.rules import DAY_S, Rules
from headrace.pipeline.analysis.anomalies.sketches import sketched
from headrace.pipeline.analysis.anomalies.windows import WINDOWS_A_GROUP

if TYPE_CHECKING:
    from headrace.pipeline.analysis.anomalies.windows import Starts

MIDNIGHT: Final = 20_718 * DAY_S
PASTS: Final = (1, 7, 30)


def made_windows(entities: int, midnight: int, rules: Rules) -> Any:
    """Return an Arrow table with a day of windows."""
    dice = np.random.default_rng(midnight)
    each = DAY_S // rules.window_s
    count = entities * each
    entity, start = np.repeat(np.arange(entities), each), np.tile(np.arange(each) * rules.window_s, entities)
    level, size = dice.lognormal(4, 2, entities)[entity], dice.lognormal(6, 1, entities)[entity]
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


@click.command()
@click.option("--groups", type=click.IntRange(min=1), default=4, show_default=True, help="Number of groups.")
def command(groups: int) -> None:
    """Print the CPU seconds for each million windows."""
    rules = Rules()
    entities = WINDOWS_A_GROUP * rules.window_s // DAY_S
    starts: Starts = {"made": list(range(MIDNIGHT, MIDNIGHT + 2 * DAY_S, rules.window_s))}
    examined = Examined(since_s=MIDNIGHT + DAY_S, until_s=MIDNIGHT + 2 * DAY_S, starts=starts, rules=rules)
    windows, later = (made_windows(entities, MIDNIGHT + day * DAY_S, rules) for day in range(2))
    seconds = dict.fromkeys(PASTS, 0.0)
    sketching = 0.0
    for _ in range(groups):
        began = process_time()
        sketches = sketched(windows, range(MIDNIGHT, MIDNIGHT + DAY_S), starts, rules)
        sketching += process_time() - began
        for days in PASTS:
            past = pa.concat_tables([sketches] * days)
            began = process_time()
            compared(later, past, examined)
            seconds[days] += process_time() - began
    millions = groups * later.num_rows / 1e6
    print(
        f"sketches: {sketching / millions:.1f} s a million windows, {sketches.nbytes / entities:,.0f} bytes an entity"
    )
    for days, taken in seconds.items():
        print(f"compared with {days} days: {taken / millions:.1f} s a million windows")


if __name__ == "__main__":
    command()
