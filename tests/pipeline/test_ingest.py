"""Ingest: each record once, whatever comes twice, late, broken or from a newer proxy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import schemas
from pipeline.errors import InputError
from pipeline.ingest import FileSource, Ingest, KafkaSource, parse
from pipeline.instances import instances
from pipeline.lake import Lake
from tests.pipeline.records import NOON, record, usage, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.ingest import Outcome

ROOT = Path(__file__).parents[2]
DAY_S = 86_400


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, str(tmp_path / "lake"))


def take_in(lake: Lake, folder: Path, watermark_s: int | None = DAY_S) -> Outcome:
    return Ingest(lake, watermark_s, lambda _: None).run(FileSource(folder=str(folder)))


def kept(lake: Lake) -> list[tuple[str, int, int]]:
    rows = lake.read("usage", schemas.USAGE).select("instance", "sequence", "request_bytes").collect()
    return sorted((row.instance, row.sequence, row.request_bytes) for row in rows)


def put_aside(lake: Lake) -> list[str]:
    return sorted(row.reason for row in lake.read("quarantine", schemas.QUARANTINE).collect())


# --- what is a record ---


def test_a_right_line_has_no_fault(spark: SparkSession) -> None:
    lines = [json.dumps(record(throttle_ms={"producer_byte_rate": 5}))]
    lines.append(json.dumps(record(user=None, client_id=None, topic="t")))
    lines.append(json.dumps(record(new_field={"a": [1]})))
    lines.append(json.dumps({"schema": 1, "kind": "end", "instance": "a", "sequence": 3}))
    raw = spark.createDataFrame([(line, "here") for line in lines], schemas.RAW)
    rows = parse(raw).collect()
    assert [row.fault for row in rows] == [None] * 4
    assert rows[0].throttle_ms == {"producer_byte_rate": 5}
    assert rows[1].user is None


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "an empty line"),
        ("usage", "not a JSON object with the columns of a usage record"),
        ('{"schema": 1, "ki', "not a JSON object with the columns of a usage record"),
        ("[1, 2]", "not a JSON object with the columns of a usage record"),
        (json.dumps(record(requests="many")), "not a JSON object with the columns of a usage record"),
        (json.dumps(record(second=1.5)), "not a JSON object with the columns of a usage record"),
        ("{}", "no schema"),
        (
            json.dumps(record(schema=2, kind="tale")),
            "schema 2 is newer than 1, which this pipeline knows; update it, then ingest --quarantined",
        ),
        (json.dumps(record(schema=0)), "schema is 0; there is none below 1"),
        (json.dumps(record(kind="tale")), "kind is tale; expected usage, lost, end"),
        (json.dumps(record(instance="")), "no instance"),
        (json.dumps(record(sequence=None)), "no sequence"),
        (json.dumps(record(sequence=-1)), "sequence is -1; expected 0 or more"),
        (json.dumps(record(second=None)), "no second"),
        (json.dumps(record(second=10**15)), f"second is {10**15}; expected seconds since 1970"),
        (json.dumps(record(request_bytes=None)), "no request_bytes"),
        (json.dumps(record(thread_ms=-0.5)), "thread_ms is -0.500000; expected 0 or more"),
        (json.dumps(record(requests=10**30)), "not a JSON object with the columns of a usage record"),
    ],
)
def test_a_wrong_line_says_what_is_wrong(spark: SparkSession, line: str, fault: str) -> None:
    (row,) = parse(spark.createDataFrame([(line, "here")], schemas.RAW)).collect()
    assert row.fault == fault
    assert row.value == line


# --- from files ---


def test_records_are_in_the_hour_of_their_second(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-0-1.jsonl", record(NOON - 1, sequence=0), record(NOON, sequence=1))
    outcome = take_in(lake, tmp_path / "in")
    assert (outcome.lines, outcome.records, outcome.duplicates) == (2, 2, 0)
    hours = lake.read("usage", schemas.USAGE).select("date", "hour", "sequence").collect()
    assert sorted((str(row.date), row.hour, row.sequence) for row in hours) == [
        ("2026-09-21", 12, 0),
        ("2026-09-21", 13, 1),
    ]


def test_what_comes_twice_is_there_once(lake: Lake, tmp_path: Path) -> None:
    first, second = record(sequence=1), record(sequence=2)
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", first, first, second)
    take_in(lake, tmp_path / "in")
    write_lines(
        tmp_path / "in" / "usage-copy.jsonl", second, record(sequence=3), record(sequence=1, instance="proxy-b-1")
    )
    outcome = take_in(lake, tmp_path / "in")
    assert (outcome.lines, outcome.records, outcome.duplicates) == (3, 2, 1)
    assert kept(lake) == [
        ("proxy-a-1", 1, 1000),
        ("proxy-a-1", 2, 1000),
        ("proxy-a-1", 3, 1000),
        ("proxy-b-1", 1, 1000),
    ]


def test_nothing_new_is_nothing_to_do(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record())
    assert take_in(lake, tmp_path / "in").lines == 1
    assert take_in(lake, tmp_path / "in").lines == 0


def test_files_that_are_being_written_are_left_alone(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / ".usage-a-000000000000.part", record())
    write_lines(tmp_path / "in" / "notes.txt", "not for us")
    assert take_in(lake, tmp_path / "in").lines == 0


def test_a_lost_checkpoint_doubles_nothing(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record(sequence=1), "broken", record(sequence=2))
    take_in(lake, tmp_path / "in")
    before = kept(lake)
    shutil.rmtree(tmp_path / "lake" / "_checkpoints")
    said: list[str] = []
    outcome = Ingest(lake, DAY_S, said.append).run(FileSource(folder=str(tmp_path / "in")))
    assert said[0].startswith("no checkpoint for this source in ")
    assert (outcome.lines, outcome.records, outcome.duplicates) == (3, 0, 2)
    assert kept(lake) == before
    assert len(put_aside(lake)) == 1


def test_a_batch_can_be_repeated(lake: Lake, tmp_path: Path, spark: SparkSession) -> None:
    lines = [json.dumps(record(sequence=number)) for number in range(4)] + ["broken"]
    batch = spark.createDataFrame([(line, "here") for line in lines], schemas.RAW)
    ingest = Ingest(lake, DAY_S, lambda _: None)
    ingest.take(batch, 0)
    ingest.take(batch, 0)
    assert [sequence for _, sequence, _ in kept(lake)] == [0, 1, 2, 3]
    assert len(put_aside(lake)) == 1


def test_what_is_no_record_is_put_aside_with_where_it_was(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", "broken", record(schema=9), record())
    outcome = take_in(lake, tmp_path / "in")
    assert outcome.records == 1
    assert sum(outcome.quarantined.values()) == 2
    assert put_aside(lake)[0] == "not a JSON object with the columns of a usage record"
    origin = lake.read("quarantine", schemas.QUARANTINE).first()
    assert origin is not None
    assert origin.origin.endswith("/in/usage-a-1.jsonl")


def test_an_hour_is_final_when_it_is_behind_the_watermark(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record(NOON, sequence=1))
    take_in(lake, tmp_path / "in", watermark_s=7200)
    open_still, final = record(NOON - 7200, sequence=2), record(NOON - 7201, sequence=3)
    write_lines(tmp_path / "in" / "usage-a-2.jsonl", open_still, final)
    outcome = take_in(lake, tmp_path / "in", watermark_s=7200)
    assert (outcome.records, len(outcome.quarantined)) == (1, 1)
    assert put_aside(lake) == [
        f"late: second {NOON - 7201} is before {NOON - 7200}, and hours before that are final (--watermark)"
    ]
    again = Ingest(lake, None, lambda _: None).again()
    assert again.records == 1
    assert [sequence for _, sequence, _ in kept(lake)] == [1, 2, 3]
    assert Ingest(lake, None, lambda _: None).again().records == 0


def test_a_record_that_is_there_already_is_not_late(lake: Lake, tmp_path: Path) -> None:
    old = record(NOON - 10 * DAY_S, sequence=1)
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", old)
    take_in(lake, tmp_path / "in")
    write_lines(tmp_path / "in" / "usage-a-2.jsonl", record(NOON, sequence=2))
    take_in(lake, tmp_path / "in")
    write_lines(tmp_path / "in" / "usage-a-3.jsonl", old)
    outcome = take_in(lake, tmp_path / "in")
    assert (outcome.records, outcome.duplicates, outcome.quarantined) == (0, 1, {})


def test_an_empty_folder_and_none(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert take_in(lake, tmp_path / "empty").told() == (
        "0 lines in 0 batches: 0 records, 0 marks, 0 duplicates, 0 put aside"
    )
    with pytest.raises(InputError, match=r"--from-files .*/nowhere: there is no such folder"):
        take_in(lake, tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"there is no table 'usage' in .*; headrace pipeline ingest makes it"):
        lake.read("usage", schemas.USAGE)


def test_a_table_without_a_newer_column_has_nulls_in_it(lake: Lake, spark: SparkSession) -> None:
    old = usage(spark, [record(sequence=1)]).drop("topic", "refused")
    lake.append("usage", old, "date", "hour")
    (row,) = lake.read("usage", schemas.USAGE).collect()
    assert (row.topic, row.refused, row.request_bytes) == (None, None, 1000)


# --- a kill ---

KILLED = """
import os, signal, sys
from pipeline import ingest
from pipeline.lake import Lake
from pipeline.session import SparkOptions, start_session

append = Lake.append
left = int(sys.argv[3])

def append_then_die(self, table, frame, *by):
    global left
    append(self, table, frame, *by)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

Lake.append = append_then_die
ingest.FILES_AT_ONCE = 1
spark = start_session("killed", SparkOptions(master="local[1]", conf={"spark.sql.shuffle.partitions": "1"}))
ingest.Ingest(Lake(spark, sys.argv[2]), 86400, print).run(ingest.FileSource(folder=sys.argv[1]))
print("done")
"""


def test_killed_between_two_writes_it_loses_and_doubles_nothing(tmp_path: Path, spark: SparkSession) -> None:
    """The process dies when the second file's records are written, and what is to be put aside of it is not."""
    for number in range(3):
        records: list[dict[str, Any] | str] = [record(sequence=10 * number + each) for each in range(10)]
        write_lines(tmp_path / "in" / f"usage-a-{number}.jsonl", *records, f"broken {number}")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "in"), str(tmp_path / "lake"), "3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    lake = Lake(spark, str(tmp_path / "lake"))
    assert (len(kept(lake)), len(put_aside(lake))) == (20, 1)
    outcome = take_in(lake, tmp_path / "in")
    assert (outcome.records, outcome.duplicates) == (10, 10)
    assert [sequence for _, sequence, _ in kept(lake)] == list(range(30))
    assert len(put_aside(lake)) == 3


# --- what is missing ---


def test_gaps_losses_and_ends_are_told_by_instance(lake: Lake, tmp_path: Path) -> None:
    def told(instance: str, sequence: int, **members: Any) -> dict[str, Any]:
        return record(instance=instance, sequence=sequence, **members)

    lost = {"schema": 1, "kind": "lost", "instance": "b", "sequence": 2, "second": NOON, "records": 7, "reason": "full"}
    lost |= {"requests": None, "request_bytes": None, "response_bytes": None}
    end = {"schema": 1, "kind": "end", "instance": "b", "sequence": 3}
    write_lines(
        tmp_path / "in" / "usage-a.jsonl",
        told("a", 1), told("a", 2, second=NOON + 5), told("a", 5), told("a", 9), told("b", 0), told("b", 1), lost, end,
    )  # fmt: skip
    take_in(lake, tmp_path / "in")
    found = (
        instances(lake.read("usage", schemas.USAGE), lake.read("marks", schemas.MARKS)).orderBy("instance").collect()
    )
    told_of = [(row.instance, row.seen, row.missing, row.gaps, row.lost, row.ended, row.last_second) for row in found]
    assert told_of == [("a", 4, 6, 3, 0, False, NOON + 5), ("b", 4, 0, 0, 7, True, NOON)]


# --- from Kafka ---


def test_a_cluster_that_is_not_there_is_named(lake: Lake) -> None:
    source = KafkaSource(
        topic="headrace-usage",
        bootstrap_servers="127.0.0.1:9",
        client={"default.api.timeout.ms": "2000", "request.timeout.ms": "1000"},
    )
    with pytest.raises(InputError, match=r"--bootstrap-servers 127.0.0.1:9: "):
        Ingest(lake, DAY_S, lambda _: None).run(source)
