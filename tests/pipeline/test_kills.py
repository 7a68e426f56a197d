"""Jobs that are killed at random moments, with readers beside them: nothing is lost, doubled or seen half-done.

KILL_ROUNDS sets how often each job is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType

from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from tests.pipeline.records import NOON, record, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
ROUNDS: Final = int(os.environ.get("KILL_ROUNDS", "2"))
LONGEST_S: Final = 20.0
"""Time after its first line of output in which a job is killed; on a slow machine they take so long."""
QUOTAS: Final = '[[quotas]]\nentity = { user = "<default>" }\nproducer_byte_rate = 1000\n'
PRICES: Final = 'currency = "EUR"\nper_gib_produced = 1_000\nper_million_requests = 1_000_000\n'
TABLES: Final = {
    "usage": schemas.USAGE,
    "rollup_hour": schemas.ROLLUP_HOUR,
    "rollup_day": schemas.ROLLUP_DAY,
    "chargeback": schemas.CHARGEBACK,
    "recommendations": schemas.RECOMMENDATIONS,
    "what_if": schemas.WHAT_IF,
    "anomalies": schemas.ANOMALIES,
}


def jobs(folder: Path, lake: Path) -> dict[str, list[str]]:
    """Return the arguments of each job."""
    given = {
        "ingest": ["--from-files", folder / "in", "--accept-late"],
        "rollup": ["--prices", folder / "prices.toml", "--per", "day"],
        "recommend": ["--least-seconds", 1, "--least-entities", 1],
        "what-if": ["--quotas", folder / "quotas.toml"],
        "anomalies": ["--from", "2026-09-21", "--to", "2026-09-23"],
        "compact": [],
        "retain": ["--marks", 1],
    }
    return {job: [job, "--lake", str(lake), *map(str, more)] for job, more in given.items()}


def records_of(number: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a round: some hours and users, on one of three days."""
    chance = random.Random(number)  # noqa: S311 -- no secrets
    for sequence in range(number * 100, number * 100 + 20):
        second = NOON + (number % 3) * 86_400 + chance.randrange(4 * 3600)
        sizes = {"request_bytes": chance.randrange(5000), "requests": chance.randrange(1, 9)}
        yield record(second, sequence=sequence, user=chance.choice(["alice", "bob", "carol"]), **sizes)


def kill_at_random(arguments: list[str], chance: random.Random) -> bool:
    """Run a job until a random moment after its first output, and kill it with its JVM; return whether it had ended."""
    command = [sys.executable, "-m", "headrace.pipeline", *arguments, "--master", "local[1]"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert run.stderr is not None
    run.stderr.readline()  # Java has started
    try:
        run.wait(chance.uniform(0, LONGEST_S))
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
    _, output = run.communicate(timeout=60)
    assert run.returncode in (0, -signal.SIGKILL), output.decode()
    return run.returncode == 0


class Reader(threading.Thread):
    """Reads the released tables all the time, and notes what does not belong together."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        super().__init__()
        self._spark, self._root = spark, root
        self._stopping = threading.Event()
        self.looks = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self._stopping.wait(0.5):
            try:
                self._look(Lake(self._spark, self._root))
            except Exception as error:  # noqa: BLE001 -- reported by the test
                self.wrong.append(str(error)[:500])

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _look(self, lake: Lake) -> None:
        hours, days = (self._by_day(lake, table) for table in ("rollup_hour", "rollup_day"))
        lines = lake.read_or_empty("chargeback", schemas.CHARGEBACK).where("item = 'requests'")
        bills = {row.date: int(row.used) for row in lines.groupBy("date").agg(sf.sum("used").alias("used")).collect()}
        self.looks += 1
        if not hours == days == bills:
            self.wrong.append(f"by hour {hours}, by day {days}, billed {bills}")

    def _by_day(self, lake: Lake, table: str) -> dict[Any, int]:
        sums = lake.read_or_empty(table, TABLES[table]).groupBy("date").agg(sf.sum("requests").alias("requests"))
        return {row.date: row.requests for row in sums.collect()}


def rows(frame: DataFrame) -> list[str]:
    """Return the rows in order. The last digits of floating-point sums depend on the order of addition."""
    rounded = [
        sf.round(field.name, 6).alias(field.name) if field.dataType == DoubleType() else sf.col(field.name)
        for field in frame.schema
    ]
    return sorted(repr(sorted(row.asDict().items())) for row in frame.select(*rounded).collect())


@pytest.mark.soak
def test_killed_at_any_moment_no_job_loses_doubles_or_shows_half_of_its_work(
    spark: SparkSession, tmp_path: Path, record_property: Any
) -> None:
    (tmp_path / "quotas.toml").write_text(QUOTAS, encoding="utf-8")
    (tmp_path / "prices.toml").write_text(PRICES, encoding="utf-8")
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    chance = random.Random(1)  # noqa: S311 -- no secrets
    write_lines(tmp_path / "in" / "usage-a-0.jsonl", *records_of(0))
    all_at_once(tmp_path, killed)
    reader = Reader(spark, str(killed))
    reader.start()
    ended = {}
    try:
        for job, arguments in jobs(tmp_path, killed).items():
            ended[job] = 0
            for number in range(ROUNDS):
                round_number = 1 + number + ROUNDS * len(ended)
                write_lines(tmp_path / "in" / f"usage-a-{round_number}.jsonl", *records_of(round_number))
                if job != "ingest":  # so that there is something to do
                    run(jobs(tmp_path, killed)["ingest"])
                ended[job] += kill_at_random(arguments, chance)
    finally:
        reader.stop()
    record_property("not_killed", ended)
    assert reader.wrong == []
    assert reader.looks > ROUNDS
    all_at_once(tmp_path, killed)
    all_at_once(tmp_path, whole)
    for table, schema in TABLES.items():
        assert rows(Lake(spark, str(killed)).read(table, schema)) == rows(Lake(spark, str(whole)).read(table, schema))


def all_at_once(folder: Path, lake: Path) -> None:
    """Run all jobs to their end."""
    for arguments in jobs(folder, lake).values():
        run(arguments)


def run(arguments: list[str]) -> None:
    result = CliRunner().invoke(pipeline, arguments)
    assert result.exit_code == 0, result.output
