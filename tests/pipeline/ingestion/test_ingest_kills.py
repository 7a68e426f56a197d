"""Ingest when it is killed: each record is stored once. And the lock that allows one ingest at a time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.errors import OutputError, PipelineError
from headrace.pipeline.ingestion.lock import FILE, ingest_lock
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from tests.pipeline.ingestion.ingesting import DAY_S, ingest, kept, quarantined, sequences, take_in
from tests.pipeline.records import NOON, record, usage, write_lines

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
    """The process dies when one of several tasks has written its file, which Spark leaves in a temporary folder."""
    records = [record(NOON - 3600 * (number % HOURS), sequence=number) for number in range(60)]
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", *records)
    command = [sys.executable, "-c", WRITING, str(tmp_path / "in"), str(tmp_path / "lake")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE)
    tick = threading.Event()
    parts: list[Path] = []
    while not parts and run.poll() is None:
        parts = list((tmp_path / "lake" / "usage" / "_temporary" / "0").glob("task_*"))
        tick.wait(0.002)
    os.killpg(run.pid, signal.SIGKILL)  # with its JVM
    _, said = run.communicate(timeout=60)
    assert parts, said.decode()
    lake = Lake(spark, str(tmp_path / "lake"))
    assert list((tmp_path / "lake" / "usage" / "_temporary" / "0").glob("task_*")), "they are still there"
    take_in(lake, tmp_path / "in")
    assert sequences(lake) == list(range(60))


def test_what_a_killed_write_has_left_is_not_taken_for_ones_own(lake: Lake, spark: SparkSession) -> None:
    lake.append("usage", usage(spark, [record(NOON, sequence=1)]), "date", "hour")
    hour = Path(lake.path("usage"), "date=2026-09-21", "hour=13")
    left = Path(lake.path("usage"), "_temporary/0/task_1_0000_m_000000/date=2026-09-21/hour=13")
    left.mkdir(parents=True)
    shutil.copy(next(hour.glob("*.parquet")), left / "part-left.snappy.parquet")
    lake.append("usage", usage(spark, [record(NOON, sequence=2)]), "date", "hour")
    assert sequences(lake) == [1, 2]


@pytest.mark.parametrize(
    "writes", [2, pytest.param(1, marks=pytest.mark.exhaustive), pytest.param(3, marks=pytest.mark.exhaustive)]
)
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
        ingest(lake).ingest_batch("here", batch, 0)
    assert [lake.has(table) for table in ("usage", "marks", "quarantine")] == [True, writes > 1, writes > 2]
    monkeypatch.setattr(Lake, "append", append)
    ingest(lake).ingest_batch("here", batch, 0)
    assert sequences(lake) == list(range(10))
    assert [row.kind for row in lake.read("marks", schemas.MARKS).collect()] == ["end"]
    assert len(quarantined(lake)) == 2


# --- one at a time ---


def held_by(lake: Lake, **owner: Any) -> None:
    path = Path(lake.path(FILE))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": "today"} | owner))


def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_one_ingest_at_a_time(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record(sequence=1), "broken")
    path = lake.path(FILE)
    with ingest_lock(lake):
        said = rf"another ingest writes to {lake.root}: process {os.getpid()} on .* If it no longer runs, remove"
        with pytest.raises(OutputError, match=rf"{said} {path}$"):
            take_in(lake, tmp_path / "in")
        assert Path(path).exists()
    assert take_in(lake, tmp_path / "in").records == 1
    with ingest_lock(lake), pytest.raises(OutputError, match="another ingest writes to"):
        ingest(lake).retry_quarantined()
    assert not Path(path).exists()
    assert len(kept(lake)) == 1


@pytest.mark.parametrize(
    "owner", [{"host": "elsewhere", "pid": 1}, {"host": "elsewhere", "pid": None}, {"pid": os.getppid()}, {"pid": "1"}]
)
def test_a_lock_that_may_be_of_the_living_stays(lake: Lake, owner: dict[str, Any]) -> None:
    held_by(lake, **owner)
    with pytest.raises(OutputError, match="another ingest writes to"), ingest_lock(lake):
        raise AssertionError("it was taken over")
    assert Path(lake.path(FILE)).exists()


def test_a_lock_without_an_owner_stays(lake: Lake) -> None:
    held_by(lake)
    for text in ("", "{", "[1]"):
        Path(lake.path(FILE)).write_text(text)
        with pytest.raises(OutputError, match=r"writes to .*: an unknown process; only one"), ingest_lock(lake):
            raise AssertionError("it was taken over")


def test_the_lock_of_a_dead_process_is_taken_over(lake: Lake) -> None:
    held_by(lake, pid=dead_pid())
    with ingest_lock(lake):
        assert json.loads(Path(lake.path(FILE)).read_text())["pid"] == os.getpid()
    assert list(Path(lake.path("_ingest")).iterdir()) == []


def test_of_two_that_find_a_dead_ones_lock_one_has_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes the lock over after this one has read it."""
    from headrace.pipeline.ingestion import lock

    held_by(lake, pid=dead_pid())
    move = lock.move

    def move_late(spark: SparkSession, path: str, target: str) -> None:
        monkeypatch.setattr(lock, "move", move)
        held_by(lake, pid=os.getppid(), since="just now")
        move(spark, path, target)

    monkeypatch.setattr(lock, "move", move_late)
    with pytest.raises(OutputError, match=rf"process {os.getppid()} on .* since just now"), ingest_lock(lake):
        raise AssertionError("it was taken twice")
    assert json.loads(Path(lake.path(FILE)).read_text())["since"] == "just now"


def test_the_error_for_a_lake_that_cannot_be_written_names_the_cause(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record())
    with pytest.raises(OutputError, match=r"cannot write .*/file/lake/_ingest/lock.json: not a directory"):
        take_in(Lake(spark, str(tmp_path / "file" / "lake")), tmp_path / "in", DAY_S)
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "_checkpoints").write_text("")
    with pytest.raises(PipelineError, match=r"^ingest ended: .*(_checkpoints|[Mm]kdir)"):
        take_in(Lake(spark, str(lake)), tmp_path / "in")
    assert list((lake / "_ingest").glob("lock*")) == []
