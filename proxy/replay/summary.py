"""Counts of a replay, and the text that reports them at its end.

Filled by `headrace.proxy.replay.replay`, printed by the command line. It keeps one row for each quota that throttled or
refused a request, so its size depends on the number of entities with quotas, not on the length of the trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.records.replay import Op
from headrace.quota_callbacks.verdicts import Refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.quota_callbacks.records.replay import Usage
    from headrace.quota_callbacks.verdicts import Throttle

TOP: Final = 5
"""Number of quotas in the report: those with the longest sum of throttle times."""


class Tally:
    """Counts of events and throttle times, for an operation or for the quota of an entity."""

    __slots__ = ("events", "longest_ms", "refused", "throttled", "total_ms")

    def __init__(self) -> None:
        self.events = 0
        self.throttled = 0
        """Number of events with a throttle time above 0, including refused ones."""
        self.refused = 0
        self.total_ms = 0
        self.longest_ms = 0

    def count(self, verdict: Throttle | Refuse | None) -> None:
        """Count one event."""
        self.events += 1
        if verdict is None:
            return
        throttle_ms = verdict.throttle_ms
        self.refused += isinstance(verdict, Refuse)
        self.throttled += throttle_ms > 0
        self.total_ms += throttle_ms
        self.longest_ms = max(self.longest_ms, throttle_ms)


class Summary:
    """The counts of one trace."""

    def __init__(self) -> None:
        self.lines = 0
        self.changes = 0
        self.ops: dict[Op, Tally] = {}
        self.quotas: dict[tuple[str, str], Tally] = {}
        """Counts by quota key and entity, only for quotas that throttled or refused at least one event."""
        self.first_ms: int | None = None
        self.last_ms = 0
        self.expired = 0
        self.overflowed = 0

    def changed(self, t_ms: int) -> None:
        """Count one ``alter`` line."""
        self.changes += 1
        self._at(t_ms)

    def count(self, usage: Usage, verdict: Throttle | Refuse | None) -> None:
        """Count one usage line and its verdict."""
        self._at(usage.t_ms)
        tally = self.ops.get(usage.op)
        if tally is None:
            tally = self.ops[usage.op] = Tally()
        tally.count(verdict)
        if verdict is None or verdict.reason is None:
            return
        reason = verdict.reason
        self.quotas.setdefault((reason.quota, reason.entity), Tally()).count(verdict)

    def text(self, elapsed_s: float) -> Iterator[str]:
        """Yield the lines of the report; ``elapsed_s`` is the duration of the replay."""
        events = sum(tally.events for tally in self.ops.values())
        span_ms = 0 if self.first_ms is None else self.last_ms - self.first_ms
        yield (
            f"{self.lines:,} lines replayed in {elapsed_s:,.1f} s;"
            f" usage: {events:,}, quota changes: {self.changes:,}, trace time: {_span(span_ms)}"
        )
        if self.ops:
            yield from _table("op", [(op.value, self.ops[op]) for op in Op if op in self.ops], events=True)
        worst = sorted(self.quotas.items(), key=lambda item: (-item[1].total_ms, -item[1].refused, item[0]))
        if worst:
            rows = [(f"{quota} of {entity}", tally) for (quota, entity), tally in worst[:TOP]]
            yield from _table(f"quotas that throttled most ({len(rows)} of {len(worst):,})", rows, events=False)
        elif self.ops:
            yield "  no client was throttled"
        if self.expired:
            yield f"  {_buckets(self.expired)} dropped after an hour without use, as a broker does"
        if self.overflowed:
            yield (
                f"warning: {self.overflowed:,} clients without a bucket of their own, because there were too many;"
                " their throttle times may be too long"
            )

    def _at(self, t_ms: int) -> None:
        if self.first_ms is None:
            self.first_ms = t_ms
        self.last_ms = t_ms


def _table(head: str, rows: list[tuple[str, Tally]], *, events: bool) -> Iterator[str]:
    cells = [[head, *(["usage"] if events else []), "throttled", "refused", "longest ms", "total ms"]]
    for name, tally in rows:
        numbers = [tally.throttled, tally.refused, tally.longest_ms, tally.total_ms]
        cells.append([name, *(f"{number:,}" for number in ([tally.events, *numbers] if events else numbers))])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, *others in cells:
        padded = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        yield "   ".join((f"  {name:<{widths[0]}}", *padded))


def _buckets(count: int) -> str:
    return "1 bucket" if count == 1 else f"{count:,} buckets"


def _span(ms: int) -> str:
    """Return a duration as text, such as ``2 d 03:04:05.678``."""
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days:,} d ' if days else ''}{hours:02}:{minutes:02}:{seconds:02}.{ms:03}"
