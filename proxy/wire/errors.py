"""What can go wrong with bytes on the wire: one tree, split into the peer's fault and ours.

Raised everywhere in `headrace.proxy.wire`. A caller that holds a connection catches `PeerFault` and closes that
connection; `OurFault` is a mistake in the proxy and is left to climb.
"""

from __future__ import annotations


class WireError(Exception):
    """Any error of `headrace.proxy.wire`."""


class PeerFault(WireError):  # noqa: N818 -- named for whose fault it is
    """The bytes that a client or a broker sent break Kafka's protocol."""


class MalformedFrame(PeerFault):
    """A frame, or the head of one, cannot be what it says it is."""


class OtherProtocol(MalformedFrame):
    """The bytes are of another protocol, such as TLS on a plaintext connection.

    ``protocol`` names it, as `headrace.proxy.wire.other_protocols.other_protocol` does.
    """

    def __init__(self, protocol: str) -> None:
        super().__init__(f"{protocol} instead of Kafka's protocol")
        self.protocol = protocol


class MalformedMessage(PeerFault):
    """A message's body does not follow its schema.

    ``offset`` is in bytes from the body's first byte, where the field begins that could not be read.
    """

    def __init__(self, *, message: str, version: int, field: str, offset: int, reason: str) -> None:
        super().__init__(f"{message} v{version}: {field} at byte {offset}: {reason}")
        self.message = message
        self.version = version
        self.field = field
        self.offset = offset
        self.reason = reason


class OurFault(WireError):  # noqa: N818 -- likewise
    """The proxy asked for something that cannot be."""


class UnknownMessage(OurFault):
    """No schema for a message of this name, or not in this version."""


class UnencodableValue(OurFault):
    """A value does not fit the field it was to be written to."""


class RefusalImpossible(OurFault):
    """A request that has no reply with an error in it: close the connection instead."""
