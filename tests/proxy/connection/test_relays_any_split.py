"""Property: client and broker receive the same bytes however their input is split into reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from tests.proxy.playbook import Book, MemorySocket, framed, open_book, reply, request

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDPOINTS = [{"node_id": 1, "host": "kafka-1", "port": 9092}]


def heartbeat(number: int, _size: int) -> tuple[bytes, bytes]:
    return request(ApiKey.HEARTBEAT, 4, number), reply(ApiKey.HEARTBEAT, 4, number)


def metadata(number: int, size: int) -> tuple[bytes, bytes]:
    brokers = [{"node_id": n % 12, "host": "k" * (n % 50), "port": n} for n in range(size % 40)]
    return request(ApiKey.METADATA, 12, number), reply(ApiKey.METADATA, 12, number, brokers=brokers)


def produce(number: int, size: int) -> tuple[bytes, bytes]:
    answer = reply(ApiKey.PRODUCE, 10, number, node_endpoints=ENDPOINTS if size % 2 else [])
    return request(ApiKey.PRODUCE, 10, number, acks=1, padding=size), answer


def produce_without_acks(number: int, size: int) -> tuple[bytes, bytes]:
    return request(ApiKey.PRODUCE, 8, number, acks=0, padding=size), b""


def fetch(number: int, size: int) -> tuple[bytes, bytes]:
    partitions = [{"partition_index": n, "records": bytes(size), "high_watermark": 1} for n in range(size % 4)]
    answer = reply(
        ApiKey.FETCH, 17, number, responses=[{"partitions": partitions}], node_endpoints=ENDPOINTS if size % 2 else []
    )
    return request(ApiKey.FETCH, 17, number, max_bytes=10**6), answer


def too_new(number: int, _size: int) -> tuple[bytes, bytes]:
    """Return an ApiVersions v99, which the proxy answers itself, in order."""
    return framed(b"\x00\x12\x00\x63" + number.to_bytes(4, "big") + b"\x00\x01c\x00\x00"), b""


KINDS = [heartbeat, metadata, produce, produce_without_acks, fetch, too_new]
exchanges = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3000)), min_size=1, max_size=8)
cuts = st.lists(st.integers(1, 400), max_size=60)


class CutSocket(MemorySocket):
    """Limits each read to the next of the given sizes; unlimited after the last."""

    def __init__(self, sizes: Iterator[int]) -> None:
        super().__init__()
        self._sizes = sizes

    def receive_into(self, view: memoryview) -> int | None:
        return super().receive_into(view[: next(self._sizes, len(view))])


def play(pairs: list[tuple[bytes, bytes]], client_cuts: list[int], broker_cuts: list[int]) -> tuple[bytes, bytes]:
    """Return what the broker and the client receive."""
    received: list[bytes] = []

    async def script() -> None:
        quota = (QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(client_id="c"), 1000.0)
        async with open_book(quotas=[quota], node_ids=range(10)) as book:
            cut(book, client_cuts, broker_cuts)
            await book.client.sends(*(asked for asked, _ in pairs))
            received.append(await all_of(book, [len(asked) for asked, _ in pairs if asked[4:8] != b"\x00\x12\x00\x63"]))
            if book.upstream.brokers:
                await book.broker.sends(*(answer for _, answer in pairs if answer))
            answers = sum(1 for asked, answer in pairs if answer or asked[4:8] == b"\x00\x12\x00\x63")
            received.append(b"".join([await book.client.receives() for _ in range(answers)]))
            assert book.client.receives_nothing()
            assert len(book.connection.in_flight) == 0

    trio.run(script, clock=MockClock(autojump_threshold=0))
    return received[0], received[1]


def cut(book: Book, client_cuts: list[int], broker_cuts: list[int]) -> None:
    """Limit the reads of the proxy's sockets to both sides."""
    make_cut(book.connection.client, client_cuts)
    dial = book.upstream.dial

    async def dial_cut(node_id: int | None, *_: object, **__: object) -> Any:
        upstream, address = await dial(node_id)
        make_cut(upstream, broker_cuts)
        return upstream, address

    book.upstream.dial = dial_cut  # type: ignore[method-assign]


def make_cut(upstream: Any, sizes: list[int]) -> None:
    upstream.__class__ = CutSocket
    upstream._sizes = iter(sizes)


async def all_of(book: Book, sizes: list[int]) -> bytes:
    """Return all frames that reach the broker, with mutes passed by the fake clock."""
    if not sizes:
        return b""
    await book.upstream.wait_for_dial(1)
    frames = [await book.broker.receives() for _ in sizes]
    return b"".join(frames)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(kinds=exchanges, client_cuts=cuts, broker_cuts=cuts)
def test_both_sides_hear_the_same(kinds: list[Any], client_cuts: list[int], broker_cuts: list[int]) -> None:
    pairs = [make(number, size) for number, (make, size) in enumerate(kinds)]
    assert play(pairs, client_cuts, broker_cuts) == play(pairs, [], [])
