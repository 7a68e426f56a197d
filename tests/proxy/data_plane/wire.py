"""Connections over TCP that the data plane relays, with a client and a broker in this process."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import pytest

from headrace.proxy.data_plane.api_rows import api_rows
from headrace.proxy.data_plane.native import EXTENSION, is_installed
from headrace.proxy.wire.apis import READ_IN_FULL

if TYPE_CHECKING:
    from collections.abc import Callable

needs_engine = pytest.mark.skipif(not is_installed(), reason=f"{EXTENSION} is not built (CONTRIBUTING.md)")

DEADLINE_S = 20.0
CREDIT = 2**40
COSTS = (0.5, 0.25)


def new_engine(threads: int = 1, *, latency_bounds_ns: list[int] | None = None, sample_ratio: float = 0.0) -> Any:
    """Return an engine for all APIs that can be relayed natively."""
    rows = list(api_rows(READ_IN_FULL, lambda _: COSTS))
    return import_module(EXTENSION).Engine(
        threads, rows, latency_bounds_ns=latency_bounds_ns, sample_ratio=sample_ratio
    )


def new_seen_ids() -> Any:
    return import_module(EXTENSION).SeenIds()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for sock in (one, other):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


class Wire:
    """One connection: its client, its broker, and the proxy's two sockets, which the engine has."""

    def __init__(self, engine: Any, **terms: Any) -> None:
        self.engine = engine
        self.client, self._to_client = tcp_pair()
        self.broker, self._to_broker = tcp_pair()
        self.received = {"client": bytearray(), "broker": bytearray()}
        self.reads = {"client", "broker"}
        """The sides that read."""
        self.rest: Any = None
        usual: dict[str, Any] = {
            "client_id": b"c",
            "in_flight": [],
            "request_tail": b"",
            "produced": None,
            "fetched": None,
            "request_time": None,
            "producer_ids": None,
            "measures_time": False,
            "fetch_bytes": 2**31 - 1,
            "fetches_alone": False,
            "most_in_flight": 1000,
            "longest_frame": 10**7,
            "most_rows": 10**5,
        }
        try:
            self._relay(usual | terms)
        except BaseException:
            self._close()
            raise

    def _relay(self, terms: dict[str, Any]) -> None:
        self.progress = self.engine.relay(self._to_client.fileno(), self._to_broker.fileno(), **terms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.rest is None:
            self.engine.take_back(self.progress.id)
        self._close()

    def _close(self) -> None:
        for sock in (self.client, self.broker, self._to_client, self._to_broker):
            sock.close()

    def until(self, condition: Callable[[], bool]) -> None:
        """Read on both sides until ``condition`` holds."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, self.state()
            self._read()

    def state(self) -> str:
        numbers = {side: len(received) for side, received in self.received.items()}
        return f"received {numbers}, progress {self.progress.bytes}, rest {self.rest and self.rest.reason}"

    def _read(self) -> None:
        sides = {"client": self.client, "broker": self.broker}
        socks = [sock for side, sock in sides.items() if side in self.reads and sock.fileno() >= 0]
        ready, _, _ = select.select([*socks, self.engine.fileno()], [], [], 0.001)
        for side, sock in sides.items():
            if sock in ready:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    data = sock.recv(1 << 20)
                    self.received[side] += data
                    if not data:
                        self.reads.discard(side)
        for rest in self.engine.returned():
            if rest.id == self.progress.id:
                self.rest = rest

    def send(self, side: str, data: bytes) -> None:
        """Send ``data``, while the other side reads, until the engine accepts it or the connection has returned."""
        sock = getattr(self, side)
        left = memoryview(data)
        deadline_s = time.monotonic() + DEADLINE_S
        while left and self.rest is None:
            assert time.monotonic() < deadline_s, self.state()
            with contextlib.suppress(BlockingIOError):
                left = left[sock.send(left) :]
            if left:
                self._read()
        while left:  # the next reader gets it
            left = left[sock.send(left) :]

    def send_read(self, side: str, data: bytes) -> None:
        """Send ``data``, and wait until the engine has read it, or the connection has returned."""
        at = 0 if side == "client" else 2
        before = self.progress.bytes[at]
        self.send(side, data)
        self.until(lambda: self.rest is not None or self.progress.bytes[at] - before >= len(data))

    def recalled(self) -> Any:
        """Recall the connection unless it has returned, and return what is left."""
        self.engine.recall(self.progress.id)
        return self.returned()

    def returned(self) -> Any:
        self.until(lambda: self.rest is not None)
        self.until_all_came()
        return self.rest

    def until_all_came(self) -> None:
        """Wait for what the engine has sent; all of it was accepted by the system."""
        _, to_client, _, to_broker, _ = self.progress.bytes
        if "client" in self.reads:
            self.until(lambda: len(self.received["client"]) >= to_client or "client" not in self.reads)
        if "broker" in self.reads:
            self.until(lambda: len(self.received["broker"]) >= to_broker or "broker" not in self.reads)

    def unread(self, side: str) -> bytes:
        """Return what the engine has not read of a side, as the control plane would."""
        sock = self._to_client if side == "client" else self._to_broker
        found = bytearray()
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := sock.recv(1 << 20):
                found += data
        return bytes(found)


class Account:
    """A meter of an engine."""

    def __init__(self, engine: Any, credit: int = CREDIT) -> None:
        self._engine = engine
        self.number = engine.create_meter()
        self.settle(credit)

    def settle(self, credit: int | None) -> list[int]:
        """Return the amounts that were charged, and grant ``credit``; ``None`` withdraws it."""
        charges = self._engine.withdraw(self.number)
        if credit is not None:
            self._engine.grant(self.number, credit)
        assert charges == sorted(charges, key=lambda charge: charge[0])
        return [amount for _, amount in charges]
