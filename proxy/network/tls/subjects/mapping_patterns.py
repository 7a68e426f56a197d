"""The regular expressions of mapping rules: those of Java, matched within a bound on their time. Pure.

Kafka applies a rule with `java.util.regex`, which may take exponential time, as Python's `re` may; both would block the
event loop, and the owner of a certificate chose the subject that a rule is applied to. A `Pattern` visits
each pair of a state and a position at most once, so its time is at most the product of both numbers, and its result is
still that of Java: of several matches, the one that backtracking would find first. This works without references to
groups and without lookahead, which `pattern_syntax` refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STEPS: Final = 50_000
"""Number of steps for all matches of one name: 60 ms, since a step (a state at a position) takes 1.2 µs here. The rules
in Kafka's documentation need 500 for the names there, and 20,000 for a hostile name of 700 characters."""

LINE_TERMINATORS: Final = "\n\r\x85\u2028\u2029"

Ranges = tuple[tuple[int, int], ...]
"""Code points from and to, both included."""
Spans = tuple[int | None, ...]
"""The start and end of each group: those of group n at 2n and 2n + 1; ``None`` if it has not matched."""


class StepsExceededError(Exception):
    """A match needs more steps than are left."""


class StepBudget:
    """The number of steps that are left for a name."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_STEPS


class Boundary(Enum):
    """An assertion about the position."""

    START = "^"
    END = r"\z"
    LAST_LINE_END = "$"
    """The end, or the line terminator at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Characters:
    """A state that consumes one character within these ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A state that continues at either of two distances, the first one by preference."""

    first: int
    second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A state that continues at a distance."""

    distance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A state that stores the position as the start or the end of a group."""

    slot: int


State = Characters | Split | Jump | Save | Boundary


class Pattern:
    """A compiled pattern. Created by `compile_pattern`; immutable."""

    __slots__ = ("_states", "groups", "names")

    def __init__(self, states: tuple[State, ...], groups: int, names: dict[str, int]) -> None:
        self._states = states
        self.groups = groups
        """Number of groups that capture."""
        self.names = names
        """The numbers of groups by their names."""

    def matches(self, text: str, budget: StepBudget) -> bool:
        """Return whether the pattern matches the whole text (``Matcher.matches``). Raises `StepsExceededError`."""
        return self._run(text, 0, self._visited(text), budget, whole=True) is not None

    def replace_all(self, text: str, replacement: Callable[[Spans], str], budget: StepBudget) -> str:
        """Return the text with each match of the pattern replaced (``String.replaceAll``).

        Raises `StepsExceededError`.
        """
        pieces, copied, start = [], 0, 0
        while start <= len(text):
            found = self._search(text, start, budget)
            if found is None:
                break
            begin, end = found[0] or 0, found[1] or 0
            pieces += [text[copied:begin], replacement(found)]
            copied = end
            start = end + 1 if end == begin else end
        return "".join((*pieces, text[copied:]))

    def _visited(self, text: str) -> bytearray:
        return bytearray((len(self._states) + 1) * (len(text) + 1))

    def _search(self, text: str, start: int, budget: StepBudget) -> Spans | None:
        """Return the spans of the first match from a position on.

        States that were visited from an earlier position have led to no match, and are not visited again.
        """
        visited = self._visited(text)
        for begin in range(start, len(text) + 1):
            found = self._run(text, begin, visited, budget, whole=False)
            if found is not None:
                return found
        return None

    def _run(self, text: str, begin: int, visited: bytearray, budget: StepBudget, *, whole: bool) -> Spans | None:
        """Return the spans of the match that begins at a position, which backtracking finds first."""
        states, width = self._states, len(self._states) + 1
        pending: list[tuple[int, int, Spans]] = [(0, begin, (begin, None, *(None,) * (2 * self.groups)))]
        while pending:
            at, position, spans = pending.pop()
            while not visited[mark := position * width + at]:
                visited[mark] = 1
                budget.left -= 1
                if budget.left < 0:
                    raise StepsExceededError(f"more than {MAX_STEPS} steps")
                if at == len(states):
                    if whole and position < len(text):
                        break
                    return (begin, position, *spans[2:])
                match states[at]:
                    case Characters(ranges=ranges):
                        if position == len(text) or not _contains(ranges, ord(text[position])):
                            break
                        position += 1
                        at += 1
                    case Split(first=first, second=second):
                        pending.append((at + second, position, spans))
                        at += first
                    case Jump(distance=distance):
                        at += distance
                    case Save(slot=slot):
                        spans = (*spans[:slot], position, *spans[slot + 1 :])
                        at += 1
                    case boundary:
                        if not _holds(boundary, text, position):
                            break
                        at += 1
        return None


def _contains(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _holds(boundary: Boundary, text: str, position: int) -> bool:
    if boundary is Boundary.START:
        return position == 0
    if boundary is Boundary.END:
        return position == len(text)
    left = len(text) - position
    if left == 1:
        return text[-1] in LINE_TERMINATORS and not text.endswith("\r\n")
    return left == 0 or (left == 2 and text.endswith("\r\n"))
