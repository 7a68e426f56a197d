"""The newest seconds that ingest has written, a small file for each source; hours far before them are final.

The watermark is the newest second of all runs that have ended. A run uses the watermark from before its start, so that
the records of several proxies that one run reads one after the other do not make each other late. A run that was killed
continues with the watermark that it started with, so that a repeated batch gives the same result. A source is
identified by the name of its checkpoint. Only its own ingest writes its file, so several may run at the same time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import OutputError
from headrace.pipeline.lake.stores import exists, files_below, read_text, write_text

if TYPE_CHECKING:
    from headrace.pipeline.lake.tables import Lake

FOLDER: Final = "_ingest"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The state that is stored for one source."""

    second: int | None = None
    """The newest second of its runs that have ended."""
    running: bool = False
    """Whether it has a run that has not ended normally: it is running, or was killed."""
    before: int | None = None
    """The watermark when this run started."""
    newest: int | None = None
    """The newest second that this run has written."""


class Watermark:
    """The files of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def second(self) -> int | None:
        """Return the newest second of all runs that have ended. Raises `OutputError` if a file is damaged."""
        folder = self._lake.path(FOLDER)
        if not exists(self._lake.spark, folder):
            return None
        names = [name for name in files_below(self._lake.spark, folder) if name.endswith(".json")]
        return max((second for name in names if (second := self._read(name).second) is not None), default=None)

    def second_after(self, source: str) -> int | None:
        """Return what `second` will be when the run of a source has ended. Raises `OutputError`."""
        return _later(self.second(), self.of(source).newest)

    def begin(self, source: str) -> int | None:
        """Begin a run, or continue one that was killed; return the watermark that applies to it."""
        state = self.of(source)
        if not state.running:
            state = SourceState(second=state.second, running=True, before=self.second())
            self.write(source, state)
        return state.before

    def move(self, source: str, newest: int | None, before: int | None) -> None:
        """Note that the run whose watermark is ``before`` has written records up to the second ``newest``.

        Another run of the same source may have ended meanwhile, so that the file does not have ``before`` any more.
        """
        state = self.of(source)
        newest = _later(state.newest, newest)
        if newest != state.newest:
            self.write(source, SourceState(second=state.second, running=True, before=before, newest=newest))

    def end(self, source: str) -> None:
        """Mark the run as ended; do nothing if there is none."""
        state = self.of(source)
        if state.running:
            self.write(source, SourceState(second=_later(state.second, state.newest)))

    def of(self, source: str) -> SourceState:
        """Return the state of a source. Raises `OutputError` if its file is damaged."""
        name = _file_of(source)
        return self._read(name) if exists(self._lake.spark, self._path(name)) else SourceState()

    def write(self, source: str, state: SourceState) -> None:
        """Write the file of a source atomically. Raises `OutputError`."""
        run = {"before": state.before, "newest": state.newest} if state.running else None
        text = json.dumps({"second": state.second, "run": run})
        write_text(self._lake.spark, self._path(_file_of(source)), text)

    def _read(self, name: str) -> SourceState:
        path = self._path(name)
        try:
            kept = json.loads(read_text(self._lake.spark, path))
            run = kept["run"]
            if run is None:
                return SourceState(second=_second(kept["second"]))
            before, newest = _second(run["before"]), _second(run["newest"])
            return SourceState(second=_second(kept["second"]), running=True, before=before, newest=newest)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutputError(f"{path} is damaged ({error!r}); remove it to start without a watermark") from error

    def _path(self, name: str) -> str:
        return self._lake.path(f"{FOLDER}/{name}")


def _file_of(source: str) -> str:
    return f"{source}.json"


def _later(one: int | None, other: int | None) -> int | None:
    return max((second for second in (one, other) if second is not None), default=None)


def _second(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{value!r} is not a second")
