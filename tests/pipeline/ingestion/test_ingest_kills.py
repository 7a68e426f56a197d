"""Ingest when it is killed, and several at the same time: each record is stored once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.ingestion.parsing import parse
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from tests.pipeline.ingestion.ingesting import DAY_S, ingest, quarantined, sequences, take_in
from tests.pipeline.records import NOON, record, write_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[3]
HOURS = 6

WRITING = """
import sys
from headrace.pipeline.ingestion.ingest import Ingest
from headrace.pipeline.lake.tables import Lake
from headrace.pipeline.lake.session import SparkOptions, start_session
from headrace.pipeline.ingestion.sources import FileSource

conf = {"spark.sql.shuffle.partitions": "12", "spark.sql.adaptive.coalescePartitions.enabled": "false"}
spark = start_session("killed", SparkOptions(master="local[1]", conf=conf))
Ingest(Lake(spark, sys.argv[2]), 86400, print).run(FileSource(folder=sys.argv[1]))
"""


@pytest.mark.exhaustive
def test_killed_in_the_middle_of_a_write_it_loses_and_doubles_nothing(tmp_path: Path, spark: SparkSession) -> None:
    """The process dies when one of several tasks has written its file, which belongs to no version of the table."""
    records = [record(NOON - 3600 * (number % HOURS), sequence=number) for number in range(60)]
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", *records)
    for attempt in range(5):
        lake = Lake(spark, str(tmp_path / f"lake-{attempt}"))
        kill_in_a_write(tmp_path / "in", Path(lake.root))
        if lake.version("usage") == 0:  # on a busy machine, it may have added them before it was killed
            break
    else:
        pytest.fail("it was not killed before it had added them")
    take_in(lake, tmp_path / "in")
    assert sequences(lake) == list(range(60))


def kill_in_a_write(folder: Path, lake: Path) -> None:
    command = [sys.executable, "-c", WRITING, str(folder), str(lake)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE)
    tick = threading.Event()
    parts: list[Path] = []
    while not parts and run.poll() is None:
        parts = list((lake / "usage").glob("date=*/hour=*/*.parquet"))
        tick.wait(0.002)
    os.killpg(run.pid, signal.SIGKILL)  # with its JVM
    _, said = run.communicate(timeout=60)
    assert parts, said.decode()


@pytest.mark.exhaustive
@pytest.mark.parametrize("writes", [1, 2, 3])
def test_killed_between_two_tables_it_loses_and_doubles_nothing(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """A batch writes to three tables; it dies after this number of them."""
    end = {"schema": 1, "kind": "end", "instance": "proxy-a-1", "sequence": 10}
    lines = [json.dumps(record(sequence=number)) for number in range(10)] + [json.dumps(end), "broken", None]
    batch = spark.createDataFrame([(line, f"here/{number}") for number, line in enumerate(lines)], schemas.RAW)
    append, left = Lake.append, [writes]

    def append_then_die(self: Lake, table: str, frame: DataFrame, *by: str) -> None:
        append(self, table, frame, *by)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Lake, "append", append_then_die)
    with pytest.raises(KeyboardInterrupt):
        ingest(lake).ingest_batch("here", parse(batch), 0)
    assert [lake.has(table) for table in ("usage", "marks", "quarantine")] == [True, writes > 1, writes > 2]
    monkeypatch.setattr(Lake, "append", append)
    ingest(lake).ingest_batch("here", parse(batch), 0)
    assert sequences(lake) == list(range(10))
    assert [row.kind for row in lake.read("marks", schemas.MARKS).collect()] == ["end"]
    assert len(quarantined(lake)) == 2


# --- several at a time ---


def lines_of(numbers: range, spark: SparkSession, origin: str) -> DataFrame:
    lines = [(json.dumps(record(sequence=number)), origin) for number in numbers]
    return parse(spark.createDataFrame([*lines, ("broken", "here")], schemas.RAW))


def test_records_that_another_ingest_has_added_meanwhile_are_not_added_again(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look into the table and the write, another ingest adds some of the same records."""
    append = Lake.append

    def append_late(self: Lake, table: str, frame: DataFrame, *by: str) -> None:
        monkeypatch.setattr(Lake, "append", append)
        ingest(Lake(spark, lake.root)).ingest_batch("other", lines_of(range(5, 15), spark, "there"), 0)
        append(self, table, frame, *by)

    monkeypatch.setattr(Lake, "append", append_late)
    ingest(lake).ingest_batch("one", lines_of(range(10), spark, "here"), 0)
    assert sequences(lake) == list(range(15))
    assert len(quarantined(lake)) == 1


@pytest.mark.exhaustive
def test_ingests_of_copied_files_at_the_same_time_store_each_record_once(lake: Lake, spark: SparkSession) -> None:
    threads = 3
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for batch in range(4):
                lines = lines_of(range(batch * 10, batch * 10 + 20), spark, f"copy-{number}")
                ingest(Lake(spark, lake.root)).ingest_batch(f"source-{number}", lines, batch)
        except BaseException as error:
            failed.append(error)
            raise

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failed == []
    assert sequences(lake) == list(range(50))


def test_the_error_for_a_lake_that_cannot_be_written_names_the_cause(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record())
    with pytest.raises(PipelineError, match=r"^ingest ended: .*Parent path is not a directory: .*/file"):
        take_in(Lake(spark, str(tmp_path / "file" / "lake")), tmp_path / "in", DAY_S)
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "_checkpoints").write_text("")
    with pytest.raises(PipelineError, match=r"^ingest ended: .*(_checkpoints|[Mm]kdir)"):
        take_in(Lake(spark, str(lake)), tmp_path / "in")
