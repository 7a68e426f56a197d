"""The output of jobs: progress, results as text or as JSON, and files.

Progress goes to standard error and results to standard output, so that a result can be piped. With ``--json``, standard
output has one JSON object and nothing else. Lines may have names that clients chose, so that what is not printable is
escaped.
"""

from __future__ import annotations

import csv
import io
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.pipeline.errors import OutputError
from headrace.pipeline.lake.stores import write_text
from headrace.quota_callbacks.escaping import printable
from headrace.quota_callbacks.files import open_without_following, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

Result = dict[str, Any]
"""The result of a job, for ``--json``: numbers, texts, dates, and lists and dictionaries of them, by name."""

AS_JSON: Final = "headrace.pipeline.as_json"
"""Key in the metadata of click's context: whether the result is printed as JSON."""


def report_progress(*lines: str) -> None:
    """Write lines about a job's progress to standard error."""
    for line in lines:
        click.echo(printable(line), err=True)


def report_result(line: str) -> None:
    """Write a line of a job's result to standard output; with ``--json``, to standard error."""
    click.echo(printable(line), err=prints_json())


def prints_json() -> bool:
    """Return whether the running job was called with ``--json``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(AS_JSON))


def print_json(result: Mapping[str, Any]) -> None:
    """Write a result as one line of JSON to standard output."""
    click.echo(as_json(result))


def as_json(result: Mapping[str, Any]) -> str:
    """Return a result as one line of JSON. Money is text, dates and times are in ISO 8601."""
    return json.dumps(result, default=_as_text, allow_nan=False)


def _as_text(value: object) -> str:
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    raise TypeError(f"{value!r} has no form in JSON")


def check_output(option: str, path: str | None) -> None:
    """Check, before Spark is started, that `write_file` will have a folder to write to.

    Paths in other stores (``s3a://…``) are not checked. Raises `OutputError`.
    """
    if path is None or "://" in path:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise OutputError(f"{option} {path}: the folder {folder} does not exist; create it, or give another file")
    if Path(path).is_dir():
        raise OutputError(f"{option} {path} is a folder; give a file")


def write_file(spark: SparkSession, path: str, lines: Iterable[str]) -> None:
    """Write a text file, locally or to any store (``s3a://…``), atomically: readers see all of it or none.

    Raises `OutputError`.
    """
    if "://" in path:
        write_text(spark, path, "".join(lines))
        return
    draft = Path(f"{path}.draft")
    try:
        with open(draft, "w", encoding="utf-8", newline="", opener=open_without_following) as file:
            file.writelines(lines)
        draft.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason_of(error)}") from error


def csv_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a CSV file one by one, so that memory does not grow with their number."""
    for row in rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(row)
        yield text.getvalue()
