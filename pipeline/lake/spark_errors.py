"""Errors of Spark in one line: which table and file cannot be read, that a disk is full, that the JVM has ended."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import InputError, OutputError, PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CALLING: Final = "An error occurred while calling "
MAX_CHARACTERS: Final = 500
"""Maximum length of a cause."""

_UNREADABLE: Final = ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "is not a Parquet file", "DELTA_FILE_NOT_FOUND")
_FILE: Final = re.compile(r"(?:[a-z0-9]+:)?/[^\s'\"]+?\.parquet")
_PARTITION: Final = re.compile(r"/[a-z]+=[^/]*")
_FULL: Final = ("No space left on device", "Disk quota exceeded")


def is_spark_error(error: BaseException) -> bool:
    """Return whether an exception was raised by Spark or its JVM."""
    return type(error).__module__.startswith(("pyspark", "py4j"))


def cause_of(error: BaseException) -> str:
    """Return the root cause of an error of Spark in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line.partition("Caused by: ")[2] for line in lines if "Caused by: " in line]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]  # py4j's second line
    return ([*thrown, *causes] or lines)[-1 if causes or thrown else 0][:MAX_CHARACTERS]


def as_pipeline_error(error: BaseException, written: str | None = None) -> PipelineError | None:
    """Return the error for the user if a damaged file, a full disk, a server that cannot be reached or the end of the
    JVM caused it; else ``None``. ``written`` is the path that was being written.
    """
    text = str(error)
    doing = f"cannot write {written}: " if written else ""
    if is_spark_error(error) and any(each in text for each in _UNREADABLE):
        return InputError(f"cannot read {_place_of(text)}: {cause_of(error)}")
    if any(each in text for each in _FULL):
        return OutputError(
            f"{doing}no space left: {cause_of(error)}; free some space on the disk of the lake, or on that of Spark's"
            " own files (--conf spark.local.dir=FOLDER), and run the job again"
        )
    if is_spark_error(error) and cause_of(error).startswith("java.net."):
        return PipelineError(f"{doing}a server cannot be reached: {cause_of(error)}")
    if _has_lost_the_jvm(error):
        return PipelineError(
            "Spark's JVM ended before the job was done: it crashed, or was killed, perhaps because memory ran out;"
            " its own messages are above. --conf spark.driver.memory=4g gives it more memory"
        )
    return None


def _has_lost_the_jvm(error: BaseException) -> bool:
    """Return whether the gateway to the JVM has failed, so that there is no answer, such as an exception of Java's."""
    if isinstance(error, ConnectionError):
        return True
    if not is_spark_error(error):
        return False
    from py4j.protocol import Py4JError, Py4JNetworkError

    # py4j reports a call without an answer by an error that has nothing but the name of the method.
    has_no_answer = type(error) is Py4JError and str(error).startswith(_CALLING) and "\n" not in str(error)
    return has_no_answer or isinstance(error, Py4JNetworkError)


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
