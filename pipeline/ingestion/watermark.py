"""The newest second that ingest has written, kept in a file beside the tables; hours far before it are final.

A run uses the watermark from before its start, so that the records of several proxies that one run reads one after the
other do not make each other late. A run that was killed continues with the watermark that it started with, so that a
repeated batch gives the same result. A run is identified by its source's checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import OutputError
from headrace.pipeline.lake.tables import exists, read_text, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.pipeline.lake.tables import Lake

FILE: Final = "_ingest/watermark.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that has not ended in order: it is running, or was killed."""

    before: int | None
    """The watermark when it started."""
    newest: int | None
    """The newest second that it has written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The newest second of all runs that have ended, and the runs that have not."""

    second: int | None = None
    runs: Mapping[str, Run] = field(default_factory=dict)

    @classmethod
    def read(cls, lake: Lake) -> Watermark:
        """Read the file; without one, return the initial state. Raises `OutputError` if the file is damaged."""
        path = lake.path(FILE)
        if not exists(lake.spark, path):
            return cls()
        try:
            kept = json.loads(read_text(lake.spark, path))
            runs = {
                source: Run(before=_second(run["before"]), newest=_second(run["newest"]))
                for source, run in kept["runs"].items()
            }
            return cls(second=_second(kept["second"]), runs=runs)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutputError(f"{path} is damaged ({error!r}); remove it to start without a watermark") from error

    def write(self, lake: Lake) -> None:
        """Write the file atomically. Raises `OutputError`."""
        runs = {source: {"before": run.before, "newest": run.newest} for source, run in self.runs.items()}
        write_text(lake.spark, lake.path(FILE), json.dumps({"second": self.second, "runs": runs}))

    def begun(self, source: str) -> Watermark:
        """Return the state after ``source`` has started; an unfinished run of this source is continued."""
        if source in self.runs:
            return self
        return replace(self, runs={**self.runs, source: Run(before=self.second, newest=None)})

    def before(self, source: str) -> int | None:
        """Return the watermark that applies to the run of ``source``."""
        return self.runs[source].before

    def moved(self, source: str, newest: int | None) -> Watermark:
        """Return the state after the run of ``source`` has written records up to the second ``newest``."""
        run = self.runs[source]
        return replace(self, runs={**self.runs, source: replace(run, newest=_later(run.newest, newest))})

    def ended(self, source: str) -> Watermark:
        """Return the state after the run of ``source`` has ended in order; unchanged if there is no such run."""
        others = {each: run for each, run in self.runs.items() if each != source}
        newest = self.runs[source].newest if source in self.runs else None
        return Watermark(second=_later(self.second, newest), runs=others)


def _later(one: int | None, other: int | None) -> int | None:
    return max((second for second in (one, other) if second is not None), default=None)


def _second(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{value!r} is not a second")
