"""What the supervisor and a worker say to each other: messages over a Unix socket pair, one channel for each worker.

A message is a JSON object and, where much is told, a body of bytes. The supervisor asks (``do``) and the worker answers
(``re``, with the number of what was asked); what a worker tells unasked is an event (``event``). Messages are written
one after the other by a task of the channel's own, so that whoever gives up waiting leaves no half message behind. The
end of the other side is the end of the channel: a worker learns in this way that its supervisor is gone, however that
happened.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

_LENGTHS: Final = struct.Struct("=II")
MAX_MESSAGE_BYTES: Final = 512 * 1024 * 1024
"""200,000 buckets as the usage file keeps them are 100 MiB; a longer message is nonsense."""
MAX_WAITING_MESSAGES: Final = 1000
"""To a worker that takes none. Operators' questions are few, and those that go unanswered are told as such."""
READ_BYTES: Final = 256 * 1024


class WorkerSilentError(Exception):
    """A worker has not answered in time, or is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What was said."""

    head: Mapping[str, Any]
    body: bytes = b""


class Channel:
    """One end. What is sent is written while `run` runs."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._put, self._waiting = trio.open_memory_channel[bytes](MAX_WAITING_MESSAGES)
        self._received = bytearray()

    async def run(self) -> None:
        """Write what is to be sent, until `end` and all of it is written, or the other side is gone."""
        async with self._waiting:
            try:
                async for data in self._waiting:
                    await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message; it is lost where the other side is gone. Raises `WorkerSilentError` when too many wait."""
        text = json.dumps(head).encode()
        try:
            self._put.send_nowait(_LENGTHS.pack(len(text), len(body)) + text + body)
        except trio.WouldBlock:
            raise WorkerSilentError(f"{MAX_WAITING_MESSAGES} messages wait for it") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def end(self) -> None:
        """Nothing more will be sent."""
        self._put.close()

    async def receive(self) -> Message | None:
        """The next message; ``None`` when the other side has ended. A wait that is cancelled loses nothing."""
        while True:
            message = self._received_message()
            if message is not None:
                return message
            try:
                some = await self._stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not some:
                return None
            self._received += some

    def _received_message(self) -> Message | None:
        received = self._received
        if len(received) < _LENGTHS.size:
            return None
        head_bytes, body_bytes = _LENGTHS.unpack_from(received)
        end = _LENGTHS.size + head_bytes + body_bytes
        if end > MAX_MESSAGE_BYTES:
            raise AssertionError(f"a message of {end} bytes between processes of one proxy")
        if len(received) < end:
            return None
        head = json.loads(received[_LENGTHS.size : _LENGTHS.size + head_bytes])
        body = bytes(received[_LENGTHS.size + head_bytes : end])
        del received[:end]
        return Message(head=head, body=body)

    def close(self) -> None:
        """Close it at once."""
        self._put.close()
        self._stream.socket.close()


@dataclass(slots=True)
class _Asked:
    answered: trio.Event = field(default_factory=trio.Event)
    reply: Message | None = None


class AskedWorker:
    """The supervisor's end: asks, and hands on events."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = Channel(sock)
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self._gone = False

    async def run(self, heard: Callable[[Message], None]) -> None:
        """Write and read until the worker is gone; ``heard`` is called with its events."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._channel.run)
                while (message := await self._channel.receive()) is not None:
                    number = message.head.get("re")
                    if number is None:
                        heard(message)
                    elif (asked := self._asked.pop(number, None)) is not None:
                        asked.reply = message
                        asked.answered.set()
                nursery.cancel_scope.cancel()
        finally:
            self._gone = True
            for asked in self._asked.values():
                asked.answered.set()
            self._channel.close()

    def tell(self, do: str, arguments: Mapping[str, object], body: bytes = b"") -> int:
        """Ask for something without waiting for the answer; the number of what was asked."""
        self._number += 1
        self._channel.send({**arguments, "do": do, "number": self._number}, body)
        return self._number

    async def ask(self, do: str, arguments: Mapping[str, object], body: bytes = b"", *, timeout_s: float) -> Message:
        """Ask, and wait for the answer. Raises `WorkerSilentError` when there is none in time."""
        if self._gone:
            raise WorkerSilentError("it is gone")
        asked = _Asked()
        number = self.tell(do, arguments, body)
        self._asked[number] = asked
        try:
            with trio.move_on_after(timeout_s):
                await asked.answered.wait()
        finally:
            self._asked.pop(number, None)
        if asked.reply is None:
            raise WorkerSilentError("it is gone" if self._gone else f"no answer within {timeout_s:g} s")
        return asked.reply
