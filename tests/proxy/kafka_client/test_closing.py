"""Closing a client ends the calls of other tasks, and leaves no connection open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.kafka_client.admin import AdminClient
from headrace.proxy.kafka_client.errors import ClosedError
from headrace.proxy.kafka_client.settings import ClientSettings
from headrace.proxy.kafka_client.topics import NewTopic
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.kafka_client.fake_cluster import BOOTSTRAP, ONE, Act, Answers, Asked, open_cluster

if TYPE_CHECKING:
    from trio.testing import MockClock

CREATE, DESCRIBE, VERSIONS = ApiKey.CREATE_TOPICS, ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.API_VERSIONS
TOPIC = [NewTopic(name="a", num_partitions=1, replication_factor=1)]


def created(asked: Asked) -> dict[str, Any]:
    return {"topics": [{"name": name, "error_code": 0} for name in asked.names]}


def described(throttle_time_ms: int = 0) -> dict[str, Any]:
    return {"throttle_time_ms": throttle_time_ms, "error_code": 0, "entries": []}


async def ended(admin: AdminClient, nursery: trio.Nursery, count: int = 1, **arguments: Any) -> trio.Event:
    """Begin calls, and return the event that is set when all have raised `ClosedError`."""
    event, raised = trio.Event(), []

    async def call() -> None:
        with pytest.raises(ClosedError, match="closed during the call; the broker may have done") as caught:
            await admin.describe_client_quotas(**arguments)
        raised.append(caught.value)
        if len(raised) == count:
            event.set()

    for _ in range(count):
        nursery.start_soon(call)
    await trio.testing.wait_all_tasks_blocked()
    return event


@pytest.mark.parametrize("raise_errors", [True, False])
async def test_a_closed_client_says_so(raise_errors: bool, autojump_clock: MockClock) -> None:
    async with open_cluster({}) as (cluster, admin):
        await admin.aclose()
        await admin.aclose()
        with pytest.raises(ClosedError, match="the client is closed"):
            await admin.describe_client_quotas()
        with pytest.raises(ClosedError, match="the client is closed"):
            await admin.alter_client_quotas([], raise_errors=raise_errors)
        with pytest.raises(ClosedError, match="the client is closed"):
            await admin.create_topics(TOPIC, raise_errors=raise_errors)
    assert cluster.connections == []


@pytest.mark.parametrize(
    "answers",
    [{DESCRIBE: lambda _: Act.SAY_NOTHING}, {VERSIONS: lambda _: Act.SAY_NOTHING}, {DESCRIBE: lambda _: Act.CLOSE}],
    ids=["reply", "versions", "pause between attempts"],
)
async def test_calls_under_way_end_at_once(answers: Answers, autojump_clock: MockClock) -> None:
    """Those that wait for a reply, for a connection, for their turn, and to be sent again."""
    async with open_cluster(answers) as (cluster, admin), trio.open_nursery() as nursery:
        event = await ended(admin, nursery, 3)
        made = len(cluster.connections)
        assert made > 0
        with trio.fail_after(0.01):
            await admin.aclose()
            await event.wait()
        await trio.sleep(100)
        assert (len(cluster.connections), cluster.open_connections) == (made, 0)


async def test_a_connection_that_is_ready_at_the_last_moment_is_closed(autojump_clock: MockClock) -> None:
    """The broker's versions arrive when the call has been cancelled already, and then the broker throttles it."""

    class Late(trio.abc.Stream):
        """A stream whose data arrives although the task that receives is cancelled."""

        def __init__(self, stream: trio.abc.Stream) -> None:
            self.stream = stream

        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            await self.stream.send_all(data)

        async def wait_send_all_might_not_block(self) -> None:
            await self.stream.wait_send_all_might_not_block()

        async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                await trio.sleep(2)
                return await self.stream.receive_some(max_bytes)
            raise AssertionError("nothing was received")

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def open_stream(address: Any) -> trio.abc.Stream:
        return Late(await cluster.open(address))

    async with open_cluster({DESCRIBE: lambda _: described(900_000)}) as (cluster, _), trio.open_nursery() as nursery:
        admin = AdminClient(ClientSettings(bootstrap_servers=(BOOTSTRAP,)), open_stream=open_stream)
        await admin.describe_client_quotas()
        await trio.sleep(301)  # so the next call opens a connection, and waits for the throttle time
        event = await ended(admin, nursery, timeout_ms=900_000)
        assert len(cluster.connections) == 2
        await admin.aclose()
        with trio.fail_after(10):
            await event.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.open_connections == 0


async def test_a_cancelled_block_closes_all_connections(autojump_clock: MockClock) -> None:
    async with open_cluster({CREATE: created, DESCRIBE: lambda _: described()}) as (cluster, _):
        with trio.CancelScope() as scope:
            async with AdminClient(ClientSettings(bootstrap_servers=(BOOTSTRAP,)), open_stream=cluster.open) as admin:
                await admin.create_topics(TOPIC)
                assert cluster.connections == [BOOTSTRAP, ONE]
                assert cluster.open_connections == 2
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.open_connections == 0
