"""DescribeClientQuotas and AlterClientQuotas (KIP-546): reading the requests, and writing the responses.

Names, keys and entity types are any strings: there is no escaping on the wire, and null is the name of the default
entity. What is valid is decided in `headrace.proxy.quotas`. Bytes of a request that are not valid UTF-8 are read as
replacement characters, as a broker does.

Every response begins with ``throttle_time_ms``, a field of four bytes at offset 0.
Source: ``DescribeClientQuotasRequest``, ``AlterClientQuotasRequest`` and their JSON definitions.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.wire.errors import MalformedFrame, UnencodableValue
from headrace.proxy.wire.messages.codec import decode, encode, malformed
from headrace.proxy.wire.messages.composites import UNFIT, element_codec, too_early
from headrace.proxy.wire.messages.scalars import (
    LONGEST_STRING,
    BoundedBody,
    Broken,
    TooManyRows,
    check_count,
    count_codec,
    count_rows,
)
from headrace.proxy.wire.messages.schemas import schema
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP, decode_in_steps
from headrace.proxy.wire.messages.tagged_fields import read_tag_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.schemas import Field
    from headrace.proxy.wire.messages.stepwise import Steps

EntityPart: TypeAlias = tuple[str, str | None]
"""An entity type and a name; ``None`` is the default entity of the type."""

MAX_ENTITY_ROWS: Final = 256
"""Parts and keys of one entity in a request: far more than there are entity types and keys. Kafka has no bound. One
entity is read and checked without a pause."""

_DESCRIBE: Final = "DescribeClientQuotasResponse"
_ALTER: Final = "AlterClientQuotasRequest"
_ALTERED: Final = "AlterClientQuotasResponse"


class MatchType(IntEnum):
    """How a component of a filter compares names (``DescribeClientQuotasRequest.MATCH_TYPE_*``)."""

    EXACT = 0
    """The entity has exactly this name."""
    DEFAULT = 1
    """The entity is the default of its type."""
    SPECIFIED = 2
    """The entity has any name of the type, or is its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterComponent:
    """One component of a filter, as it was sent."""

    entity_type: str
    match_type: MatchType | int
    """An ``int`` if the number is not a known match type."""
    match: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFilter:
    """A DescribeClientQuotas request."""

    components: tuple[FilterComponent, ...]
    strict: bool
    """Whether entities with further parts are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOp:
    """The new value of a key, or its removal; ``value`` has no meaning then."""

    key: str
    value: float
    remove: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterEntry:
    """The operations on one entity, both in the order of the request and with duplicates."""

    entity: tuple[EntityPart, ...]
    ops: tuple[QuotaOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterRequest:
    """An AlterClientQuotas request."""

    entries: tuple[AlterEntry, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterResult:
    """A row of the response to AlterClientQuotas."""

    entity: tuple[EntityPart, ...]
    error_code: int = 0
    error_message: str | None = None


def filter_in_steps(version: int, body: Buffer) -> Steps[QuotaFilter]:
    """Read the body of a DescribeClientQuotas request, with a yield now and then: it may have any number of components.

    Raises `UnknownMessage` for a version without a schema, and `MalformedMessage` for a body that violates it.
    """
    request = yield from decode_in_steps("DescribeClientQuotasRequest", version, body)
    components = []
    for number, row in enumerate(request["components"]):
        components.append(
            FilterComponent(
                entity_type=row["entity_type"], match_type=_match_type(row["match_type"]), match=row["match"]
            )
        )
        if number % ROWS_A_STEP == 0:
            yield
    return QuotaFilter(components=tuple(components), strict=request["strict"])


def _match_type(number: int) -> MatchType | int:
    try:
        return MatchType(number)
    except ValueError:
        return number


def alterations_in_steps(version: int, body: Buffer, max_rows: int) -> Steps[AlterRequest]:
    """Read the body of an AlterClientQuotas request, with a yield after each entity, so that others can do their work.

    Raises the errors of `filter_in_steps`, and `MalformedFrame` for more than ``max_rows`` entities, parts of entities,
    keys and tagged fields, and for more than `MAX_ENTITY_ROWS` of one entity. An entity is decoded only after its rows
    were counted.
    """
    field = schema(_ALTER, version).fields[0]
    read_count, pack_count = count_codec(flexible=field.flexible, nullable=field.nullable)
    codec = element_codec(field)
    data = BoundedBody(body)
    data.rows_left = max_rows
    entries = []
    try:
        count, at = read_count(data, 0)
        check_count(data, 0, at, count, codec.min_bytes)
        count_rows(data, count)
        for _ in range(count):
            left = data.rows_left
            most = data.rows_left = min(left, MAX_ENTITY_ROWS)
            codec.skip(data, at)
            data.rows_left += left - most
            row, at = codec.read(data, at)
            entries.append(_alter_entry(row))
            yield
        if field.flexible:  # behind the entries are a byte and the tagged fields of the request
            with suppress(IndexError, Broken):  # `decode` reports them
                count_rows(data, read_tag_count(data, at + 1)[0])
    except TooManyRows:
        raise MalformedFrame(
            f"a request to change quotas has more than {max_rows} entities, parts of entities, keys and tagged fields, "
            f"or more than {MAX_ENTITY_ROWS} parts and keys of one entity, which is the most that one may have"
        ) from None
    except Broken as broken:
        broken.path.insert(0, field.name)
        raise malformed(_ALTER, version, broken) from broken
    except (IndexError, struct.error):
        raise malformed(_ALTER, version, too_early(data, 0, field.name)) from None
    rest = decode(_ALTER, version, pack_count(0) + data[at:])
    return AlterRequest(entries=tuple(entries), validate_only=rest["validate_only"])


def _alter_entry(row: Message) -> AlterEntry:
    return AlterEntry(
        entity=tuple((part["entity_type"], part["entity_name"]) for part in row["entity"]),
        ops=tuple(QuotaOp(key=op["key"], value=op["value"], remove=op["remove"]) for op in row["ops"]),
    )


class DescribeResponse:
    """The response to a DescribeClientQuotas request that succeeds, which is written entity by entity.

    It needs memory for the bytes of the response only, and the caller can do other work between two entities.
    """

    __slots__ = ("_count", "_field", "_rows", "_version", "_write")

    def __init__(self, version: int) -> None:
        """Raises `UnknownMessage` for a version without a schema."""
        self._field = next(field for field in schema(_DESCRIBE, version).fields if field.name == "entries")
        self._write = element_codec(self._field).write
        self._version = version
        self._rows = bytearray()
        self._count = 0

    def add(self, entity: Iterable[EntityPart], values: Mapping[str, float]) -> None:
        """Add an entity and its quotas by key. Raises `UnencodableValue`; nothing is added then."""
        row = {
            "entity": [{"entity_type": entity_type, "entity_name": name} for entity_type, name in entity],
            "values": [{"key": key, "value": value} for key, value in values.items()],
        }
        start = len(self._rows)
        try:
            self._write(self._rows, row)
        except (UnencodableValue, *UNFIT) as error:
            del self._rows[start:]
            raise UnencodableValue(f"{_DESCRIBE} v{self._version}: entries: {error}") from error
        self._count += 1

    @property
    def size(self) -> int:
        """The size of the entities so far, in bytes."""
        return len(self._rows)

    def body(self, throttle_time_ms: int = 0, remark: str = "") -> bytes:
        """Return the body of the response. ``remark`` is its error message, which is empty in a broker's response."""
        message = _bounded_message(remark)
        fields: Message = {"throttle_time_ms": throttle_time_ms, "error_message": message, "entries": []}
        return _with_rows(_DESCRIBE, self._version, fields, self._field, self._count, self._rows)


def describe_error(version: int, error_code: int, error_message: str | None, throttle_time_ms: int = 0) -> bytes:
    """Return the body of the response to a DescribeClientQuotas request that fails: its entries are null."""
    fields = {
        "throttle_time_ms": throttle_time_ms,
        "error_code": error_code,
        "error_message": _bounded_message(error_message),
        "entries": None,
    }
    return encode(_DESCRIBE, version, fields)


def alter_response_in_steps(version: int, results: Iterable[AlterResult], throttle_time_ms: int = 0) -> Steps[bytes]:
    """Return the body of the response to an AlterClientQuotas request, with a yield after each entity."""
    field = next(field for field in schema(_ALTERED, version).fields if field.name == "entries")
    write = element_codec(field).write
    rows = bytearray()
    count = 0
    for result in results:
        row = {
            "error_code": result.error_code,
            "error_message": _bounded_message(result.error_message),
            "entity": [{"entity_type": entity_type, "entity_name": name} for entity_type, name in result.entity],
        }
        try:
            write(rows, row)
        except (UnencodableValue, *UNFIT) as error:
            raise UnencodableValue(f"{_ALTERED} v{version}: entries: {error}") from error
        count += 1
        yield
    return _with_rows(_ALTERED, version, {"throttle_time_ms": throttle_time_ms, "entries": []}, field, count, rows)


def _with_rows(name: str, version: int, message: Message, field: Field, count: int, rows: bytearray) -> bytes:
    """Return the body of ``message``, whose last field is an array, with the encoded elements ``rows`` in it."""
    _, pack_count = count_codec(flexible=field.flexible, nullable=field.nullable)
    end = b"\0" if field.flexible else b""  # no tagged fields
    head = encode(name, version, message).removesuffix(pack_count(0) + end)
    return b"".join((head, pack_count(count), rows, end))


def _bounded_message(message: str | None) -> str | None:
    """Return a message that fits a string. Messages contain names and keys, which may have this length themselves.

    A broker fails to write such a message: it answers UNKNOWN_SERVER_ERROR, or nothing at all.
    """
    if message is None or len(message) <= LONGEST_STRING // 4:
        return message
    return message.encode("utf-8", "replace")[:LONGEST_STRING].decode("utf-8", "ignore")
