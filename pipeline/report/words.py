"""Numbers, times and names as people read them. Pure; nothing here knows HTML, which `page` escapes.

Names are given by strangers: users and client ids are whatever a client sends. What would not be seen in them, or would
change how what is beside them is read (controls, line breaks, right-to-left overrides), is shown as an escape.
"""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.api_keys import api_name
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from decimal import Decimal

NOTHING: Final = "-"
MAX_NAME: Final = 120
"""Characters of a name; Kafka's client ids may have 32,767."""

MAX_TEXT: Final = 600

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_HIDDEN: Final = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
"""Unicode's categories: controls, formats, private, unassigned, surrogates, line and paragraph separators."""


def name(given: str | None, none: str = NOTHING) -> str:
    """A stranger's name; ``none`` for what has none, and quotes around one that would not be seen."""
    if given is None:
        return none
    shown = text(given, MAX_NAME)
    return shown if shown.strip() else f'"{shown}"'


def text(given: str | None, most: int = MAX_TEXT) -> str:
    """A sentence that may have names in it, of at most so many characters."""
    if given is None:
        return NOTHING
    cut = given if len(given) <= most else given[: most - 1] + "…"
    return "".join(_escaped(each) if unicodedata.category(each) in _HIDDEN else each for each in cut)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def api(key: int | None) -> str:
    """The name of an API key."""
    if key is None:
        return NOTHING
    return api_name(key)


def count(value: float | None) -> str:
    """A whole number, by thousands."""
    return NOTHING if value is None else f"{value:,.0f}"


def some(value: int, noun: str) -> str:
    """So many of a noun, whose plural has an s."""
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}s"


def number(value: float | None) -> str:
    """Three significant digits, never an exponent, by thousands; whole numbers as they are."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 100 or value == round(value):
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3f}" if size >= 0.01 else f"{value:.2g}"


def money(value: Decimal | float | None) -> str:
    """With two decimals, by thousands."""
    return NOTHING if value is None else f"{value:,.2f}"


def bytes_of(value: float | None) -> str:
    """With the binary unit that leaves up to four digits before the point."""
    if value is None:
        return NOTHING
    divisor, unit = byte_unit(value)
    return f"{number(value / divisor) if divisor > 1 else count(value)} {unit}"


def byte_unit(largest: float) -> tuple[int, str]:
    """Divisor and name of the unit for numbers up to ``largest``."""
    power = 0
    while abs(largest) >= 1024 ** (power + 1) and power < len(_BINARY) - 1:
        power += 1
    return 1024**power, _BINARY[power]


def duration(milliseconds: float | None) -> str:
    """By its two largest units from a minute on; seconds or milliseconds below."""
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
    """In percent; nothing of nothing is nothing."""
    if part is None or not whole:
        return NOTHING
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %"


def of_key(key: str | None, value: float | None) -> str:
    """A quota, or what is used of it, in the unit of its key."""
    if value is None:
        return NOTHING
    if key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE):
        return f"{bytes_of(value)}/s"
    return f"{number(value)}{unit_of(key)}"


def unit_of(key: str | None) -> str:
    """What stands behind a number of this key; bytes have a unit by their size."""
    if key == QuotaKey.REQUEST_PERCENTAGE:
        return " %"
    if key == QuotaKey.CONTROLLER_MUTATION_RATE:
        return "/s"
    return " ids" if key == QuotaKey.PRODUCER_IDS_RATE else ""


def second(value: int | None) -> str:
    """Seconds since 1970 as a time of UTC, to the second."""
    return NOTHING if value is None else _utc(value).strftime("%Y-%m-%d %H:%M:%S")


def minute(value: int | None) -> str:
    """The same, to the minute."""
    return NOTHING if value is None else _utc(value).strftime("%Y-%m-%d %H:%M")


def _utc(value: int) -> datetime:
    return datetime.fromtimestamp(value, UTC)


def step(seconds: int) -> str:
    """The length of a bar: "hour", "6 hours", "day", "4 days"."""
    size, unit = (86_400, "day") if seconds % 86_400 == 0 else (3600, "hour")
    return unit if seconds == size else f"{seconds // size} {unit}s"
