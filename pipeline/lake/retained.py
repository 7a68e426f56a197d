"""The days before which rows were removed, by table: a small file of the lake, which ``headrace pipeline retain``
writes.

It is read by jobs that look for gaps, since what was removed is not missing, by ingest, which does not add it again,
and by rollup, which writes no bills of a part of a period.
"""

from __future__ import annotations

import json
from datetime import date
from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import OutputError
from headrace.pipeline.lake.stores import exists, read_text, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.pipeline.lake.tables import Lake

FILE: Final = "_retained.json"


def removed_before(lake: Lake) -> dict[str, date]:
    """Return, by table, the first day that was kept; tables of which nothing was removed are left out.

    Raises `OutputError` if the file is damaged.
    """
    path = lake.path(FILE)
    if not exists(lake.spark, path):
        return {}
    try:
        return {table: date.fromisoformat(day) for table, day in json.loads(read_text(lake.spark, path)).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise OutputError(f"{path} is damaged ({error!r}); remove it, and retain writes it again") from error


def note_removed(lake: Lake, first_kept: Mapping[str, date]) -> None:
    """Note that the days before these were removed; of a table with a later day, that one stays. Raises
    `OutputError`."""
    known = removed_before(lake)
    kept = {table: max(day, known.get(table, day)) for table, day in first_kept.items()}
    write_text(lake.spark, lake.path(FILE), json.dumps({table: f"{day}" for table, day in {**known, **kept}.items()}))
