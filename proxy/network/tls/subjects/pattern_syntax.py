"""The syntax of mapping rules' regular expressions: the part of Java's that `mapping_patterns` can match. Pure.

Not supported are what needs other algorithms: references to groups, lookahead and lookbehind, possessive quantifiers
and atomic groups, a repeat of something that can be empty, and groups that capture within a repeat; and what depends on
the version of Java or of Unicode, or is obscure: word boundaries, ``\\p`` classes, octal numbers, quoting, nested
classes, flags except ``i``. `compile_pattern` refuses them. Source: `java.util.regex.Pattern`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn

from headrace.proxy.network.tls.subjects.mapping_patterns import (
    LINE_TERMINATORS,
    Boundary,
    Characters,
    Jump,
    Pattern,
    Save,
    Split,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.proxy.network.tls.subjects.mapping_patterns import Ranges, State

MAX_STATES: Final = 256
"""Maximum number of states of a pattern. The rules in Kafka's documentation have about 30."""
MAX_NESTING: Final = 50
"""Maximum depth of groups within groups, so that parsing does not exhaust the stack."""

_LAST_CODE_POINT: Final = 0x10FFFF
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_HEXADECIMAL_DIGITS: Final = {"x": 2, "u": 4}
_CASE_DISTANCE: Final = ord("a") - ord("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The states of a part of a pattern, and whether it can match nothing.

    ``groups_within`` is whether a group within this group captures.
    """

    states: tuple[State, ...]
    can_be_empty: bool
    groups_within: bool = False


def _complement(ranges: Ranges) -> Ranges:
    found, following = [], 0
    for low, high in sorted(ranges):
        if low > following:
            found.append((following, low - 1))
        following = max(following, high + 1)
    return (*found, (following, _LAST_CODE_POINT)) if following <= _LAST_CODE_POINT else tuple(found)


def _of(characters: str) -> Ranges:
    return tuple((ord(character), ord(character)) for character in characters)


_DIGITS: Final[Ranges] = ((ord("0"), ord("9")),)
_LOWER, _UPPER = (ord("a"), ord("z")), (ord("A"), ord("Z"))
_WORD: Final[Ranges] = (*_DIGITS, _LOWER, _UPPER, (ord("_"), ord("_")))
_SPACES: Final = _of(" \t\n\x0b\f\r")
_PREDEFINED: Final = {
    "d": _DIGITS,
    "D": _complement(_DIGITS),
    "w": _WORD,
    "W": _complement(_WORD),
    "s": _SPACES,
    "S": _complement(_SPACES),
}
_ANY: Final = Characters(ranges=_complement(_of(LINE_TERMINATORS)))


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _both_cases(ranges: Ranges) -> Ranges:
    """Return the ranges, and their ASCII letters in the other case, as Java's flag ``i`` has it."""
    found = list(ranges)
    for low, high in ranges:
        for (first, last), distance in ((_LOWER, -_CASE_DISTANCE), (_UPPER, _CASE_DISTANCE)):
            if max(low, first) <= min(high, last):
                found.append((max(low, first) + distance, min(high, last) + distance))
    return tuple(found)


class _Parser:
    """A parser by recursive descent, from a pattern to states."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._both_cases = False
        self.names: dict[str, int] = {}
        self.groups = 0

    def parse(self) -> tuple[State, ...]:
        found = self._alternatives()
        if self._at < len(self._text):
            self._fail("a closing parenthesis without an opening one")
        return found.states

    def _fail(self, reason: str) -> NoReturn:
        raise ValueError(f"{reason}, at character {self._at + 1} of the pattern")

    def _peek(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _accept(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        if found:
            self._at += len(text)
        return found

    def _next(self, missing: str) -> str:
        character = self._peek() or self._fail(missing)
        self._at += 1
        return character

    def _sized(self, states: Sequence[State], *, can_be_empty: bool) -> Fragment:
        if len(states) > MAX_STATES:
            self._fail(f"more than {MAX_STATES} states")
        return Fragment(states=tuple(states), can_be_empty=can_be_empty)

    def _alternatives(self) -> Fragment:
        branches = [self._sequence()]
        while self._accept("|"):
            branches.append(self._sequence())
        states = branches[-1].states
        for branch in reversed(branches[:-1]):
            body = branch.states
            states = (Split(first=1, second=len(body) + 2), *body, Jump(distance=len(states) + 1), *states)
        return self._sized(states, can_be_empty=any(branch.can_be_empty for branch in branches))

    def _sequence(self) -> Fragment:
        states: list[State] = []
        can_be_empty = True
        while self._peek() not in ("", "|", ")"):
            part = self._quantified(self._atom())
            states += part.states
            can_be_empty = can_be_empty and part.can_be_empty
        return self._sized(states, can_be_empty=can_be_empty)

    def _atom(self) -> Fragment:
        character = self._next("an empty part")
        match character:
            case "(":
                return self._group()
            case "[":
                return self._one(self._class())
            case ".":
                return Fragment(states=(_ANY,), can_be_empty=False)
            case "^":
                return Fragment(states=(Boundary.START,), can_be_empty=True)
            case "$":
                return Fragment(states=(Boundary.LAST_LINE_END,), can_be_empty=True)
            case "*" | "+" | "?" | "{":
                self._fail(f"{character} without anything to repeat")
            case "\\" if self._peek() in ("A", "z"):
                boundary = Boundary.START if self._next("") == "A" else Boundary.END
                return Fragment(states=(boundary,), can_be_empty=True)
            case "\\":
                return self._one(self._escape())
        return self._one(_of(character))

    def _one(self, ranges: Ranges) -> Fragment:
        found = Characters(ranges=_both_cases(ranges) if self._both_cases else ranges)
        return Fragment(states=(found,), can_be_empty=False)

    def _group(self) -> Fragment:
        both_cases = self._both_cases
        slot = None
        if self._accept("?i)"):
            self._both_cases = True  # up to the end of the group around it
            return Fragment(states=(), can_be_empty=True)
        if self._accept("?i:"):
            self._both_cases = True
        elif not self._accept("?:"):
            slot = self._capture()
        groups = self.groups
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._fail(f"groups nested more than {MAX_NESTING} times")
        body = self._alternatives()
        self._depth -= 1
        if not self._accept(")"):
            self._fail("a group that is not closed")
        self._both_cases = both_cases
        states = body.states if slot is None else (Save(slot=slot), *body.states, Save(slot=slot + 1))
        found = self._sized(states, can_be_empty=body.can_be_empty)
        return replace(found, groups_within=self.groups > groups)

    def _capture(self) -> int:
        """Read what follows the parenthesis of a group that captures; return its slot."""
        self.groups += 1
        if self._accept("?<") and self._peek().isalpha():
            end = self._text.find(">", self._at)
            name = self._text[self._at : end] if end >= 0 else ""
            if not (name.isascii() and name.isalnum()):
                self._fail("a group's name that is not letters and digits")
            if name in self.names:
                self._fail(f"a second group with the name {name}")
            self.names[name] = self.groups
            self._at = end + 1
        elif self._peek() == "?" or self._text[self._at - 1] != "(":
            self._fail("flags other than (?i), lookahead, lookbehind and atomic groups are not supported")
        return 2 * self.groups

    def _escape(self) -> Ranges:
        """Read what follows a backslash and stands for one character."""
        character = self._next("a backslash without a character")
        if character in _PREDEFINED:
            return _PREDEFINED[character]
        if character in _CONTROLS:
            return _of(_CONTROLS[character])
        if (count := _HEXADECIMAL_DIGITS.get(character)) is not None:
            digits = self._text[self._at : self._at + count]
            if len(digits) < count or not set(digits) <= set("0123456789abcdefABCDEF"):
                self._fail(f"\\{character} without {count} hexadecimal digits")
            self._at += count
            return ((int(digits, 16), int(digits, 16)),)
        if character.isascii() and character.isalnum():
            self._fail(f"\\{character} is not supported")
        return _of(character)

    def _class(self) -> Ranges:
        negated = self._accept("^")
        if self._peek() == "]":
            self._fail("a class that begins with ], which has to be written \\]")
        ranges: list[tuple[int, int]] = []
        while not self._accept("]"):
            ranges += self._class_member()
        listed = _both_cases(tuple(ranges)) if self._both_cases else tuple(ranges)
        return _complement(listed) if negated else listed

    def _class_member(self) -> Ranges:
        first = self._class_character()
        if not _is_one(first) or self._peek() != "-" or self._peek(1) in ("]", ""):
            return first
        self._at += 1
        last = self._class_character()
        if not _is_one(last) or last[0] < first[0]:
            self._fail("an invalid range of characters")
        return ((first[0][0], last[0][1]),)

    def _class_character(self) -> Ranges:
        character = self._next("a class that is not closed")
        if character == "\\":
            return self._escape()
        if character == "[" or (character == "&" and self._peek() == "&"):
            self._fail("classes within classes are not supported")
        return _of(character)

    def _quantified(self, atom: Fragment) -> Fragment:
        bounds = self._bounds()
        if bounds is None:
            return atom
        least, most = bounds
        if self._peek() == "+":
            self._fail("possessive quantifiers are not supported")
        lazy = self._accept("?")
        if atom.can_be_empty and most != 1:
            self._fail("a repeat of something that can be empty is not supported")
        if atom.groups_within and most != 1:  # Java keeps the groups of some repeats that did not lead to a match
            self._fail("groups within a repeat are not supported; with (?:...) they do not capture")
        if (max(least, most or 0) or 1) * (len(atom.states) + 1) > MAX_STATES:
            self._fail(f"more than {MAX_STATES} states")
        body = atom.states
        states: tuple[State, ...] = body * least
        if most is None:
            states += (_split(1, len(body) + 2, lazy=lazy), *body, Jump(distance=-len(body) - 1))
        else:
            for left in range(most - least, 0, -1):
                states += (_split(1, left * (len(body) + 1), lazy=lazy), *body)
        return self._sized(states, can_be_empty=atom.can_be_empty or least == 0)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._accept(sign):
                return least, most
        return self._counts() if self._accept("{") else None

    def _counts(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        lowest, comma, highest = self._text[self._at : end].partition(",") if end >= 0 else ("", "", "")
        for number in (lowest, highest or lowest):
            if not (number.isascii() and number.isdigit() and len(number) < 10):
                self._fail("a quantifier that is not {n}, {n,} or {n,m}")
        self._at = end + 1
        least, most = int(lowest), None if comma else int(lowest)
        if highest:
            most = int(highest)
        if most is not None and most < least:
            self._fail("a quantifier whose maximum is below its minimum")
        return least, most


def _split(nearer: int, farther: int, *, lazy: bool) -> Split:
    return Split(first=farther, second=nearer) if lazy else Split(first=nearer, second=farther)


def compile_pattern(text: str) -> Pattern:
    """Return the pattern that a regular expression of Java describes.

    Raises `ValueError` with the reason, and the position, for what Java or this module does not support.
    """
    parser = _Parser(text)
    states = parser.parse()
    return Pattern(states, parser.groups, parser.names)
