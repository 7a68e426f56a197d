"""Conversion of whole messages from bytes to plain values and back, for every message and version with a schema.

A message, and a struct in it, is a ``dict`` by field name in snake case; an array is a ``list``, and a uuid its 16
bytes. Tagged fields that the schema does not define are kept under `TAGS`, as ``{tag: bytes}``. The codec of a message
and version is built from closures when it is first used, and then cached.

To change a message received from a peer use `headrace.proxy.wire.messages.editing`, which copies all other fields byte
for byte. Decoding and encoding a message preserves its values, but drops tagged fields that have their default.

Values have the type ``Any``, since their types follow from the schema.
Source: ``MessageDataGenerator``; the tests compare the codecs with the code that it generates.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from headrace.proxy.wire.errors import MalformedMessage, UnencodableValue
from headrace.proxy.wire.messages.composites import UNFIT, message_codec
from headrace.proxy.wire.messages.scalars import Broken
from headrace.proxy.wire.messages.tagged_fields import TAGS

__all__ = ["TAGS", "Buffer", "Message", "decode", "encode", "malformed"]

Message: TypeAlias = dict[str, Any]
Buffer: TypeAlias = bytes | bytearray | memoryview


def decode(name: str, version: int, body: Buffer) -> Message:
    """Decode a message's body (without length and header).

    Raises `UnknownMessage` for a message or version without a schema, and `MalformedMessage` for a body that violates
    it. It accepts what a broker's generated code accepts: bytes after the last field are ignored (librdkafka 2.10 to
    2.16 sends three after Metadata v13), and invalid UTF-8 is decoded to replacement characters. Time and memory are
    linear in the length of ``body``.
    """
    codec = message_codec(name, version)
    data = bytes(body)
    try:
        message, _end = codec.read(data, 0)
    except Broken as broken:
        raise malformed(name, version, broken) from broken
    decoded: Message = message
    return decoded


def encode(name: str, version: int, message: Message) -> bytes:
    """Encode a message's body (without length and header). Missing fields get their defaults.

    Raises `UnknownMessage` as `decode` does, and `UnencodableValue` for a field that the version does not have, or a
    value that does not fit its field.
    """
    codec = message_codec(name, version)
    out = bytearray()
    try:
        codec.write(out, message)
    except (UnencodableValue, *UNFIT) as error:
        raise UnencodableValue(f"{name} v{version}: {error}") from error
    return bytes(out)


def malformed(name: str, version: int, broken: Broken) -> MalformedMessage:
    """Return the error to raise for a message that violates its schema."""
    field = ".".join(broken.path) or "body"
    return MalformedMessage(message=name, version=version, field=field, offset=broken.offset, reason=broken.reason)
