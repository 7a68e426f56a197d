"""Losses that are not in the output yet, summed by reason: bounded, without losing any count.

A disk that is full for a day takes one summary for its reason, not one for each second. Used by the writer thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.plugins.usage_records.rows import Losses

if TYPE_CHECKING:
    from headrace.plugins.usage_records.rows import Row

MOST_REASONS: Final = 16
"""Reasons summed separately; the limit is for error texts with variable parts, such as a broker's address."""
OTHER_REASONS: Final = "other reasons"


class LossSummary:
    """The losses for one reason, and when they were found, in seconds since 1970."""

    __slots__ = ("first_second", "losses", "reason", "second")

    def __init__(self, reason: str, second: int) -> None:
        self.reason = reason
        self.first_second = second
        self.second = second
        self.losses = Losses()


class PendingLosses:
    """The loss summaries that are to be written."""

    def __init__(self) -> None:
        self._summaries: dict[str, LossSummary] = {}

    def __bool__(self) -> bool:
        """Return whether there are losses to write."""
        return bool(self._summaries)

    def add(self, reason: str, lost: Row | Losses, second: int) -> None:
        """Count ``lost``, whose loss was found in ``second``."""
        summary = self._summary(reason, second)
        summary.second = max(summary.second, second)
        if isinstance(lost, Losses):
            summary.losses.merge(lost)
        else:
            summary.losses.add(lost)

    def put_back(self, lost: LossSummary) -> None:
        """Add a summary again that was written and then lost itself."""
        summary = self._summary(lost.reason, lost.second)
        summary.first_second = min(summary.first_second, lost.first_second)
        summary.second = max(summary.second, lost.second)
        summary.losses.merge(lost.losses)

    def first(self) -> LossSummary:
        """Return the oldest summary."""
        return next(iter(self._summaries.values()))

    def remove(self, summary: LossSummary) -> None:
        """Remove a summary that was written; later losses for its reason begin a new one."""
        del self._summaries[summary.reason]

    def _summary(self, reason: str, second: int) -> LossSummary:
        if reason not in self._summaries and len(self._summaries) >= MOST_REASONS:
            reason = OTHER_REASONS
        summary = self._summaries.get(reason)
        if summary is None:
            summary = self._summaries[reason] = LossSummary(reason, second)
        return summary
