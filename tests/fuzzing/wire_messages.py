"""Messages of Kafka's protocol, made from the decisions of a fuzzing input.

A message is written field by field, by its schema in Kafka's definitions. Every length, count, varint and tagged
field can also be written wrong: a length that does not fit, null where none is allowed, a varint of more bytes than
necessary, tagged fields twice. An input can contain the bytes of a message instead, so that messages of real clients
are seeds.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.apis import APIS, request_header_version, response_header_version
from headrace.proxy.wire.messages.scalars import FIXED, uvarint
from headrace.proxy.wire.messages.schemas import schema, versions
from tests.faults.protocol.mutations import EXTREMES

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.schemas import Field
    from tests.fuzzing.choices import Choices

API_KEYS: Final = tuple(sorted(APIS))
TEXTS: Final = (b"", b"t", b"topic-1", b"h\xc3\xa4ufig", b"\xff", b"\x00", b"x" * 130, b"\xed\xa0\x80")
NOT_UTF8: Final = b"\xff" * 12_000
"""A client id that takes more bytes in UTF-8 than a string may have, when its characters have been replaced."""
WRONG: Final = 240
"""Decisions about a length from this number on write a wrong one."""
MOST_FIELDS: Final = 2000
"""Number of fields after which all further arrays are empty, so that a short input is a short message."""
WRONG_LENGTHS: Final = (-1, -2, 1, 3, 127, 128, 32_767, 32_768, 2**31 - 1, -(2**31), 0)

RAW, VALID, ANY = range(3)
"""The body is the rest of the input; a valid message; a message with wrong lengths."""


class MessageWriter:
    """Writes messages by the decisions of an input; ``exact`` ones are valid."""

    def __init__(self, choices: Choices, *, exact: bool) -> None:
        self._choices = choices
        self._exact = exact
        self._fields = 0
        self.out = bytearray()

    def message(self, name: str, version: int) -> bytes:
        """Return the body of a message."""
        found = schema(name, version)
        self._struct(found.fields, flexible=found.flexible)
        if not self._exact and self._choices.byte() >= WRONG:
            self._damage()
        return bytes(self.out)

    def _damage(self) -> None:
        """Cut the message off, add to it, or set one of its bytes."""
        kind, at = self._choices.byte() % 3, self._choices.number() % (len(self.out) + 1)
        if kind == 0:
            del self.out[at:]
        elif kind == 1:
            self.out += self._choices.take(16)
        else:
            self.out[at : at + 1] = bytes([self._choices.byte()])

    def _struct(self, fields: tuple[Field, ...], *, flexible: bool) -> None:
        for field in fields:
            if field.tag is None:
                self._field(field)
        if flexible:
            self._tags([field for field in fields if field.tag is not None])

    def _field(self, field: Field) -> None:
        self._fields += 1
        decision = self._choices.byte()
        if field.is_array:
            count = -1 if field.nullable and decision == WRONG - 1 else decision % 4
            if self._fields > MOST_FIELDS:
                count = 0
            self._length(count, decision, compact=field.flexible, short=False)
            for _ in range(count):
                self._element(field)
        elif field.kind == "struct":
            is_null = field.nullable and decision % 4 == 3
            if field.nullable:
                self.out.append(0xFF if is_null else 1)
            if not is_null:
                self._element(field)
        elif field.kind in FIXED:
            self._fixed(field, decision)
        else:
            self._sized(field, decision, nullable=field.nullable)

    def _element(self, field: Field) -> None:
        if field.kind == "struct":
            self._struct(field.fields, flexible=field.flexible)
        elif field.kind in FIXED:
            self._fixed(field, self._choices.byte())
        else:
            self._sized(field, self._choices.byte(), nullable=False)

    def _fixed(self, field: Field, decision: int) -> None:
        layout = struct.Struct(">" + FIXED[field.kind])
        if decision < 128 and field.kind not in {"uuid", "float64", "bool"}:
            self.out += layout.pack(decision)
        elif decision < WRONG and field.kind not in {"uuid", "float64", "bool"}:
            number = EXTREMES[decision % len(EXTREMES)]
            self.out += struct.pack(">q", number)[-layout.size :]
        elif field.kind == "uuid" and decision < 128:
            self.out += bytes(15) + bytes([decision % 3])
        else:
            self.out += self._choices.take(layout.size).ljust(layout.size, b"\0")

    def _sized(self, field: Field, decision: int, *, nullable: bool) -> None:
        if nullable and decision == WRONG - 1:
            self._length(-1, 0, compact=field.flexible, short=field.kind == "string")
            return
        content = TEXTS[decision % 8] if decision < 128 else self._choices.take(self._choices.byte() % 40)
        if self._exact and field.kind == "string":
            content = content.decode(errors="replace").encode()
        self._length(len(content), decision, compact=field.flexible, short=field.kind == "string")
        self.out += content

    def _length(self, length: int, decision: int, *, compact: bool, short: bool) -> None:
        if decision >= WRONG and not self._exact:
            length += WRONG_LENGTHS[decision % len(WRONG_LENGTHS)]
        if compact:
            self._uvarint((length + 1) & 0xFFFFFFFF, longer=decision == 255)
        elif short:
            self.out += struct.pack(">q", length)[-2:]
        else:
            self.out += struct.pack(">q", length)[-4:]

    def _uvarint(self, value: int, *, longer: bool) -> None:
        encoded = bytearray(uvarint(value))
        if longer and not self._exact:
            encoded[-1] |= 0x80
            encoded.append(0)
        self.out += encoded

    def _tags(self, known: list[Field]) -> None:
        decision = self._choices.byte()
        if self._exact:
            tags = [field for field in known if decision & 1 << (field.tag or 0) % 8]
            unknown = [(100, self._choices.take(3))] if decision >= 128 else []
        else:
            tags = [*known, *known][: decision % 4]
            unknown = [(self._choices.byte(), self._choices.take(3)) for _ in range((decision >> 2) % 3)]
        self._uvarint(len(tags) + len(unknown) + (decision >= WRONG and not self._exact), longer=decision == WRONG)
        for field in tags:
            outside, self.out = self.out, bytearray()
            self._field(field)
            content, self.out = self.out, outside
            self._tag(field.tag or 0, bytes(content))
        for tag, content_of_unknown in unknown:
            self._tag(tag, content_of_unknown)

    def _tag(self, tag: int, content: bytes) -> None:
        decision = 0 if self._exact else self._choices.byte()
        self._uvarint(tag, longer=decision == 254)
        self._uvarint(len(content) + (1 if decision == 253 else 0), longer=decision == 255)
        self.out += content


def message_body(choices: Choices, name: str, version: int) -> bytes:
    """Return the body of a message: raw bytes, a valid one, or one with wrong fields."""
    how = choices.byte() % 3
    if how == RAW:
        return choices.rest()
    return MessageWriter(choices, exact=how == VALID).message(name, version)


def any_version(choices: Choices, name: str) -> int:
    """Return a version for which there is a schema, the newest for decision 0."""
    known = versions(name)
    return known[-1 - choices.byte() % len(known)]


def request_frame(choices: Choices, api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Return a request with a header made from the input."""
    header_version = request_header_version(api_key, version)
    header = struct.pack(">hhi", api_key, version, correlation_id)
    if header_version:
        decision = choices.byte()
        client_id = choices.take(decision % 8) if decision >= 128 else TEXTS[decision % 8]
        if decision == WRONG - 1:
            client_id = NOT_UTF8
        length = len(client_id) if decision < WRONG else -1 - decision % 3
        header += struct.pack(">h", length) + (client_id if length >= 0 else b"")
    if header_version == 2:
        decision = choices.byte()
        header += b"\0" if decision < WRONG else uvarint(1) + uvarint(decision) + uvarint(3) + b"tag"
    return framed(header + body)


def reply_frame(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Return a response with its header."""
    tags = b"\0" if response_header_version(api_key, version) else b""
    return framed(struct.pack(">i", correlation_id) + tags + body)


def framed(content: bytes) -> bytes:
    """Return the bytes with their length in front."""
    return struct.pack(">i", len(content)) + content
