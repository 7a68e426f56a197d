"""Numbers, times and names as text. Pure; it does not know HTML, which `page` escapes.

Users and client ids are names that clients choose. Characters that are invisible, or that change how adjacent text is
displayed (controls, line breaks, right-to-left overrides), are shown as escapes.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.api_keys import api_name
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Iterable
    from decimal import Decimal

NOTHING: Final = "-"
MAX_NAME: Final = 120
"""Maximum number of characters shown of a name; Kafka's client ids may have 32,767."""

MAX_TEXT: Final = 600

Units = tuple[tuple[float, str], ...]
"""Sizes and names of units, from the smallest on."""

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_BYTES: Final[Units] = tuple((1024**power, unit) for power, unit in enumerate(_BINARY))
_TIMES: Final[Units] = ((1, "ms"), (1000, "s"), (60_000, "min"), (3_600_000, "h"))
LEAST: Final = 0.001
"""Smaller numbers are shown as "less than" this."""
_HIDDEN: Final = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
"""Unicode categories: controls, formats, private, unassigned, surrogates, line and paragraph separators."""


def name(given: str | None, none: str = NOTHING) -> str:
    """Return the name of a client for display: ``none`` for null, and a name that has only spaces in quotes."""
    if given is None:
        return none
    shown = text(given, MAX_NAME)
    return shown if shown.strip() else f'"{shown}"'


def text(given: str | None, most: int = MAX_TEXT) -> str:
    """Return a sentence, which may contain names, with at most ``most`` characters."""
    if given is None:
        return NOTHING
    cut = given if len(given) <= most else given[: most - 1] + "…"
    return "".join(_escaped(each) if unicodedata.category(each) in _HIDDEN else each for each in cut)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def api(key: int | None) -> str:
    """Return the name of an API key."""
    if key is None:
        return NOTHING
    return api_name(key)


def count(value: float | None) -> str:
    """Return an integer with thousands separators."""
    return NOTHING if value is None else f"{value:,.0f}"


def some(value: int, noun: str, plural: str | None = None) -> str:
    """Return a count and a noun; the plural defaults to the noun with an s."""
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {plural or noun + 's'}"


def number(value: float | None) -> str:
    """Return three significant digits without exponent, with thousands separators; whole numbers in full."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 100 or value == round(value):
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3f}" if size >= 0.01 else f"{value:.2g}"


def money(value: Decimal | float | None) -> str:
    """Return two decimals with thousands separators."""
    return NOTHING if value is None else f"{value:,.2f}"


def bytes_of(value: float | None) -> str:
    """Return a number of bytes in the binary unit that leaves up to four digits before the point."""
    if value is None:
        return NOTHING
    divisor, unit = byte_unit(value)
    return f"{number(value / divisor) if divisor > 1 else count(value)} {unit}"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number in a column of a table that has one unit for all its numbers; ``None`` is shown as `NOTHING`."""

    value: float | None
    units: Units

    def in_unit(self, size: float) -> str:
        """Return the number in a unit of this size, with three significant digits; small numbers as a bound."""
        if self.value is None:
            return NOTHING
        converted = self.value / size
        return f"< {LEAST:g}" if 0 < converted < LEAST else number(converted)


def size_of(value: float | None) -> Quantity:
    """Return a number of bytes for a column."""
    return Quantity(value, _BYTES)


def time_of(milliseconds: float | None) -> Quantity:
    """Return milliseconds for a column."""
    return Quantity(milliseconds, _TIMES)


def unit_of_all(quantities: Iterable[Quantity]) -> tuple[float, str]:
    """Return size and name of the unit of a column: the largest that is not larger than the largest number."""
    units: Units = ()
    largest = 0.0
    for each in quantities:
        units, largest = each.units, max(largest, each.value or 0)
    return next((unit for unit in reversed(units) if unit[0] <= largest), units[0])


def byte_unit(largest: float) -> tuple[int, str]:
    """Return divisor and name of the unit for numbers up to ``largest``."""
    power = 0
    while abs(largest) >= 1024 ** (power + 1) and power < len(_BINARY) - 1:
        power += 1
    return 1024**power, _BINARY[power]


def duration(milliseconds: float | None) -> str:
    """Return the two largest units from a minute on; below that, seconds or milliseconds."""
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1000:
        return f"{number(milliseconds)} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{number(seconds)} s"
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size:,} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{whole} s"


def share(part: float | None, whole: float | None) -> str:
    """Return a percentage; `NOTHING` if ``whole`` is 0."""
    if part is None or not whole:
        return NOTHING
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %"


def of_key(key: str | None, value: float | None) -> str:
    """Return a quota, or usage charged to it, in the unit of its key."""
    if value is None:
        return NOTHING
    if key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE):
        return f"{bytes_of(value)}/s"
    return f"{number(value)}{unit_of(key)}"


def unit_of(key: str | None) -> str:
    """Return the suffix of a number of this key; byte rates have a unit that depends on their size."""
    if key == QuotaKey.REQUEST_PERCENTAGE:
        return " %"
    if key == QuotaKey.CONTROLLER_MUTATION_RATE:
        return "/s"
    return " ids" if key == QuotaKey.PRODUCER_IDS_RATE else ""


def second(value: int | None) -> str:
    """Return seconds since 1970 as UTC time, to the second."""
    return NOTHING if value is None else _utc(value).strftime("%Y-%m-%d %H:%M:%S")


def minute(value: int | None) -> str:
    """Return seconds since 1970 as UTC time, to the minute."""
    return NOTHING if value is None else _utc(value).strftime("%Y-%m-%d %H:%M")


def _utc(value: int) -> datetime:
    return datetime.fromtimestamp(value, UTC)


def step(seconds: int) -> str:
    """Return the length of a bar: "hour", "6 hours", "day", "4 days"."""
    size, unit = (86_400, "day") if seconds % 86_400 == 0 else (3600, "hour")
    return unit if seconds == size else f"{seconds // size} {unit}s"
