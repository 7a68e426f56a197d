"""One side of a connection with TLS, whose output is cut, changed or withheld at a chosen byte."""

from __future__ import annotations

import enum
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.faults import messages
from tests.faults.raw_client import RESET_ON_CLOSE

if TYPE_CHECKING:
    from collections.abc import Iterable


class Kind(enum.Enum):
    """What this side does instead of sending the next byte."""

    RESET = "reset"
    CLOSE = "close"
    STALL = "stall"
    """It sends and closes nothing more, and reads on."""
    ALERT = "alert"
    """An alert that is not encrypted, then the end."""
    GARBAGE = "garbage"
    """Bytes that are no record, then it reads on."""
    PLAINTEXT = "plaintext"
    """A Kafka reply that is not encrypted, then it reads on."""
    CHANGE = "change"
    """It changes a bit of the next byte, and goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of one connection: ``kind`` after ``after`` bytes."""

    kind: Kind
    after: int


HEAD_BYTES: Final = 5
"""The head of a record: type, version, length."""

_INSTEAD = {
    Kind.ALERT: bytes([21, 3, 3, 0, 2, 2, 80]),  # fatal, internal_error
    Kind.GARBAGE: bytes(range(0x80, 0xFF)),
    Kind.PLAINTEXT: messages.frame(struct.pack(">ii", 1, 0)),
}


class FaultDone(Exception):  # noqa: N818 -- what was wanted has happened
    """The fault has happened; nothing more is sent. Where this side reads on, the other has ended the connection."""


class FaultyConnection:
    """Does the handshake, and sends and receives frames. Its methods raise `FaultDone`, EOFError and OSError.

    A subclass sets `tls`, on the two memories.
    """

    tls: ssl.SSLObject

    def __init__(self, sock: socket.socket, fault: Fault | None) -> None:
        self._socket = sock
        self._fault = fault
        self.sent = 0
        """Number of bytes sent."""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def shake_hands(self) -> None:
        while not self._shaken():
            self._receive()

    def send(self, data: bytes) -> None:
        self.tls.write(data)
        self._send(self.outgoing.read())

    def receive_frame(self) -> bytes:
        """Return the next frame without its length."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _shaken(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._send(self.outgoing.read())
        return True

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            try:
                some = self.tls.read(count - len(found))
            except ssl.SSLWantReadError:
                self._receive()
                continue
            if not some:
                raise EOFError
            found += some
        return bytes(found)

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise EOFError
        self.incoming.write(data)

    def _send(self, data: bytes) -> None:
        fault = self._fault
        if fault is None or self.sent + len(data) <= fault.after:
            self._socket.sendall(data)
            self.sent += len(data)
            return
        at = fault.after - self.sent
        self._fault = None
        if fault.kind is Kind.CHANGE:
            at = _with_effect(data, at)
            self._send(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            return
        instead = _INSTEAD.get(fault.kind, b"")
        while at and data[at : at + 1] == instead[:1]:  # the same byte would be no fault
            at -= 1
        self._socket.sendall(data[:at] + instead)
        if fault.kind is Kind.RESET:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        elif fault.kind not in (Kind.CLOSE, Kind.ALERT):
            while self._socket.recv(65536):
                pass
        raise FaultDone


def _with_effect(records: bytes, at: int) -> int:
    """Return the offset ``at``, or, where it is in the type or version of a record, that of the end of its length.

    The version must be ignored (RFC 8446, section 5.1), and rustls ignores the outer type of an encrypted record, too.
    """
    begin = 0
    while begin + HEAD_BYTES + (length := int.from_bytes(records[begin + 3 : begin + HEAD_BYTES])) <= at:
        begin += HEAD_BYTES + length
    return begin + HEAD_BYTES - 1 if at - begin < 3 else at


def every(kinds: Iterable[Kind], offsets: Iterable[int]) -> list[Fault]:
    """Return each kind of fault at each offset."""
    found = list(offsets)
    return [Fault(kind=kind, after=after) for kind in kinds for after in found]
