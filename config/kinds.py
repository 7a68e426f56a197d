"""The kinds of values a key can have: how each is read, spelled, and described to an editor.

Called by `keys` and `quotas`, instantiated in `schema`. A kind knows one value and nothing of keys, files or flags.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from config.units import (
    DURATION_PATTERN,
    DURATION_UNITS,
    SIZE_PATTERN,
    SIZE_UNITS,
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
)

if TYPE_CHECKING:
    from config.problems import Path

T = TypeVar("T")
EnumT = TypeVar("EnumT", bound=StrEnum)

JsonSchema: TypeAlias = dict[str, object]


class Nothing(StrEnum):
    """Stands for a value that is not there, since every other object may be one."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something wrong inside a value. ``path`` leads there from the value; ``first`` to what it clashes with."""

    rule: str
    path: Path = ()
    found: object = NOTHING
    first: Path | None = None

    def under(self, *outer: str | int) -> Fault:
        """The same fault, seen from further out."""
        first = None if self.first is None else (*outer, *self.first)
        return Fault(rule=self.rule, path=(*outer, *self.path), found=self.found, first=first)


class UnfitError(Exception):
    """A value is not of its kind; ``faults`` says where and why. Turned into problems by `loading`."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        super().__init__(self.faults)


class Kind(ABC, Generic[T]):
    """What a value must be. ``expected`` says it as a noun, for people."""

    __slots__ = ("expected",)
    expected: str

    def read(self, raw: object) -> T:
        """Turn what `tomllib` found into the value; `UnfitError` if it does not fit."""
        return self._read(raw)

    def to_toml(self, value: T) -> object:
        """Turn a value back into what stands in the file."""
        return self._spell(value)

    def json_schema(self) -> JsonSchema:
        """The values that fit, as far as JSON Schema can say it."""
        return self._schema()

    def from_flag(self, given: object) -> object:
        """Turn what the command line hands over into what would stand in the file."""
        return self._from_flag(given)

    @abstractmethod
    def _read(self, raw: object) -> T: ...

    @abstractmethod
    def _schema(self) -> JsonSchema: ...

    def _spell(self, value: T) -> object:
        return value

    def _from_flag(self, given: object) -> object:
        return given

    def unfit(self, found: object, why: str = "") -> UnfitError:
        """The error for a value that is not what was expected."""
        rule = f"expected {self.expected}"
        return UnfitError([Fault(rule=f"{rule}; {why}" if why else rule, found=found)])


class Boolean(Kind[bool]):
    """``true`` or ``false``."""

    __slots__ = ()

    def __init__(self) -> None:
        self.expected = "true or false"

    def _read(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        raise self.unfit(raw)

    def _schema(self) -> JsonSchema:
        return {"type": "boolean"}


class Whole(Kind[int]):
    """A whole number between two bounds, both included."""

    __slots__ = ("_highest", "_lowest")

    def __init__(self, lowest: int, highest: int) -> None:
        self._lowest = lowest
        self._highest = highest
        self.expected = f"a whole number from {lowest} to {highest}"

    def _read(self, raw: object) -> int:
        if isinstance(raw, int) and not isinstance(raw, bool) and self._lowest <= raw <= self._highest:
            return raw
        raise self.unfit(raw)

    def _schema(self) -> JsonSchema:
        return {"type": "integer", "minimum": self._lowest, "maximum": self._highest}

    def _from_flag(self, given: object) -> object:
        return int(given) if isinstance(given, str) and re.fullmatch("-?[0-9]{1,19}", given) else given


class Duration(Kind[float]):
    """A duration in seconds, between two bounds, both included."""

    __slots__ = ("_highest_s", "_lowest_s")

    def __init__(self, lowest: str, highest: str) -> None:
        self._lowest_s = parse_duration_s(lowest)
        self._highest_s = parse_duration_s(highest)
        units = ", ".join(DURATION_UNITS)
        self.expected = f'a duration such as "10s" ({units}) or a number of seconds, from {lowest} to {highest}'

    def _read(self, raw: object) -> float:
        try:
            duration_s = parse_duration_s(raw)
        except (ValueError, OverflowError):
            raise self.unfit(raw) from None
        if not self._lowest_s <= duration_s <= self._highest_s:
            raise self.unfit(raw)
        return duration_s

    def _spell(self, value: float) -> object:
        return format_duration(value)

    def _schema(self) -> JsonSchema:
        seconds: JsonSchema = {"type": "number", "minimum": self._lowest_s, "maximum": self._highest_s}
        return {"oneOf": [{"type": "string", "pattern": f"^{DURATION_PATTERN}$"}, seconds]}

    def _from_flag(self, given: object) -> object:
        return _number_or_text(given)


class Size(Kind[int]):
    """A size in bytes, between two bounds, both included."""

    __slots__ = ("_highest_bytes", "_lowest_bytes")

    def __init__(self, lowest: str, highest: str) -> None:
        self._lowest_bytes = parse_size_bytes(lowest)
        self._highest_bytes = parse_size_bytes(highest)
        units = ", ".join(SIZE_UNITS)
        self.expected = f'a size such as "64MiB" ({units}) or a number of bytes, from {lowest} to {highest}'

    def _read(self, raw: object) -> int:
        try:
            size_bytes = parse_size_bytes(raw)
        except ValueError:
            raise self.unfit(raw) from None
        if not self._lowest_bytes <= size_bytes <= self._highest_bytes:
            raise self.unfit(raw)
        return size_bytes

    def _spell(self, value: int) -> object:
        return format_size(value)

    def _schema(self) -> JsonSchema:
        number: JsonSchema = {"type": "integer", "minimum": self._lowest_bytes, "maximum": self._highest_bytes}
        return {"oneOf": [{"type": "string", "pattern": f"^{SIZE_PATTERN}$"}, number]}

    def _from_flag(self, given: object) -> object:
        return _number_or_text(given)


def _number_or_text(given: object) -> object:
    """On the command line a number has no type of its own: ``--drain-timeout 30`` is 30 seconds, as in the file."""
    if isinstance(given, str):
        if re.fullmatch(r"[0-9]{1,19}", given):
            return int(given)
        if re.fullmatch(r"[0-9]{1,19}\.[0-9]{1,19}", given):
            return float(given)
    return given


class Text(Kind[str]):
    """A string that a pattern describes."""

    __slots__ = ("_pattern",)

    def __init__(self, expected: str, pattern: str = r"[\s\S]+") -> None:
        self._pattern = pattern
        self.expected = expected

    def _read(self, raw: object) -> str:
        if isinstance(raw, str) and re.fullmatch(self._pattern, raw):
            return raw
        raise self.unfit(raw)

    def _schema(self) -> JsonSchema:
        return {"type": "string", "pattern": f"^{self._pattern}$"}


class Choice(Kind[EnumT]):
    """One of the values of an enum."""

    __slots__ = ("_choices",)

    def __init__(self, choices: type[EnumT]) -> None:
        self._choices = choices
        *most, last = (f'"{choice.value}"' for choice in choices)
        self.expected = f"{', '.join(most)} or {last}"

    def _read(self, raw: object) -> EnumT:
        for choice in self._choices:
            if raw == choice.value:
                return choice
        raise self.unfit(raw, did_you_mean(raw, [f"{choice}" for choice in self._choices], quote='"'))

    def _spell(self, value: EnumT) -> object:
        return value.value

    def _schema(self) -> JsonSchema:
        return {"enum": [choice.value for choice in self._choices]}


def did_you_mean(written: object, known: Iterable[str], *, quote: str = "") -> str:
    """The closest known word as a question, or nothing if none is close."""
    close = difflib.get_close_matches(written.lower(), list(known), n=1) if isinstance(written, str) else ()
    return f"did you mean {quote}{close[0]}{quote}?" if close else ""


class ListOf(Kind[tuple[T, ...]]):
    """A list of values of one kind, none of them twice."""

    __slots__ = ("_item", "_shortest")

    def __init__(self, expected: str, item: Kind[T], *, shortest: int = 0) -> None:
        self.expected = expected
        self._item = item
        self._shortest = shortest

    def _read(self, raw: object) -> tuple[T, ...]:
        if not isinstance(raw, list) or len(raw) < self._shortest:
            raise self.unfit(raw)
        places: dict[T, int] = {}
        faults: list[Fault] = []
        for index, item in enumerate(raw):
            try:
                value = self._item.read(item)
            except UnfitError as unfit:
                faults += (fault.under(index) for fault in unfit.faults)
                continue
            first = places.setdefault(value, index)
            if first != index:
                faults.append(Fault(rule="stands in this list twice", path=(index,), found=item, first=(first,)))
        if faults:
            raise UnfitError(faults)
        return tuple(places)

    def _spell(self, value: tuple[T, ...]) -> object:
        return [self._item.to_toml(item) for item in value]

    def _schema(self) -> JsonSchema:
        return {
            "type": "array",
            "items": self._item.json_schema(),
            "uniqueItems": True,
            "minItems": self._shortest,
        }

    def _from_flag(self, given: object) -> object:
        # --bootstrap-servers a:9092,b:9092, or the flag given several times
        if isinstance(given, str):
            given = (given,)
        if not isinstance(given, Sequence):
            return given
        return [self._item.from_flag(item.strip()) for part in given for item in str(part).split(",")]
