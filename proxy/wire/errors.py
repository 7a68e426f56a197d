"""The exceptions of `headrace.proxy.wire`, split into errors of the peer and bugs of the proxy.

The owner of a connection catches `PeerFault` and closes that connection; `OurFault` is a bug in the proxy, which
callers let propagate.
"""

from __future__ import annotations


class WireError(Exception):
    """The base class of all errors of `headrace.proxy.wire`."""


class PeerFault(WireError):  # noqa: N818 -- named after the side that caused it
    """The bytes that a client or a broker sent violate the Kafka protocol."""


class MalformedFrame(PeerFault):
    """The length or the header of a frame is invalid, or its fields exceed its length."""


class OtherProtocol(MalformedFrame):
    """The bytes belong to another protocol, such as TLS on a plaintext connection.

    ``protocol`` is its name, as `headrace.proxy.wire.other_protocols.other_protocol` returns it.
    """

    def __init__(self, protocol: str) -> None:
        super().__init__(f"{protocol} instead of Kafka's protocol")
        self.protocol = protocol


class MalformedMessage(PeerFault):
    """A message's body does not match its schema.

    ``offset`` is the position of the field that could not be read, in bytes from the start of the body.
    """

    def __init__(self, *, message: str, version: int, field: str, offset: int, reason: str) -> None:
        super().__init__(f"{message} v{version}: {field} at byte {offset}: {reason}")
        self.message = message
        self.version = version
        self.field = field
        self.offset = offset
        self.reason = reason


class OurFault(WireError):  # noqa: N818 -- named after the side that caused it
    """The proxy has called this package with arguments that are not valid."""


class UnknownMessage(OurFault):
    """There is no schema for a message of this name and version."""


class UnencodableValue(OurFault):
    """A value does not fit the field to which it should be written."""


class RefusalImpossible(OurFault):
    """The request has no response that can contain an error. The caller closes the connection instead."""
