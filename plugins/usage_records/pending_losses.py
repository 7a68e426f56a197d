"""Losses that the stream has not told yet, summed up by reason: bounded, and nothing is forgotten.

A disk that is full for a day costs a mark for its reason, and not one for each second. In the writer's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.plugins.usage_records.rows import Losses

if TYPE_CHECKING:
    from headrace.plugins.usage_records.rows import Row

MOST_REASONS: Final = 16
"""Kept apart; an error's text may hold what changes, such as a broker's address."""
OTHER_REASONS: Final = "other reasons"


class LossMark:
    """What was lost for one reason, and when that was found, in seconds since 1970."""

    __slots__ = ("first_second", "losses", "reason", "second")

    def __init__(self, reason: str, second: int) -> None:
        self.reason = reason
        self.first_second = second
        self.second = second
        self.losses = Losses()


class PendingLosses:
    """The marks that are to be written."""

    def __init__(self) -> None:
        self._marks: dict[str, LossMark] = {}

    def __bool__(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._marks)

    def add(self, reason: str, lost: Row | Losses, second: int) -> None:
        """It was found in ``second`` that this is lost."""
        mark = self._mark(reason, second)
        mark.second = max(mark.second, second)
        if isinstance(lost, Losses):
            mark.losses.merge(lost)
        else:
            mark.losses.add(lost)

    def put_back(self, mark: LossMark) -> None:
        """``mark`` was told, and is lost itself."""
        kept = self._mark(mark.reason, mark.second)
        kept.first_second = min(kept.first_second, mark.first_second)
        kept.second = max(kept.second, mark.second)
        kept.losses.merge(mark.losses)

    def first(self) -> LossMark:
        """The oldest."""
        return next(iter(self._marks.values()))

    def told(self, mark: LossMark) -> None:
        """It was written; what is lost from now on is another mark's."""
        del self._marks[mark.reason]

    def _mark(self, reason: str, second: int) -> LossMark:
        if reason not in self._marks and len(self._marks) >= MOST_REASONS:
            reason = OTHER_REASONS
        mark = self._marks.get(reason)
        if mark is None:
            mark = self._marks[reason] = LossMark(reason, second)
        return mark
