"""Long replies are read in a thread; also when the client is closed meanwhile."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.kafka_client.connection import broker_connection
from headrace.proxy.kafka_client.connection.long_replies import LONG_BYTES, LONG_ROWS, read_in_thread
from headrace.proxy.kafka_client.errors import BadReplyError, ClosedError
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity
from tests.clients.fronts import DEADLINE_S
from tests.proxy.kafka_client.fake_cluster import open_cluster

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Buffer, Message

DESCRIBE = ApiKey.DESCRIBE_CLIENT_QUOTAS
KEY = "producer_byte_rate"
REPLY = "DescribeClientQuotasResponse"


def described(count: int) -> dict[str, Any]:
    """A description of so many users, with names of 120 characters."""
    return {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": f"user-{number:0115}"}],
                "values": [{"key": KEY, "value": float(number + 1)}],
            }
            for number in range(count)
        ]
    }


@pytest.mark.parametrize(("count", "in_thread"), [(10, False), (LONG_ROWS + 100, True)])
async def test_the_event_loop_is_not_blocked(count: int, in_thread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, decoded_in = broker_connection.decode, []

    def noted(name: str, version: int, body: Buffer) -> Message:
        if name == REPLY:
            decoded_in.append(threading.current_thread() is not threading.main_thread())
            assert gc.isenabled() is not in_thread
        return decode(name, version, body)

    monkeypatch.setattr(broker_connection, "decode", noted)
    async with open_cluster({DESCRIBE: lambda _: described(count)}) as (_, admin):
        quotas = await admin.describe_client_quotas()
    assert decoded_in == [in_thread]
    assert quotas == {QuotaEntity(user=f"user-{number:0115}"): {KEY: number + 1.0} for number in range(count)}


async def test_closing_does_not_wait_for_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, reading, may_end = broker_connection.decode, trio.Event(), threading.Event()

    def slow(name: str, version: int, body: Buffer) -> Message:
        if name == REPLY:
            trio.from_thread.run_sync(reading.set)
            assert may_end.wait(DEADLINE_S)
        return decode(name, version, body)

    monkeypatch.setattr(broker_connection, "decode", slow)
    async with (
        open_cluster({DESCRIBE: lambda _: described(LONG_ROWS + 100)}) as (cluster, admin),
        trio.open_nursery() as nursery,
    ):

        async def call() -> None:
            with pytest.raises(ClosedError, match="closed during the call"):
                await admin.describe_client_quotas()
            may_end.set()

        nursery.start_soon(call)
        with trio.fail_after(DEADLINE_S):
            await reading.wait()
            await admin.aclose()
    assert may_end.is_set()
    assert cluster.open_connections == 0


async def test_errors_of_a_thread_reach_the_caller() -> None:
    """An invalid entity among many."""
    reply = described(LONG_ROWS)
    reply["entries"][-1]["entity"][0]["entity_name"] = ""
    async with open_cluster({DESCRIBE: lambda _: reply}) as (_, admin):
        with pytest.raises(BadReplyError, match="has an invalid entity"):
            await admin.describe_client_quotas()


@pytest.mark.parametrize(
    ("rows", "size_bytes", "in_thread"),
    [(LONG_ROWS - 1, LONG_BYTES - 1, False), (LONG_ROWS, 0, True), (0, LONG_BYTES, True)],
)
async def test_what_is_long(rows: int, size_bytes: int, in_thread: bool) -> None:
    used = await read_in_thread(threading.current_thread, rows=rows, size_bytes=size_bytes)
    assert (used is not threading.main_thread()) == in_thread
