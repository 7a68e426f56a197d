"""Raw clients for `benchmarks.paced`: many connections of one client id, each with one request in flight, that ignore
throttle times; and the charges of their requests, in `Acks`.

They implement the protocol themselves, so that no client library decides when to send. A connection sends as soon as
the reply to its last request has been read. The charge is the same as in the quotas: for Produce, the request's header
and body without its length; for Fetch, the reply's body and 4 bytes (`headrace.quota_callbacks.builtin.byte_rate`); for
CreateTopics, the partitions.
"""

from __future__ import annotations

import itertools
import socket
import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import trio

from headrace.quota_callbacks.api_keys import ApiKey
from tests.faults import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

PRODUCE_VERSION: Final = 7
CREATE_TOPICS_VERSION: Final = 3
"""The last version before strict quotas (KIP-599): every request is forwarded, and error 89 does not occur."""

FETCHED_BATCH_BYTES: Final = 8192
"""Size of a batch; a fetch of a multiple of it ends with a complete batch."""
LENGTH_BYTES: Final = 4
RECEIVE_BYTES: Final = 1 << 20
POLL_S: Final = 0.05


class Work(Protocol):
    """One kind of request."""

    def frame(self, client_id: str, correlation_id: int) -> bytes:
        """Return the complete frame of the next request."""

    def charged(self, reply: bytes) -> float:
        """Return the charge of the request with this reply, without its length. Raises ``AssertionError`` for an error
        code."""


class Produce:
    """Produce v7, acks=1, to a topic of one partition; ``size`` is header and body."""

    def __init__(self, topic: str, size: int, client_id: str) -> None:
        self._size = size
        self._body = messages.produce_body(topic, messages.batch(b""), acks=1)
        room = size + LENGTH_BYTES - len(self.frame(client_id, 0))
        # The value is shorter, since its varint lengths take more bytes when it is long.
        for count in range(room, 0, -1):
            self._body = messages.produce_body(topic, messages.batch(bytes(count)), acks=1)
            if len(self.frame(client_id, 0)) == size + LENGTH_BYTES:
                return
        raise ValueError(f"no Produce is {size} bytes long")

    def frame(self, client_id: str, correlation_id: int) -> bytes:
        """Return a request with the same records at every call."""
        return messages.request(messages.PRODUCE, PRODUCE_VERSION, correlation_id, self._body, client_id)

    def charged(self, reply: bytes) -> float:
        """Return the bytes of the request."""
        (name_length,) = struct.unpack_from(">h", reply, 8)
        (error_code,) = struct.unpack_from(">h", reply, 10 + name_length + 8)
        assert error_code == 0, f"Produce was answered with error {error_code}"
        return self._size


class Fetch:
    """Fetch v11 of ``size`` bytes of a topic of one partition, always from ``offset``."""

    def __init__(self, topic: str, size: int, *, offset: int) -> None:
        self._body = messages.fetch_body(topic, offset, max_bytes=size)

    def frame(self, client_id: str, correlation_id: int) -> bytes:
        """Return the same request at every call."""
        return messages.request(messages.FETCH, messages.FETCH_VERSION, correlation_id, self._body, client_id)

    def charged(self, reply: bytes) -> float:
        """Return the bytes of the reply, 0 for one without records, with which a broker throttles."""
        (error_code,) = struct.unpack_from(">h", reply, 8)
        if error_code == 0 and len(reply) < FETCHED_BATCH_BYTES:
            return 0
        error_code = error_code or messages.read_fetch_reply(reply[4:])[1]
        assert error_code == 0, f"Fetch was answered with error {error_code}"
        return len(reply)


class CreateTopics:
    """CreateTopics v3 of one topic of one partition, whose name never repeats."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def frame(self, client_id: str, correlation_id: int) -> bytes:
        """Return a request for another topic."""
        body = create_topic_body(f"{client_id}-{next(self._numbers)}")
        return messages.request(ApiKey.CREATE_TOPICS.value, CREATE_TOPICS_VERSION, correlation_id, body, client_id)

    def charged(self, reply: bytes) -> float:
        """Return one partition."""
        error_code = created_error(reply[4:])
        assert error_code == 0, f"CreateTopics was answered with error {error_code}"
        return 1


def create_topic_body(name: str) -> bytes:
    """Return the body of a CreateTopics v3 of one topic with one partition."""
    topic = messages.string(name) + struct.pack(">ihii", 1, 1, 0, 0)
    return struct.pack(">i", 1) + topic + struct.pack(">ib", 30_000, 0)


def created_error(reply: bytes) -> int:
    """Return the error code of the only topic in the reply's body."""
    (name_length,) = struct.unpack_from(">h", reply, 8)
    (error_code,) = struct.unpack_from(">h", reply, 10 + name_length)
    return int(error_code)


@dataclass(slots=True, kw_only=True)
class Acks:
    """The replies in order of time: the time, the connection, and the charge."""

    times_s: list[float] = field(default_factory=list)
    amounts: list[float] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)
    first_sent_s: float = 0.0
    longest_s: float = 0.0
    """The longest time that a reply took, which a client's time-out has to exceed."""

    def add(self, connection: int, amount: float, sent_s: float, now_s: float) -> None:
        """Add a reply."""
        self.times_s.append(now_s)
        self.amounts.append(amount)
        self.connections.append(connection)
        self.longest_s = max(self.longest_s, now_s - sent_s)

    def amount(self, from_s: float, to_s: float) -> float:
        """Return the charge after ``from_s`` and up to ``to_s``."""
        return sum(self.amounts[bisect_right(self.times_s, from_s) : bisect_right(self.times_s, to_s)])

    def since_first_sent(self, duration_s: float) -> tuple[float, float]:
        """Return the charge within ``duration_s`` of the first request, and the seconds up to its last reply."""
        count = bisect_right(self.times_s, self.first_sent_s + duration_s)
        return sum(self.amounts[:count]), self.times_s[count - 1] - self.first_sent_s

    def mean_rate(self, settle_s: float, window_s: float, cycle_s: float, step_s: float = 0.1) -> float:
        """Return the mean charge per second over all windows that begin within ``cycle_s`` after ``settle_s``."""
        totals = [0.0, *itertools.accumulate(self.amounts)]
        begin_s = self.first_sent_s + settle_s
        starts = [begin_s + number * step_s for number in range(max(round(cycle_s / step_s), 1))]
        within = [
            totals[bisect_left(self.times_s, start + window_s)] - totals[bisect_left(self.times_s, start)]
            for start in starts
        ]
        return sum(within) / len(within) / window_s

    def shares(self, connections: int, from_s: float, to_s: float) -> list[float]:
        """Return the charge of each connection between these seconds after the first request."""
        shares = [0.0] * connections
        for time_s, amount, connection in zip(self.times_s, self.amounts, self.connections, strict=True):
            if from_s <= time_s - self.first_sent_s < to_s:
                shares[connection] += amount
        return shares


def jain(shares: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 if all shares are equal, 1/n if one has everything, 0 if all are 0."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A number of connections of one client id."""

    client_id: str
    port: int
    connections: int
    work: Work
    acks: Acks = field(default_factory=Acks)


async def run_groups(groups: Sequence[Group], duration_s: float, *, turns: int = 0) -> None:
    """Open all connections, start them together, and end them after ``duration_s``; the replies are in `Group.acks`.

    They go on after that until each group has had ``turns`` replies for each of its connections.

    Raises ``AssertionError`` for an error code, ``EOFError`` if a connection is closed.
    """
    go = trio.Event()
    async with trio.open_nursery() as nursery:
        for group in groups:
            for number in range(group.connections):
                await nursery.start(_run_connection, group, number, go)
        now_s = trio.current_time()
        for group in groups:
            group.acks.first_sent_s = now_s
        go.set()
        await trio.sleep(duration_s)
        while any(len(group.acks.times_s) < turns * group.connections for group in groups):  # noqa: ASYNC110
            await trio.sleep(POLL_S)
        nursery.cancel_scope.cancel()


async def _run_connection(
    group: Group, number: int, go: trio.Event, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", group.port)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    async with stream:
        task_status.started()
        await go.wait()
        for correlation_id in itertools.count():
            request = group.work.frame(group.client_id, correlation_id)
            sent_s = trio.current_time()
            await stream.send_all(request)
            reply = await _receive_reply(stream)
            assert struct.unpack_from(">i", reply)[0] == correlation_id
            group.acks.add(number, group.work.charged(reply), sent_s, trio.current_time())


async def _receive_reply(stream: trio.SocketStream) -> bytes:
    received = bytearray()
    size = LENGTH_BYTES
    while len(received) < size:
        data = await stream.receive_some(RECEIVE_BYTES)
        if not data:
            raise EOFError(f"the connection ended after {len(received)} bytes of a reply")
        received += data
        if len(received) >= LENGTH_BYTES:
            size = LENGTH_BYTES + int(struct.unpack_from(">i", received)[0])
    return bytes(received[LENGTH_BYTES:])
