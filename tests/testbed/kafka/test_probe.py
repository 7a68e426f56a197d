"""The two questions to a broker, against brokers that are no such thing."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from testbed.kafka.probe import Answer, ask
from testbed.processes.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = b"\0\0\0\0\0\0"
METADATA = (
    struct.pack(">i", 2)
    + struct.pack(">ih1sih", 7, 1, b"a", 9092, -1)
    + struct.pack(">ih2sih3s", 0, 2, b"bc", 65535, 3, b"rck")
    + struct.pack(">ii", 7, 0)
)


def framed(body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, 1) + body


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A listener that gives one connection these answers, one to a request, byte by byte, and closes it."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for answer in answers:
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                connection.recv(size, socket.MSG_WAITALL)
                for at in range(len(answer)):
                    connection.sendall(answer[at : at + 1])

    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def test_the_answer_lists_brokers_and_controller() -> None:
    with answering(framed(VERSIONS), framed(METADATA)) as port:
        assert ask(HOST, port) == Answer(brokers={7: ("a", 9092), 0: ("bc", 65535)}, controller_id=7)


@pytest.mark.parametrize(
    "answers",
    [
        (),
        (framed(VERSIONS)[:5],),
        (framed(b"\0\x23"),),
        (framed(VERSIONS), framed(METADATA[:12])),
        (framed(VERSIONS), framed(b"")),
        (framed(VERSIONS), framed(struct.pack(">iih1s", 1, 7, 1, b"\xff"))),
    ],
)
def test_anything_else_is_no_answer(answers: tuple[bytes, ...]) -> None:
    with answering(*answers) as port:
        assert ask(HOST, port) is None


def test_silence_is_no_answer() -> None:
    with socket.create_server((HOST, 0)) as listener:
        assert ask(HOST, listener.getsockname()[1], timeout_s=0.05) is None


def test_a_refused_connection_is_no_answer() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    assert ask(HOST, port) is None
