"""Errors of Spark in one line: which table and file cannot be read, that a disk is full, that the JVM has ended."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import InputError, OutputError, PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CHARACTERS: Final = 500
"""Maximum length of a cause."""

_UNREADABLE: Final = ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "is not a Parquet file", "DELTA_FILE_NOT_FOUND")
_FILE: Final = re.compile(r"(?:[a-z0-9]+:)?/[^\s'\"]+?\.parquet")
_PARTITION: Final = re.compile(r"/[a-z]+=[^/]*")
_FULL: Final = ("No space left on device", "Disk quota exceeded")
_ENDED: Final = ("Answer from Java side is empty", "Connection refused", "Error while sending or receiving")


def is_spark_error(error: BaseException) -> bool:
    """Return whether an exception was raised by Spark or its JVM."""
    return type(error).__module__.startswith(("pyspark", "py4j"))


def cause_of(error: BaseException) -> str:
    """Return the root cause of an error of Spark in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line.partition("Caused by: ")[2] for line in lines if "Caused by: " in line]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]  # py4j's second line
    return ([*thrown, *causes] or lines)[-1 if causes or thrown else 0][:MAX_CHARACTERS]


def as_pipeline_error(error: BaseException) -> PipelineError | None:
    """Return the error for the user if a damaged file, a full disk or the end of the JVM caused it; else ``None``."""
    text = str(error)
    if is_spark_error(error) and any(each in text for each in _UNREADABLE):
        return InputError(f"cannot read {_place_of(text)}: {cause_of(error)}")
    if any(each in text for each in _FULL):
        return OutputError(
            f"no space left: {cause_of(error)}; free some space on the disk of the lake, or on that of Spark's own"
            " files (--conf spark.local.dir=FOLDER), and run the job again"
        )
    is_gone = is_spark_error(error) and any(each in text for each in _ENDED)
    if is_gone or isinstance(error, ConnectionError):
        return PipelineError(
            "Spark's JVM ended before the job was done: it crashed, or was killed, perhaps because memory ran out;"
            " its own messages are above. --conf spark.driver.memory=4g gives it more memory"
        )
    return None


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Convert errors of Spark by `as_pipeline_error`. Spark finds many errors only when it computes rows."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        converted = as_pipeline_error(error)
        if converted is None:
            raise
        raise converted from error


def _place_of(text: str) -> str:
    """Return the table and the file that an error names."""
    found = _FILE.search(text)
    if found is None:
        return "the lake"
    folder = _PARTITION.sub("", found[0].rpartition("/")[0])
    return f"the table {folder.rpartition('/')[2]}, file {found[0]}"
