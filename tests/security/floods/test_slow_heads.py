"""A head of tagged fields that comes in small pieces, on a real proxy: the work for it must not grow with the pieces.

Processor time is compared, and not time, so that a busy machine changes nothing.
"""

from __future__ import annotations

import contextlib
import struct
import time
from typing import TYPE_CHECKING, Final

import pytest

from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import HEARTBEAT_REPLY, FakeBroker
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECES: Final = 2000
PIECE_BYTES: Final = 60
PAUSE_S: Final = 0.0007
"""Between two pieces, so that the proxy reads each by itself."""
FLEXIBLE_HEARTBEAT: Final = 4
MOST_FIELDS: Final = 100
"""The most tagged fields that the proxy reads in a head."""
MOST_TIMES: Final = 1.0
"""What the head may cost, in relation to as many bytes in as many pieces, each of which is a request. It costs 0.4
times as much; 1.9 times if the head is read again with each piece."""


@pytest.fixture(scope="module")
def proxy() -> Iterator[ProxyProcess]:
    arguments = (*JSON_LOG, "--data-plane", "python")  # the native data plane leaves heads with tagged fields to Python
    with FakeBroker({}) as broker, ProxyProcess(broker.address, arguments=arguments) as process:
        yield process
        assert_no_traceback(process)


def varint(number: int) -> bytes:
    """A varint of three bytes."""
    return bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])


def tagged_heartbeat(count: int, last_bytes: int = 1) -> bytes:
    """A Heartbeat v4 whose header has ``count`` tagged fields of one byte, but for the last one."""
    sizes = [*(1 for _ in range(count - 1)), last_bytes]
    fields = b"".join(varint(number) + varint(size) + bytes(size) for number, size in enumerate(sizes))
    head = struct.pack(">hhi", messages.HEARTBEAT, FLEXIBLE_HEARTBEAT, PIECES) + messages.string("tagged")
    return messages.frame(head + varint(count) + fields + b"\x02g" + struct.pack(">i", 1) + b"\x02m\0\0")


def cost_s(proxy: ProxyProcess, pieces: Sequence[bytes]) -> float:
    """Send pieces over a new connection, and return the processor time that the proxy has used when the last request,
    with the correlation id `PIECES`, is answered."""
    with RawClient(proxy.port) as client:
        before_s = proxy.cpu_s
        for piece in pieces:
            client.send(piece)
            time.sleep(PAUSE_S)
        answered = 0
        while answered != PIECES:
            answered, reply = client.reply()
        assert HEARTBEAT_REPLY in reply
        return proxy.cpu_s - before_s


def test_a_head_in_small_pieces_costs_less_than_requests_of_their_size(proxy: ProxyProcess) -> None:
    body, version, padding = messages.heartbeat_body(), messages.HEARTBEAT_VERSION, "small".ljust(19)
    small = [
        messages.request(messages.HEARTBEAT, version, number, body, client_id=padding)
        for number in range(1, PIECES + 1)
    ]
    frame = tagged_heartbeat(MOST_FIELDS, PIECES * PIECE_BYTES - 1000)
    pieces = [frame[at : at + PIECE_BYTES] for at in range(0, len(frame), PIECE_BYTES)]
    assert {len(each) for each in small} == {PIECE_BYTES}
    assert 0.98 * PIECES < len(pieces) <= PIECES
    harmless_s, attack_s = cost_s(proxy, small), cost_s(proxy, pieces)
    assert attack_s < MOST_TIMES * harmless_s, (attack_s, harmless_s)


def test_a_head_of_many_fields_is_refused_by_their_number(proxy: ProxyProcess) -> None:
    """Nobody has to walk over 30,000 fields of a byte."""
    with RawClient(proxy.port) as client:
        with contextlib.suppress(ConnectionError):
            client.send(tagged_heartbeat(30_000))
        assert client.rest() == b""
    proxy.wait_for_log(f"30000 tagged fields in a head; the most are {MOST_FIELDS}")
