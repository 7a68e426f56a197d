"""Ingest: each record is stored once, whether it is duplicated, late, invalid or from a newer proxy."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.errors import ConflictError, InputError
from headrace.pipeline.ingestion import batches
from headrace.pipeline.ingestion.faults import FIRST_SECOND, LAST_SECOND
from headrace.pipeline.ingestion.ingest import Ingest
from headrace.pipeline.ingestion.instances import instances
from headrace.pipeline.ingestion.parsing import parse
from headrace.pipeline.ingestion.sources import FileSource, KafkaSource, checkpoint_name
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.pipeline.report.sums import numbered
from tests.pipeline.ingestion.ingesting import DAY_S, ingest, kept, quarantined, sequences, take_in
from tests.pipeline.records import NOON, record, usage, write_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATISTICS = "spark.databricks.delta.stats.collect"


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


INVALID_LINES = (
    ("", "an empty line"),
    ("usage", "not a JSON object with the columns of a usage record"),
    ('{"schema": 1, "ki', "not a JSON object with the columns of a usage record"),
    ("[1, 2]", "not a JSON object with the columns of a usage record"),
    (json.dumps(record(requests="many")), "not a JSON object with the columns of a usage record"),
    (json.dumps(record(second=1.5)), "not a JSON object with the columns of a usage record"),
    ("{}", "no schema"),
    (
        json.dumps(record(schema=2, kind="tale")),
        (
            "schema 2 is newer than 1, the newest version that this pipeline supports; update it, then ingest"
            " --quarantined"
        ),
    ),
    (json.dumps(record(schema=0)), "schema is 0; expected 1 or more"),
    (json.dumps(record(kind="tale")), "kind is tale; expected usage, lost, end"),
    (json.dumps(record(instance="")), "no instance"),
    (json.dumps(record(sequence=None)), "no sequence"),
    (json.dumps(record(sequence=-1)), f"sequence is -1; expected 0 to {2**53}"),
    (json.dumps(record(second=None)), "no second"),
    (
        json.dumps(record(second=10**15)),
        f"second is {10**15}; expected {FIRST_SECOND} (2020-01-01 UTC) to {LAST_SECOND}",
    ),
    (
        json.dumps(record(second=FIRST_SECOND - 1)),
        f"second is {FIRST_SECOND - 1}; expected {FIRST_SECOND} (2020-01-01 UTC) to {LAST_SECOND}",
    ),
    (json.dumps(record(request_bytes=None)), f"request_bytes is null; expected 0 to {2**40}"),
    (json.dumps(record(thread_ms=-0.5)), f"thread_ms is -0.5; expected 0 to {2**40}"),
    (json.dumps(record(thread_ms=math.nan)), f"thread_ms is NaN; expected 0 to {2**40}"),
    (json.dumps(record(broker_ms="NaN")), f"broker_ms is NaN; expected 0 to {2**40}"),
    (json.dumps(record(broker_ms=math.inf)), f"broker_ms is Infinity; expected 0 to {2**40}"),
    (json.dumps(record(request_bytes=-1)), f"request_bytes is -1; expected 0 to {2**40}"),
    (json.dumps(record(requests=2**63 - 1)), f"requests is {2**63 - 1}; expected 0 to {2**40}"),
    (json.dumps(record(sequence=2**63 - 1)), f"sequence is {2**63 - 1}; expected 0 to {2**53}"),
    (json.dumps(record(api_key=-7)), "api_key is -7; expected 0 to 32767"),
    (json.dumps(record(refused={"k": -1})), f"refused has a number that is not 0 to {2**40}"),
    (json.dumps(record(throttle_ms={"k": 2**50})), f"throttle_ms has a number that is not 0 to {2**40}"),
    (json.dumps(record(kind="lost", records=2**60)), f"records is {2**60}; expected 0 to {2**53}"),
    (None, "no value (a tombstone)"),
    (json.dumps(record(requests=10**30)), "not a JSON object with the columns of a usage record"),
)


def test_the_fault_of_each_invalid_line_is_named(spark: SparkSession) -> None:
    lines = [line for line, _ in INVALID_LINES]
    rows = parse(spark.createDataFrame([(line, "here") for line in lines], schemas.RAW)).collect()
    assert [(row.value, row.fault) for row in rows] == [*INVALID_LINES]


# --- from files ---


def test_what_comes_twice_is_there_once_in_the_hour_of_its_second(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, os.path.relpath(tmp_path / "lake"))
    first, second = record(NOON - 1, sequence=1), record(NOON, sequence=2)
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", first, first, second)
    outcome = take_in(lake, tmp_path / "in")
    assert (outcome.lines, outcome.records, outcome.duplicates) == (3, 2, 1)
    hours = lake.read("usage", schemas.USAGE).select("date", "hour", "sequence").collect()
    assert sorted((str(row.date), row.hour, row.sequence) for row in hours) == [
        ("2026-09-21", 12, 1),
        ("2026-09-21", 13, 2),
    ]
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


def test_a_file_is_taken_however_old_it_is(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record(sequence=1))
    take_in(lake, tmp_path / "in")
    write_lines(tmp_path / "in" / "usage-b-1.jsonl", record(sequence=2))
    long_ago = time.time() - 1000 * DAY_S  # noqa: TID251 -- files have wall times
    os.utime(tmp_path / "in" / "usage-b-1.jsonl", (long_ago, long_ago))
    assert take_in(lake, tmp_path / "in").records == 1


def test_folders_below_are_taken_in(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "proxy-a" / "usage-a-1.jsonl", record(sequence=1))
    write_lines(tmp_path / "in" / "site=b" / "proxy-b" / "usage-b-1.jsonl", record(sequence=2, instance="b"))
    write_lines(tmp_path / "in" / "usage-c-1.jsonl", record(sequence=3, instance="c"))
    assert take_in(lake, tmp_path / "in").records == 3


def test_a_folder_without_usage_files_is_reported(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "proxy-a" / "records.jsonl", record())
    progress: list[str] = []
    source = FileSource(folder=str(tmp_path / "in"))
    ingest(lake, on_progress=progress.append).run(source)
    assert progress == [
        f"--from-files {tmp_path / 'in'}: no file usage-*.jsonl* or usage-*.parquet in it or in the folders below it"
    ]
    write_lines(tmp_path / "in" / "proxy-a" / "usage-a-1.jsonl", record())
    for _ in range(2):
        progress.clear()
        ingest(lake, on_progress=progress.append).run(source)
        assert not any("no file" in line for line in progress)


def test_a_source_is_what_it_reads(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    in_full, other = str(tmp_path / "in"), str(tmp_path / "out")
    spellings = [in_full, f"{in_full}/", f"file:{in_full}", f"{tmp_path}/x/../in", f"{tmp_path}//in"]
    assert len({checkpoint_name(FileSource(folder=each), spark) for each in spellings}) == 1
    assert len({checkpoint_name(FileSource(folder=each), spark) for each in (in_full, other)}) == 2

    def of(topic: str = "t", servers: str = "a:1,b:1", **settings: Any) -> str:
        client = {"ssl.keystore.password": "p"} | settings.pop("client", {})
        source = KafkaSource(topic=topic, bootstrap_servers=servers, client=client, **settings)
        return checkpoint_name(source, spark)

    assert of() == of(accept_data_loss=True) == of(client={"ssl.keystore.password": "q"}) == of(servers="b:1, a:1")
    assert len({of(), of(topic="u"), of(servers="c:1")}) == 3


def test_an_hour_has_one_file_of_a_batch_or_several_if_it_has_many_records(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(first: int) -> int:
        before = set(Path(lake.path("usage")).glob("date=*/hour=13/*.parquet"))
        for number in range(first, first + 2):  # two files, so that Spark has two tasks
            lines = (record(NOON + 3600 * (each % 2), sequence=4 * number + each) for each in range(4))
            write_lines(tmp_path / f"in-{first}" / f"usage-{number}.jsonl", *lines)
        take_in(lake, tmp_path / f"in-{first}")
        return len(set(Path(lake.path("usage")).glob("date=*/hour=13/*.parquet")) - before)

    assert files(0) == 1
    monkeypatch.setattr(batches, "ROWS_A_FILE", 4)
    assert files(2) == 2
    assert sequences(lake) == list(range(16))


@pytest.mark.parametrize(("ranges", "statistics"), [(0, "false"), (50, "false"), (50, "true")])
def test_a_lost_checkpoint_doubles_nothing(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: int, statistics: str
) -> None:
    """Whether stored records are found by a join, by a condition, or by a condition and statistics of the files."""
    monkeypatch.setattr(batches, "MAX_RANGES", ranges)
    lake.spark.conf.set(STATISTICS, statistics)
    try:
        assert_doubles_nothing(lake, tmp_path)
    finally:
        lake.spark.conf.set(STATISTICS, "false")


def assert_doubles_nothing(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record(sequence=1), "broken", record(sequence=2))
    take_in(lake, tmp_path / "in")
    before = kept(lake)
    shutil.rmtree(tmp_path / "lake" / "_checkpoints")
    progress: list[str] = []
    outcome = ingest(lake, on_progress=progress.append).run(FileSource(folder=str(tmp_path / "in")))
    assert progress[0].startswith("no checkpoint for this source in ")
    assert (outcome.lines, outcome.records, outcome.duplicates) == (3, 0, 2)
    assert kept(lake) == before
    assert len(quarantined(lake)) == 1


def test_a_batch_can_be_repeated(lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps(record(sequence=number)) for number in range(4)] + ["broken", None]
    batch = spark.createDataFrame([(line, "here") for line in lines], schemas.RAW)
    taking = ingest(lake)
    taking.ingest_batch("here", parse(batch), 0)
    taking.ingest_batch("here", parse(batch), 0)
    assert [sequence for _, sequence, _ in kept(lake)] == [0, 1, 2, 3]
    assert len(quarantined(lake)) == 2
    monkeypatch.setattr(batches, "QUARANTINE_DAYS", -1)  # as if these days had passed
    again = ingest(lake).retry_quarantined()
    assert again.quarantined == {"not a JSON object with the columns of a usage record": 1}
    assert len(quarantined(lake)) == 2


def test_what_is_no_record_is_quarantined_with_its_place(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", "broken", record(schema=9), record())
    outcome = take_in(lake, tmp_path / "in")
    assert outcome.records == 1
    assert sum(outcome.quarantined.values()) == 2
    assert quarantined(lake)[0] == "not a JSON object with the columns of a usage record"
    origin = lake.read("quarantine", schemas.QUARANTINE).first()
    assert origin is not None
    assert origin.origin.endswith("/in/usage-a-1.jsonl")


def test_a_damaged_file_is_named_and_passed_over(lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_lines(folder / "usage-a-1.jsonl", record(sequence=1))
    whole = gzip.compress(
        "".join(json.dumps(record(sequence=n, new=os.urandom(500).hex())) + "\n" for n in range(99)).encode()
    )
    (folder / "usage-cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (folder / "usage-cut.parquet").write_bytes(b"PAR1junk")
    progress: list[str] = []
    outcome = ingest(lake, on_progress=progress.append).run(FileSource(folder=str(folder)))
    assert outcome.records == 1
    assert sequences(lake) == [1]
    reasons = quarantined(lake)
    assert len(reasons) == 2
    assert all(reason.startswith("a damaged file, of which no line was read: ") for reason in reasons)
    origins = {row.origin for row in lake.read("quarantine", schemas.QUARANTINE).collect()}
    assert origins == {f"file://{folder}/usage-cut.jsonl.gz", f"file://{folder}/usage-cut.parquet"}
    assert len([line for line in progress if "a damaged file" in line]) == 2
    write_lines(folder / "usage-a-2.jsonl", record(sequence=2))
    assert take_in(lake, folder).summary().startswith("1 lines in 1 batches: 1 records")


def test_a_file_that_was_removed_or_cannot_be_read_is_an_error_and_read_by_the_next_run(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    write_lines(folder / "usage-a-1.jsonl", record(sequence=1))
    write_lines(folder / "usage-a-2.jsonl", record(sequence=2))
    take = Ingest.ingest_batch

    def remove_first(self: Ingest, name: str, batch: DataFrame, number: int) -> None:
        (folder / "usage-a-2.jsonl").unlink()
        take(self, name, batch, number)

    monkeypatch.setattr(Ingest, "ingest_batch", remove_first)
    with pytest.raises(ConflictError, match=r"/in/usage-a-2\.jsonl was removed before it was read; the next run"):
        take_in(lake, folder)
    monkeypatch.setattr(Ingest, "ingest_batch", take)
    assert take_in(lake, folder).records == 1
    write_lines(folder / "usage-a-3.jsonl", record(sequence=3))
    (folder / "usage-a-3.jsonl").rename(folder / "usage-a-3.jsonl.zst")  # Spark's own Hadoop cannot read this format
    with pytest.raises(InputError, match=r"^cannot read .*/usage-a-3\.jsonl\.zst: .*zStandard library not available"):
        take_in(lake, folder)
    (folder / "usage-a-3.jsonl.zst").unlink()
    write_lines(folder / "usage-a-4.jsonl", record(sequence=4))
    assert take_in(lake, folder).records == 1
    assert sequences(lake) == [1, 4]
    assert not lake.has("quarantine")


def test_files_of_both_formats_are_taken_in(lake: Lake, tmp_path: Path, spark: SparkSession) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record(sequence=1), record(sequence=2))
    rows = [
        tuple(each.get(name) for name in schemas.RECORD.names)
        for each in (record(sequence=2), record(NOON - 9 * DAY_S, sequence=3), record(sequence=4, api_key=-1))
    ]
    spark.createDataFrame(rows, schemas.RECORD).coalesce(1).write.parquet(str(tmp_path / "made"))
    (made,) = (tmp_path / "made").glob("*.parquet")
    shutil.copy(made, tmp_path / "in" / "usage-a-2.parquet")
    outcome = take_in(lake, tmp_path / "in")
    assert (outcome.lines, outcome.records, outcome.duplicates) == (5, 3, 1)
    assert sequences(lake) == [1, 2, 3]
    (rejected,) = lake.read("quarantine", schemas.QUARANTINE).collect()
    assert rejected.reason == "api_key is -1; expected 0 to 32767"
    assert json.loads(rejected.value)["sequence"] == 4


def test_an_empty_folder_and_none(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert take_in(lake, tmp_path / "empty").summary() == (
        "0 lines in 0 batches: 0 records, 0 marks, 0 duplicates, 0 quarantined"
    )
    with pytest.raises(InputError, match=r"--from-files .*/nowhere: the folder does not exist"):
        take_in(lake, tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"there is no table 'usage' in .*; headrace pipeline ingest creates it"):
        lake.read("usage", schemas.USAGE)


def test_a_table_without_a_newer_column_has_nulls_in_it(lake: Lake, spark: SparkSession) -> None:
    old = usage(spark, [record(sequence=1)]).drop("topic", "refused")
    lake.append("usage", old, "date", "hour")
    (row,) = lake.read("usage", schemas.USAGE).collect()
    assert (row.topic, row.refused, row.request_bytes) == (None, None, 1000)


# --- what is missing ---


def test_gaps_losses_and_ends_are_counted_by_instance(lake: Lake, tmp_path: Path) -> None:
    def line(instance: str, sequence: int, **members: Any) -> dict[str, Any]:
        return record(instance=instance, sequence=sequence, **members)

    lost = {"schema": 1, "kind": "lost", "instance": "b", "sequence": 2, "second": NOON, "records": 7, "reason": "full"}
    lost |= {"requests": None, "request_bytes": None, "response_bytes": None}
    end = {"schema": 1, "kind": "end", "instance": "b", "sequence": 3}
    write_lines(
        tmp_path / "in" / "usage-a.jsonl",
        line("a", 1), line("a", 2, second=NOON + 5), line("a", 5), line("a", 9), line("b", 0), line("b", 1), lost, end,
    )  # fmt: skip
    take_in(lake, tmp_path / "in")
    found = (
        instances(lake.read("usage", schemas.USAGE), lake.read("marks", schemas.MARKS)).orderBy("instance").collect()
    )
    counted = [(row.instance, row.seen, row.missing, row.gaps, row.lost, row.ended, row.last_second) for row in found]
    assert counted == [("a", 4, 6, 3, 0, False, NOON + 5), ("b", 4, 0, 0, 7, True, NOON)]


def test_what_was_removed_is_no_gap(spark: SparkSession) -> None:
    """Usage of the days before 22 September was removed: all of c, and the beginning of a. What b lacks is missing."""
    first_kept, begin = date(2026, 9, 22), NOON - NOON % DAY_S + DAY_S
    of = {"a": [(7, begin + 1), (8, begin + 2), (10, begin + 4)], "b": [(2, begin + 2 * DAY_S)]}
    made = usage(spark, [record(second, instance=name, sequence=n) for name in of for n, second in of[name]])
    ends = [{"kind": "end", "instance": "c", "sequence": 9}]
    rows = [tuple(each.get(name) for name in schemas.MARKS.names) for each in ends]
    marks = spark.createDataFrame(rows, schemas.MARKS)
    found = instances(made, marks, kept_from=first_kept).orderBy("instance").collect()
    assert [(row.instance, row.missing, row.gaps) for row in found] == [("a", 1, 1), ("b", 2, 1)]
    assert numbered(made, marks, first_kept) == {"instances": 2, "ended": 0, "short": 2}
    whole = {row.instance: row.missing for row in instances(made, marks).collect()}
    assert whole == {"a": 8, "b": 2, "c": 9}
