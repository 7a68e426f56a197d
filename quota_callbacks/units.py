"""Durations and sizes, such as ``"10s"`` and ``"64MiB"``: parsing, formatting, and annotations for options.

Used by plugins with such options, and by `headrace.config`. Arithmetic with units is exact (fractions), so that
formatting and parsing a value returns the same value.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.quota_callbacks.options import Parsed

if TYPE_CHECKING:
    from collections.abc import Callable

NumberT = TypeVar("NumberT", int, float)

DURATION_UNITS: Final = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
"""Seconds in each unit."""

SIZE_UNITS: Final = {
    "B": 1,
    "kB": 10**3,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
    "GB": 10**9,
    "GiB": 2**30,
}
"""Bytes in each unit."""

# 19 digits suffice for every 64-bit number, and 30 decimals for every double of at least a nanosecond.
_NUMBER: Final = r"[0-9]{1,19}(\.[0-9]{1,30})?"
DURATION_PATTERN: Final = rf"{_NUMBER} ?({'|'.join(DURATION_UNITS)})"
SIZE_PATTERN: Final = rf"{_NUMBER} ?({'|'.join(SIZE_UNITS)})"

_DURATION: Final = re.compile(DURATION_PATTERN)
_SIZE: Final = re.compile(SIZE_PATTERN)


def parse_duration_s(raw: object) -> float:
    """Return the seconds of a duration such as ``"1.5m"`` or a number of seconds, 0 or more.

    Raises `ValueError` for anything else.
    """
    if isinstance(raw, str):
        if match := _DURATION.fullmatch(raw):
            unit = match[2]
            return float(Fraction(raw.removesuffix(unit).rstrip()) * DURATION_UNITS[unit])
    elif isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw) and raw >= 0:
        return float(raw)
    raise ValueError(f"{raw!r} is not a duration")


def parse_size_bytes(raw: object) -> int:
    """Return the bytes of a size such as ``"64MiB"`` or a whole number of bytes.

    Raises `ValueError` for anything else, and for fractions of a byte.
    """
    if isinstance(raw, str):
        if match := _SIZE.fullmatch(raw):
            unit = match[2]
            size = Fraction(raw.removesuffix(unit).rstrip()) * SIZE_UNITS[unit]
            if size.denominator == 1:
                return size.numerator
    elif isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    raise ValueError(f"{raw!r} is not a size")


def format_duration(duration_s: float) -> str:
    """Return a finite duration, 0 or more, in the largest unit that divides it: ``"10m"``, ``"1500ms"``."""
    exact = Fraction(repr(float(duration_s)))
    for unit, seconds in reversed(DURATION_UNITS.items()):
        if exact and exact % seconds == 0:
            return f"{exact / seconds}{unit}"
    return f"{Decimal(repr(duration_s)):f}s" if exact else "0s"


def format_size(size_bytes: int) -> str:
    """Return a size in the largest unit that divides it, preferring powers of two: ``"100MiB"``, ``"500kB"``."""
    for unit in ("GiB", "MiB", "KiB", "GB", "MB", "kB"):
        if size_bytes and size_bytes % SIZE_UNITS[unit] == 0:
            return f"{size_bytes // SIZE_UNITS[unit]}{unit}"
    return f"{size_bytes}B"


def duration(lowest: str, highest: str) -> Parsed:
    """Return the annotation for a duration in seconds between two bounds, both included."""
    described = f'a duration such as "10s" ({", ".join(DURATION_UNITS)}) or a number of seconds'
    number = {"type": "number", "minimum": parse_duration_s(lowest), "maximum": parse_duration_s(highest)}
    return _with_unit(described, lowest, highest, parse_duration_s, DURATION_PATTERN, number, format_duration)


def size(lowest: str, highest: str) -> Parsed:
    """Return the annotation for a size in bytes between two bounds, both included."""
    described = f'a size such as "64MiB" ({", ".join(SIZE_UNITS)}) or a number of bytes'
    number = {"type": "integer", "minimum": parse_size_bytes(lowest), "maximum": parse_size_bytes(highest)}
    return _with_unit(described, lowest, highest, parse_size_bytes, SIZE_PATTERN, number, format_size)


def _with_unit(
    described: str,
    lowest: str,
    highest: str,
    parse: Callable[[object], NumberT],
    pattern: str,
    number: dict[str, Any],
    text_of: Callable[[NumberT], str],
) -> Parsed:
    def parse_bounded(raw: object) -> NumberT:
        with suppress(ValueError, OverflowError):  # the description of valid values is more precise
            value = parse(raw)
            if number["minimum"] <= value <= number["maximum"]:
                return value
        raise ValueError

    schema = {"oneOf": [{"type": "string", "pattern": f"^{pattern}$"}, number]}
    return Parsed(f"{described}, from {lowest} to {highest}", parse_bounded, schema, text_of)
