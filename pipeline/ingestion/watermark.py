"""How far the lake is: the newest second that ingest has taken in, beside the tables.

Hours far behind it are final. What decides is the watermark from before a run, so that the histories of several
proxies, which one run takes in one after the other, do not make each other late; and a run that was killed goes on
under the watermark that it began with, so that a batch that is repeated is judged as before. Runs are known by their
source's checkpoint.
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
    """One that has not ended in order: it runs, or was killed."""

    before: int | None
    """The watermark when it began."""
    newest: int | None
    """The newest second that it has taken in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The newest second of all runs that have ended, and the runs that have not."""

    second: int | None = None
    runs: Mapping[str, Run] = field(default_factory=dict)

    @classmethod
    def read(cls, lake: Lake) -> Watermark:
        """As it was written last. Raises `OutputError` when it is damaged."""
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
            raise OutputError(f"{path} is damaged ({error!r}); remove it: the watermark then begins anew") from error

    def write(self, lake: Lake) -> None:
        """In one step. Raises `OutputError`."""
        runs = {source: {"before": run.before, "newest": run.newest} for source, run in self.runs.items()}
        write_text(lake.spark, lake.path(FILE), json.dumps({"second": self.second, "runs": runs}))

    def begun(self, source: str) -> Watermark:
        """``source`` runs; if its last run has not ended, that goes on."""
        if source in self.runs:
            return self
        return replace(self, runs={**self.runs, source: Run(before=self.second, newest=None)})

    def before(self, source: str) -> int | None:
        """The one in force for the run of ``source``."""
        return self.runs[source].before

    def moved(self, source: str, newest: int | None) -> Watermark:
        """The run of ``source`` has taken in ``newest``."""
        run = self.runs[source]
        return replace(self, runs={**self.runs, source: replace(run, newest=_later(run.newest, newest))})

    def ended(self, source: str) -> Watermark:
        """The run of ``source`` has ended in order; nothing happens when there is none."""
        others = {each: run for each, run in self.runs.items() if each != source}
        newest = self.runs[source].newest if source in self.runs else None
        return Watermark(second=_later(self.second, newest), runs=others)


def _later(one: int | None, other: int | None) -> int | None:
    return max((second for second in (one, other) if second is not None), default=None)


def _second(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{value!r} is no second")
