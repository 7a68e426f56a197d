"""Records of the topic of quotas: one for each change of one key of one entity.

The key of a record is the entity and the quota key, as JSON. Its value is the new value of the quota as a JSON number,
or null, which Kafka calls a tombstone, for a quota that is removed. The header ``change`` has what the audit needs.
Pure: knows neither Kafka clients nor where records are kept.

What a record does to its quota depends on this record alone. This is what makes compaction safe: Kafka's log cleaner
keeps at least the last record of each key, so a reader of the compacted topic ends with the same quotas as one that
has read all records. Therefore a record with a valid key and an unreadable value removes the quota, as if it was null;
if it was ignored instead, the previous value would be in force in proxies that read it before compaction, and in no
other. For the same reason a key has exactly one valid form. A record with another key concerns no quota; that with the
key `IMPORT_KEY` says how far the import of the brokers' quotas is.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from headrace.proxy.quotas.entity_text import entity_text, parse_entity_text
from headrace.proxy.quotas.store import Author, ImportState
from headrace.quota_callbacks.entities import bounded_name

if TYPE_CHECKING:
    from headrace.quota_callbacks.entities import QuotaEntity

VERSION: Final = 1
"""Version of the header. Later versions have to keep the form of keys and values: if a record has a later header, its
quota counts, and its author is unknown. Anyone who can write to the topic could otherwise stop all proxies."""
HEADER: Final = "change"
UNKNOWN_AUTHOR: Final = Author(principal="unknown", address="unknown")
"""The author of a record without a readable header, such as one of ``kafka-console-producer``."""
RECORD_OVERHEAD: Final = 64
"""Bytes of a record beside its key, value and header, at most: eight varints, and the name of the header."""

IMPORT_KEY: Final = b'{"import":"brokers"}'

_PREFIX: Final = '{"entity":'
_MIDDLE: Final = ',"key":'
_OTHER_FORM: Final = "the key of the record does not have the form that is compared by compaction"
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that is to be appended."""

    key: bytes
    value: bytes | None
    header: bytes

    @property
    def size(self) -> int:
        """Size in a batch, in bytes; never too low."""
        return len(self.key) + len(self.value or b"") + len(self.header) + RECORD_OVERHEAD


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record as it was read. ``header`` is that of the name `HEADER`, or ``None``."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    header: bytes | None


@dataclass(frozen=True, slots=True)
class Header:
    """The fields in the header of a record. ``alter`` identifies the call of `QuotaStore.alter`."""

    alter: str
    author: Author
    old: float | None
    """The value that the writer knew. Another writer may have changed it in between."""


UNKNOWN_HEADER: Final = Header("", UNKNOWN_AUTHOR, None)


def exact_number(value: float, key: str) -> float:
    """Return a value as a float. Raises `ValueError` for NaN and for an integer that is too large."""
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{key}: the value is too large") from None
    if math.isnan(number):
        raise ValueError(f"{key} = {value!r}: must be a number")
    return number


def record_key(entity: QuotaEntity, key: str) -> bytes:
    """Return the key of a record, such as ``{"entity":{"user":"alice"},"key":"producer_byte_rate"}``."""
    return f"{_PREFIX}{entity_text(entity)}{_MIDDLE}{_encode(key)}}}".encode()


def parse_record_key(data: bytes | None) -> tuple[QuotaEntity, str]:
    """Return the entity and the quota key. Raises `ValueError` if this is not the one form of a key."""
    text = (data or b"").decode("ascii")
    middle = text.rfind(_MIDDLE)
    if not text.startswith(_PREFIX) or middle < 0 or not text.endswith("}"):
        raise ValueError("the key of the record is not an entity and a quota key")
    return _parse_entity(text[len(_PREFIX) : middle]), _parse_key(text[middle + len(_MIDDLE) : -1])


@lru_cache(maxsize=8)  # the quotas of an entity are mostly set together
def _parse_entity(text: str) -> QuotaEntity:
    entity = parse_entity_text(text)
    if entity_text(entity) != text:
        raise ValueError(_OTHER_FORM)
    return entity


@lru_cache(maxsize=64)
def _parse_key(text: str) -> str:
    key = json.loads(text)
    if not isinstance(key, str) or _encode(key) != text:
        raise ValueError(_OTHER_FORM)
    return key


def new_record(entity: QuotaEntity, key: str, new: float | None, header: Header) -> NewRecord:
    """Return the record that sets or removes a quota."""
    content = {
        "version": VERSION,
        "alter": header.alter,
        "principal": header.author.principal,
        "address": header.author.address,
        "old": header.old,
    }
    value = None if new is None else _encode(new).encode()
    return NewRecord(record_key(entity, key), value, _encode(content).encode())


def import_record(state: ImportState) -> NewRecord:
    """Return the record that says how far the import of the brokers' quotas is."""
    return NewRecord(IMPORT_KEY, _encode(state.value).encode(), _encode({"version": VERSION}).encode())


def parse_import_state(data: bytes | None) -> ImportState:
    """Return the state of the import; a value that is not known counts as an import that is over."""
    return ImportState.BEGUN if data == import_record(ImportState.BEGUN).value else ImportState.OVER


def parse_value(data: bytes | None) -> float | None:
    """Return the value of a record; ``None`` for a removal. Raises `ValueError` if it is not a number."""
    if data is None:
        return None
    text = data.decode("ascii") if len(data) <= _LONGEST_NUMBER else ""
    number = float(text) if text and "_" not in text else math.nan  # Python reads 1_0 as 10
    if math.isnan(number):
        raise ValueError("the value of the record is not a number")
    return number


def parse_header(data: bytes | None) -> Header:
    """Return the content of the header; `UNKNOWN_HEADER` if it is missing, malformed, or of a later version."""
    try:
        content = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return UNKNOWN_HEADER
    if not isinstance(content, dict):
        return UNKNOWN_HEADER
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        return UNKNOWN_HEADER
    principal, address, old = content.get("principal"), content.get("address"), content.get("old")
    if not isinstance(principal, str) or not isinstance(address, str):
        return UNKNOWN_HEADER
    author = Author(principal=bounded_name(principal), address=bounded_name(address))
    return Header(str(content.get("alter")), author, _finite_or_none(old))


_LONGEST_NUMBER: Final = 400
"""Bytes; Python writes floats with 24 characters at most. Longer texts are not parsed."""


def _finite_or_none(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None  # JSON has no others, and a page of audit records is JSON
