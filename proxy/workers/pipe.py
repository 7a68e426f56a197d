"""Messages between the supervisor and a worker over a pipe: a Unix socket pair, one for each worker.

A message is a JSON object, its head, and a body of bytes, which may be empty. The supervisor sends requests (``do``);
the worker sends answers (``re``, with the number of the request) and events, which were not requested (``event``). A
task of the pipe's own writes the messages one after the other, so that a cancelled caller never leaves a message
incomplete. When the process at one end exits or dies, the other end reads the end of the stream: this is how a worker
notices that its supervisor has exited.
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
"""The states of 200,000 buckets are 100 MiB; a longer message can only be an error."""
MAX_WAITING_MESSAGES: Final = 1000
"""Number of messages that may wait to be written to a process that does not read. Requests of operators are few."""
READ_BYTES: Final = 256 * 1024


class WorkerSilentError(Exception):
    """A worker has not answered in time, or has exited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that was received."""

    head: Mapping[str, Any]
    body: bytes = b""


class Pipe:
    """One end of a pipe. Messages that were sent are written while `run` runs."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._put, self._waiting = trio.open_memory_channel[bytes](MAX_WAITING_MESSAGES)
        self._received = bytearray()

    async def run(self) -> None:
        """Write messages until all that were sent before `end` are written, or the other end is closed."""
        async with self._waiting:
            try:
                async for data in self._waiting:
                    await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message without waiting; it is dropped when the other end is closed.

        Raises `WorkerSilentError` when `MAX_WAITING_MESSAGES` messages already wait to be written.
        """
        text = json.dumps(head).encode()
        try:
            self._put.send_nowait(_LENGTHS.pack(len(text), len(body)) + text + body)
        except trio.WouldBlock:
            raise WorkerSilentError(f"{MAX_WAITING_MESSAGES} messages to it have not been read") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def end(self) -> None:
        """Let `run` return when all messages are written. Nothing can be sent after this."""
        self._put.close()

    async def receive(self) -> Message | None:
        """Return the next message, or ``None`` when the other end is closed.

        *Cancellation:* loses no data.
        """
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
            raise AssertionError(
                f"a message between processes has {end} bytes; at most {MAX_MESSAGE_BYTES} are possible"
            )
        if len(received) < end:
            return None
        head = json.loads(received[_LENGTHS.size : _LENGTHS.size + head_bytes])
        body = bytes(received[_LENGTHS.size + head_bytes : end])
        del received[:end]
        return Message(head=head, body=body)

    def close(self) -> None:
        """Close this end at once."""
        self._put.close()
        self._stream.socket.close()


@dataclass(slots=True)
class _PendingRequest:
    done: trio.Event = field(default_factory=trio.Event)
    answer: Message | None = None
    """``None`` after ``done`` is set means that the worker has exited."""


class WorkerPipe:
    """The supervisor's end of a worker's pipe: sends requests, receives answers and events."""

    def __init__(self, sock: socket.socket) -> None:
        self._pipe = Pipe(sock)
        self._pending: dict[int, _PendingRequest] = {}
        self._number = 0
        self._closed = False

    async def run(self, on_event: Callable[[Message], None]) -> None:
        """Write and read messages until the worker has closed its end, and call ``on_event`` with each event."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pipe.run)
                while (message := await self._pipe.receive()) is not None:
                    number = message.head.get("re")
                    if number is None:
                        on_event(message)
                    elif (pending := self._pending.pop(number, None)) is not None:
                        pending.answer = message
                        pending.done.set()
                nursery.cancel_scope.cancel()
        finally:
            self._closed = True
            for pending in self._pending.values():
                pending.done.set()
            self._pipe.close()

    def send(self, do: str, arguments: Mapping[str, object], body: bytes = b"") -> int:
        """Send a request without waiting for the answer, and return its number.

        Raises `WorkerSilentError` when too many messages wait to be written.
        """
        self._number += 1
        self._pipe.send({**arguments, "do": do, "number": self._number}, body)
        return self._number

    async def ask(self, do: str, arguments: Mapping[str, object], body: bytes = b"", *, timeout_s: float) -> Message:
        """Send a request, and return the answer.

        Raises `WorkerSilentError` when there is none within ``timeout_s``, or the worker has exited.
        """
        if self._closed:
            raise WorkerSilentError("it has exited")
        pending = _PendingRequest()
        number = self.send(do, arguments, body)
        self._pending[number] = pending
        try:
            with trio.move_on_after(timeout_s):
                await pending.done.wait()
        finally:
            self._pending.pop(number, None)
        if pending.answer is None:
            raise WorkerSilentError("it has exited" if self._closed else f"no answer within {timeout_s:g} s")
        return pending.answer
