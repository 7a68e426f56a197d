"""Whole messages: bytes to plain values and back, for every message and version there is a schema for.

A message is a ``dict`` by field name in snake case; a struct inside it likewise, an array a ``list``, a uuid its 16
bytes. Tagged fields that the schema does not know are kept under `TAGS`, as ``{tag: bytes}``. Codecs are made of
closures on first use of a message and version, and kept.

To change a message that came from a peer use `headrace.proxy.wire.messages.editing`, which copies byte for byte what it
does not change; encoding what was decoded writes the same values, but leaves out tagged fields that hold their default.

Values are ``Any``: what a field holds is known to the schema, not to the type checker.
Source: ``MessageDataGenerator``, whose generated code is the oracle of the tests.
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
    """Read a whole message (without frame and header).

    Raises `UnknownMessage` for a message or version without a schema, and `MalformedMessage` for bytes that break it.
    As lenient as a broker's generated readers: bytes behind the last field are ignored (librdkafka 2.10 to 2.16 leaves
    three behind Metadata v13), and strings that are not UTF-8 are read with replacement characters. Time and memory are
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
    """Write a message (without frame and header). A field that is not given has its default.

    Raises `UnknownMessage` as `decode` does, and `UnencodableValue` for a field that the version lacks and for a value
    that does not fit its field.
    """
    codec = message_codec(name, version)
    out = bytearray()
    try:
        codec.write(out, message)
    except (UnencodableValue, *UNFIT) as error:
        raise UnencodableValue(f"{name} v{version}: {error}") from error
    return bytes(out)


def malformed(name: str, version: int, broken: Broken) -> MalformedMessage:
    """The error that leaves this package for a message that breaks its schema."""
    field = ".".join(broken.path) or "body"
    return MalformedMessage(message=name, version=version, field=field, offset=broken.offset, reason=broken.reason)
