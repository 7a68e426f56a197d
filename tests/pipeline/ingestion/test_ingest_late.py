"""Ingest and time: final hours, the watermark that determines them, and clocks that are ahead."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from unittest.mock import MagicMock, call

import pytest

from headrace.pipeline.errors import ConflictError, OutputError
from headrace.pipeline.ingestion import ingest as ingest_module
from headrace.pipeline.ingestion import sources
from headrace.pipeline.ingestion.sources import FileSource, checkpoint_name
from headrace.pipeline.ingestion.watermark import FOLDER, SourceState, Watermark
from headrace.pipeline.lake.retained import note_removed
from headrace.pipeline.lake.stores import exists, write_text
from headrace.quota_callbacks.records import usage_records
from tests.pipeline.ingestion.ingesting import DAY_S, ingest, quarantined, sequences, take_in
from tests.pipeline.records import NOON, record, write_lines

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headrace.pipeline.lake.tables import Lake


def test_an_hour_is_final_when_it_is_behind_the_watermark(lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record(NOON, sequence=1))
    take_in(lake, tmp_path / "in", watermark_s=7200)
    open_still, final = record(NOON - 7200, sequence=2), record(NOON - 7201, sequence=3)
    write_lines(tmp_path / "in" / "usage-a-2.jsonl", open_still, final)
    outcome = take_in(lake, tmp_path / "in", watermark_s=7200)
    assert (outcome.records, len(outcome.quarantined)) == (1, 1)
    assert quarantined(lake) == [
        f"late: second {NOON - 7201} is before {NOON - 7200}, and hours before that are final (--watermark)"
    ]
    kept_aside = ingest(lake, 7200).retry_quarantined()
    assert (kept_aside.records, sum(kept_aside.quarantined.values())) == (0, 1)
    again = ingest(lake, None).retry_quarantined()
    assert again.records == 1
    assert sequences(lake) == [1, 2, 3]
    assert quarantined(lake) == []
    assert ingest(lake, None).retry_quarantined().records == 0


def test_a_record_that_is_there_already_is_not_late(lake: Lake, tmp_path: Path) -> None:
    old = record(NOON - 10 * DAY_S, sequence=1)
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", old)
    take_in(lake, tmp_path / "in")
    write_lines(tmp_path / "in" / "usage-a-2.jsonl", record(NOON, sequence=2))
    take_in(lake, tmp_path / "in")
    write_lines(tmp_path / "in" / "usage-a-3.jsonl", old)
    outcome = take_in(lake, tmp_path / "in")
    assert (outcome.records, outcome.duplicates, outcome.quarantined) == (0, 1, {})


def histories(folder: Path, days: int) -> None:
    """Write the records of two proxies, copied one after the other, with a file for each day."""
    for number, (proxy, day) in enumerate((proxy, day) for proxy in "ab" for day in range(days)):
        path = folder / f"usage-{proxy}-{day}.jsonl"
        write_lines(path, record(NOON + day * DAY_S, instance=proxy, sequence=day))
        os.utime(path, (NOON + number, NOON + number))


def test_the_histories_of_several_proxies_do_not_make_each_other_late(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FILES_AT_ONCE", 2)
    histories(tmp_path / "in", 4)
    outcome = take_in(lake, tmp_path / "in")
    assert (outcome.batches, outcome.records, outcome.quarantined) == (4, 8, {})
    assert Watermark(lake).second() == NOON + 3 * DAY_S
    write_lines(tmp_path / "in" / "usage-c-0.jsonl", record(NOON, instance="c", sequence=0))
    assert sum(take_in(lake, tmp_path / "in").quarantined.values()) == 1, "the next run has a watermark of its own"


def test_a_run_that_was_killed_goes_on_under_its_watermark(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FILES_AT_ONCE", 2)
    histories(tmp_path / "in", 4)
    take = ingest_module.Ingest.ingest_batch

    def die_after_the_second(self: ingest_module.Ingest, name: str, batch: object, number: int) -> None:
        take(self, name, batch, number)  # type: ignore[arg-type]
        if number == 1:
            raise OutputError("killed")

    monkeypatch.setattr(ingest_module.Ingest, "ingest_batch", die_after_the_second)
    with pytest.raises(OutputError, match=r"^killed$"):
        take_in(lake, tmp_path / "in")
    name = checkpoint_name(FileSource(folder=str(tmp_path / "in")), lake.spark)
    assert Watermark(lake).of(name) == SourceState(running=True, before=None, newest=NOON + 3 * DAY_S)
    monkeypatch.setattr(ingest_module.Ingest, "ingest_batch", take)
    write_lines(tmp_path / "other" / "usage-z-1.jsonl", record(NOON + 9 * DAY_S, instance="z", sequence=100))
    assert take_in(lake, tmp_path / "other").records == 1, "another source does not end this one's run"
    outcome = take_in(lake, tmp_path / "in")
    assert (outcome.records, outcome.duplicates, outcome.quarantined) == (4, 2, {})
    assert Watermark(lake).second() == NOON + 9 * DAY_S


def test_what_is_quarantined_for_its_schema_is_ingested_after_an_update_though_its_hour_is_final(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record(NOON, sequence=1, schema=2))
    assert sum(take_in(lake, tmp_path / "in").quarantined.values()) == 1
    write_lines(tmp_path / "in" / "usage-a-2.jsonl", record(NOON + 9 * DAY_S, sequence=2))
    assert take_in(lake, tmp_path / "in").records == 1
    assert ingest(lake).retry_quarantined().records == 0
    monkeypatch.setattr(usage_records, "SCHEMA_VERSION", 2)
    assert ingest(lake).retry_quarantined().records == 1
    assert sequences(lake) == [1, 2]


def test_hours_are_merged_by_the_next_run_if_one_is_killed_while_it_merges_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {"a": SourceState(second=NOON, running=True, before=NOON, newest=NOON + DAY_S)}
    monkeypatch.setattr(Watermark, "of", lambda _, source: states[source])
    monkeypatch.setattr(Watermark, "second", lambda _: states["a"].second)
    monkeypatch.setattr(Watermark, "write", lambda _, source, state: states.update({source: state}))
    monkeypatch.setattr(ingest_module, "checkpoint_name", lambda *_: "a")
    monkeypatch.setattr(ingest_module.Ingest, "_run", lambda *_: None)
    lake = MagicMock()
    lake.compact.side_effect = [KeyboardInterrupt, None]
    with pytest.raises(KeyboardInterrupt):
        ingest(lake).run(MagicMock())
    ingest(lake).run(MagicMock())
    ended = "(date < '2026-09-21' OR (date = '2026-09-21' AND hour < 13))"
    begun = "(date < '2026-09-20' OR (date = '2026-09-20' AND hour < 13))"
    assert lake.compact.call_args_list == [call("usage", condition=f"{ended} AND NOT {begun}")] * 2
    assert states["a"] == SourceState(second=NOON + DAY_S)


def test_an_ingest_of_another_source_may_merge_the_same_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"a": SourceState(running=True, newest=NOON)}
    monkeypatch.setattr(Watermark, "of", lambda _, source: states[source])
    monkeypatch.setattr(Watermark, "second", lambda _: None)
    monkeypatch.setattr(Watermark, "write", lambda _, source, state: states.update({source: state}))
    monkeypatch.setattr(ingest_module, "checkpoint_name", lambda *_: "a")
    monkeypatch.setattr(ingest_module.Ingest, "_run", lambda *_: None)
    lake = MagicMock()
    lake.compact.side_effect = ConflictError("cannot compact usage")
    ingest(lake).run(MagicMock())
    assert states["a"] == SourceState(second=NOON)
    ingest(lake).run(MagicMock())
    assert lake.compact.call_count == ingest_module.MERGE_ATTEMPTS, "a run that has read nothing merges nothing"


# --- days that were removed ---


def test_records_of_days_that_were_removed_are_skipped(lake: Lake, tmp_path: Path) -> None:
    lines = record(NOON, sequence=1), record(NOON + 9 * DAY_S, sequence=2)
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", *lines)
    assert take_in(lake, tmp_path / "in").records == 2
    first_kept = datetime.fromtimestamp(NOON + 9 * DAY_S, UTC).date()
    note_removed(lake, {"usage": first_kept})
    lake.table("usage").delete(f"date < '{first_kept}'")
    write_lines(tmp_path / "copied" / "usage-a-1.jsonl", *lines)
    outcome = take_in(lake, tmp_path / "copied", None)
    assert (outcome.records, outcome.removed, outcome.duplicates, outcome.quarantined) == (0, 1, 1, {})
    assert outcome.summary().endswith(", 1 of days that retain has removed")
    assert sequences(lake) == [2]


# --- clocks that are ahead ---


def test_a_clock_that_is_ahead_makes_no_record_of_others_late(lake: Lake, tmp_path: Path) -> None:
    ahead = NOON + 400 * DAY_S
    lost = {"schema": 1, "kind": "lost", "instance": "p", "sequence": 7, "second": ahead, "records": 1}
    write_lines(
        tmp_path / "in" / "usage-a-1.jsonl",
        record(NOON, sequence=1), record(ahead, sequence=2), record(NOON + 3600, sequence=3), json.dumps(lost),
    )  # fmt: skip
    outcome = take_in(lake, tmp_path / "in", now=NOON)
    assert (outcome.records, outcome.marks, sum(outcome.quarantined.values())) == (2, 0, 2)
    why = f"ahead: second {ahead} is more than 3600 s after {NOON}, when it was read; run ingest --quarantined later"
    assert quarantined(lake) == [why, why]
    write_lines(tmp_path / "in" / "usage-a-2.jsonl", record(NOON + 60, sequence=4))
    assert take_in(lake, tmp_path / "in", now=NOON).records == 1
    assert ingest(lake, now=NOON + DAY_S).retry_quarantined().records == 0
    again = ingest(lake, now=ahead).retry_quarantined()
    assert (again.records, again.marks) == (1, 1)
    assert sequences(lake) == [1, 2, 3, 4]
    assert quarantined(lake) == []


# --- the file ---


def test_the_watermark_is_the_newest_second_of_all_runs_that_have_ended(lake: Lake) -> None:
    watermark = Watermark(lake)
    assert watermark.second() is None
    assert watermark.begin("a") is None
    watermark.move("a", 5, None)
    watermark.move("a", 3, None)
    assert (watermark.second(), watermark.of("a").newest) == (None, 5)
    watermark.begin("b")
    watermark.end("a")
    assert (watermark.second(), watermark.of("a")) == (5, SourceState(second=5))
    assert Watermark(lake).begin("b") is None, "a run that goes on has the watermark of its start"
    assert watermark.begin("a") == 5
    watermark.end("b")
    watermark.end("b")
    assert watermark.second() == 5


def test_a_run_that_another_one_has_ended_keeps_its_watermark(lake: Lake) -> None:
    """Two runs of the same source at the same time; the one that began last has not ended, and is repeated."""
    watermark = Watermark(lake)
    watermark.write("a", SourceState(second=100))
    assert (watermark.begin("a"), watermark.begin("a")) == (100, 100)
    watermark.move("a", 150, 100)
    watermark.end("a")
    watermark.move("a", 160, 100)
    assert watermark.begin("a") == 100


@pytest.mark.parametrize(
    "text",
    [
        "{",
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("", "[]", "{}", '{"second": "x", "run": null}', '{"second": 1, "run": {"a": 1}}')
        ),
    ],
)
def test_the_error_for_a_damaged_watermark_names_the_remedy(lake: Lake, tmp_path: Path, text: str) -> None:
    write_text(lake.spark, lake.path(f"{FOLDER}/ingest-0.json"), text)
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record())
    with pytest.raises(OutputError, match=r"_ingest/ingest-0.json is damaged .*; remove it to start without"):
        take_in(lake, tmp_path / "in")
    assert not lake.has("usage")


def test_a_file_is_replaced_in_one_step(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.pipeline.lake import stores as lake_module

    path = str(tmp_path / "folder" / "file.json")
    for is_local in (True, False):
        if not is_local:  # as in other stores
            monkeypatch.setattr(lake_module, "_local", lambda *_: None)
        write_text(spark, path, "one")
        write_text(spark, path, "two")
        assert lake_module.read_text(spark, path) == "two"
        assert not exists(spark, path + ".draft")
        lake_module.remove(spark, path)


def test_a_write_that_fails_leaves_what_was_there(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    write_text(spark, str(path), "one")
    path.with_name("file.json.draft").mkdir()
    with pytest.raises(OutputError, match=rf"cannot write {path}: is a directory"):
        write_text(spark, str(path), "two")
    assert path.read_text() == "one"
