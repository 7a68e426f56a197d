"""Helpers that run ingest into a lake with a clock close to the time of the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pipeline.ingestion.ingest import Ingest
from headrace.pipeline.ingestion.sources import FileSource
from headrace.pipeline.lake import schemas
from tests.pipeline.records import NOON

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.pipeline.ingestion.ingest import Outcome
    from headrace.pipeline.lake.tables import Lake

DAY_S = 86_400


def ingest(
    lake: Lake,
    watermark_s: int | None = DAY_S,
    *,
    now: int = NOON + 100 * DAY_S,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Ingest:
    return Ingest(lake, watermark_s, on_progress, lambda: now)


def take_in(lake: Lake, folder: Path, watermark_s: int | None = DAY_S, *, now: int = NOON + 100 * DAY_S) -> Outcome:
    return ingest(lake, watermark_s, now=now).run(FileSource(folder=str(folder)))


def kept(lake: Lake) -> list[tuple[str, int, int]]:
    rows = lake.read("usage", schemas.USAGE).select("instance", "sequence", "request_bytes").collect()
    return sorted((row.instance, row.sequence, row.request_bytes) for row in rows)


def sequences(lake: Lake) -> list[int]:
    return sorted(sequence for _, sequence, _ in kept(lake))


def quarantined(lake: Lake) -> list[str]:
    return sorted(row.reason for row in lake.read("quarantine", schemas.QUARANTINE).collect())
