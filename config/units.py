"""Durations and sizes: how they are written in the file, and back.

Called by `kinds`. Arithmetic is exact (fractions), so writing a value and reading it again gives the same value.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Final

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

# 19 digits hold every 64-bit number, and 30 decimals every double from a nanosecond up; more would only be slow.
_NUMBER: Final = r"[0-9]{1,19}(\.[0-9]{1,30})?"
DURATION_PATTERN: Final = rf"{_NUMBER} ?({'|'.join(DURATION_UNITS)})"
SIZE_PATTERN: Final = rf"{_NUMBER} ?({'|'.join(SIZE_UNITS)})"

_DURATION: Final = re.compile(DURATION_PATTERN)
_SIZE: Final = re.compile(SIZE_PATTERN)


def parse_duration_s(raw: object) -> float:
    """Read ``"1.5m"`` or a number of seconds; the answer is in seconds.

    Raises `ValueError` for anything else. Zero and more; the bounds of a setting are the caller's.
    """
    if isinstance(raw, str):
        if match := _DURATION.fullmatch(raw):
            unit = match[2]
            return float(Fraction(raw.removesuffix(unit).rstrip()) * DURATION_UNITS[unit])
    elif isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw) and raw >= 0:
        return float(raw)
    raise ValueError(f"{raw!r} is not a duration")


def parse_size_bytes(raw: object) -> int:
    """Read ``"64MiB"`` or a whole number of bytes; the answer is in bytes.

    Raises `ValueError` for anything else, a fraction of a byte among it.
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
    """Write a finite number of seconds, 0 or more, in the largest unit that divides it: ``"10m"``, ``"1500ms"``."""
    exact = Fraction(repr(float(duration_s)))
    for unit, seconds in reversed(DURATION_UNITS.items()):
        if exact and exact % seconds == 0:
            return f"{exact / seconds}{unit}"
    return f"{Decimal(repr(duration_s)):f}s" if exact else "0s"


def format_size(size_bytes: int) -> str:
    """Write a number of bytes in the largest unit that divides it, powers of two first: ``"100MiB"``, ``"500kB"``."""
    for unit in ("GiB", "MiB", "KiB", "GB", "MB", "kB"):
        if size_bytes and size_bytes % SIZE_UNITS[unit] == 0:
            return f"{size_bytes // SIZE_UNITS[unit]}{unit}"
    return f"{size_bytes}B"
