"""Scripts of DescribeClientQuotas and AlterClientQuotas, which the proxy answers itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio
from structlog.testing import capture_logs

from headrace.proxy.connection.state.shared_state import Limits
from headrace.proxy.connection.state.thread_time import ONE_OF, ThreadTimeSampler
from headrace.proxy.long_work import collector_off
from headrace.proxy.network.held_bytes import held
from headrace.proxy.quotas.client_quota_apis import ClientQuotaApis
from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.follower import StoreFollower
from headrace.proxy.quotas.rules.validation import MAX_CHANGES
from headrace.proxy.quotas.store import Snapshot
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.error_codes import ErrorCode
from headrace.quota_callbacks.identities import QuotaOperation
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trio.testing import MockClock

    from headrace.proxy.quotas.authorization import AskPlugins
    from headrace.proxy.quotas.store import Alteration, Author, Change
    from headrace.quota_callbacks.requests import Connection

ALTER, DESCRIBE, HEARTBEAT = ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.HEARTBEAT
BUSY_NS: Final = 30_000_000


class StubStore:
    """A store of quotas that keeps what it is given. ``meanwhile`` is called while a client waits for it."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.altered: list[Alteration] = []
        self._meanwhile = meanwhile

    async def open(self) -> Snapshot:
        return await self.snapshot()

    async def alter(self, alterations: Sequence[Alteration], author: Author) -> Sequence[Change]:
        await self._wait()
        self.altered += alterations
        return ()

    async def changes_since(self, sequence: int) -> Sequence[Change]:
        await self._wait()
        return ()

    async def snapshot(self) -> Snapshot:
        await trio.lowlevel.checkpoint()
        return Snapshot(sequence=0, quotas={})

    async def audit(self, *, limit: int, before: int | None = None) -> Sequence[Change]:
        await trio.lowlevel.checkpoint()
        return ()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _wait(self) -> None:
        """Wait for another task, which calls ``meanwhile``."""
        done = trio.Event()

        async def other_task() -> None:
            await trio.lowlevel.checkpoint()
            self._meanwhile()
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other_task)
            await done.wait()


def new_apis(store: StubStore, ask_plugins: AskPlugins = lambda _connection, _operation: None) -> ClientQuotaApis:
    definitions = QuotaDefinitions(lambda _entity, _key, _quota: None, lambda: None)
    return ClientQuotaApis(BUILTIN_SCHEMA, definitions, StoreFollower(store, definitions, 10.0), ask_plugins)


def be_busy() -> None:
    end_ns = time.thread_time_ns() + BUSY_NS
    while time.thread_time_ns() < end_ns:
        pass


async def test_the_work_of_others_while_the_store_is_awaited_is_not_charged(autojump_clock: MockClock) -> None:
    quota = (QuotaKey.REQUEST_PERCENTAGE, QuotaEntity(client_id="c"), 100_000.0)
    async with open_book(quotas=[quota]) as book:
        book.shared.client_quotas = new_apis(StubStore(be_busy))
        book.shared.thread_time = ThreadTimeSampler(lambda: ONE_OF)
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        assert book.connection.info.measure_thread_time
        measured_ns = 0
        with collector_off():  # a collection of what other tests have left takes as long as the work of others
            for number in range(3 * ONE_OF):  # at least one of them is measured
                book.connection.info.thread_ns = 0
                await book.client.sends(request(DESCRIBE, 1, number, components=[], strict=False))
                assert read_reply(DESCRIBE, 1, await book.client.receives())["error_code"] == 0
                await trio.testing.wait_all_tasks_blocked()
                measured_ns += book.connection.info.thread_ns
    assert 0 < measured_ns < ONE_OF * BUSY_NS


def alteration(count: int, *, name: str = "u", pair: bool = True) -> dict[str, Any]:
    """The fields of a request that sets a quota of ``count`` entities."""
    parts = ["user", "client-id"] if pair else ["user"]
    entries = [
        {
            "entity": [{"entity_type": each, "entity_name": f"{name}{number}"} for each in parts],
            "ops": [{"key": "producer_byte_rate", "value": 1024.0, "remove": False}],
        }
        for number in range(count)
    ]
    return {"entries": entries, "validate_only": False}


@pytest.mark.exhaustive
async def test_as_many_changes_as_a_broker_makes(autojump_clock: MockClock) -> None:
    held_bytes = held.count
    waiting: list[int] = []
    store = StubStore(lambda: waiting.append(held.count - held_bytes))
    async with open_book(limits=Limits()) as book:
        book.shared.client_quotas = new_apis(store)
        frame = request(ALTER, 1, 1, **alteration(MAX_CHANGES, name="u" * 100))
        assert len(frame) > Limits().max_whole_request_bytes
        await book.client.sends(frame)
        answer = read_reply(ALTER, 1, await book.client.receives())
        assert [each["error_code"] for each in answer["entries"]] == [0] * MAX_CHANGES
        assert len(store.altered) == MAX_CHANGES
        assert waiting[0] >= len(frame), "it counts as memory while the store is awaited"
        await book.client.sends(request(ALTER, 1, 2, **alteration(MAX_CHANGES + 1, pair=False)))
        answer = read_reply(ALTER, 1, await book.client.receives())
        assert {each["error_code"] for each in answer["entries"]} == {ErrorCode.POLICY_VIOLATION}
        assert len(store.altered) == MAX_CHANGES
    assert held.count == held_bytes


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (alteration(MAX_CHANGES + 1), "a request to change quotas has more than 40000 entities"),
        (alteration(3_000, name="u" * 1500), "longer than the bound for requests to change quotas = 8388608"),
    ],
)
async def test_more_ends_the_connection(fields: dict[str, Any], reason: str, autojump_clock: MockClock) -> None:
    with capture_logs() as lines:
        async with open_book(limits=Limits()) as book:
            book.shared.client_quotas = new_apis(StubStore())
            await book.client.sends(request(ALTER, 1, 1, **fields))
            await book.client.receives_the_end()
    assert reason in str(lines)


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        (alteration(3_400, pair=False), "limits.max_request_rows"),
        (alteration(1_000, name="u" * 1500), "limits.max_whole_request_bytes"),
    ],
)
async def test_a_client_that_may_not_change_quotas_has_the_usual_limits(
    fields: dict[str, Any], setting: str, autojump_clock: MockClock
) -> None:
    with capture_logs() as lines:
        async with open_book(limits=Limits()) as book:
            book.shared.client_quotas = new_apis(StubStore(), lambda _connection, _operation: False)
            await book.client.sends(request(ALTER, 1, 1, **alteration(1)))
            answer = read_reply(ALTER, 1, await book.client.receives())
            assert [each["error_code"] for each in answer["entries"]] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
            await book.client.sends(request(ALTER, 1, 2, **fields))
            await book.client.receives_the_end()
    assert setting in str(lines)


async def test_plugins_are_asked_once_for_each_request(autojump_clock: MockClock) -> None:
    asked: list[QuotaOperation] = []

    def deny(_connection: Connection, operation: QuotaOperation) -> bool:
        asked.append(operation)
        return operation is QuotaOperation.DESCRIBE

    store = StubStore()
    async with open_book() as book:
        book.shared.client_quotas = new_apis(store, deny)
        await book.client.sends(request(ALTER, 1, 1, **alteration(2)))
        answer = read_reply(ALTER, 1, await book.client.receives())
        assert [each["error_code"] for each in answer["entries"]] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
        assert asked == [QuotaOperation.ALTER]
        await book.client.sends(request(DESCRIBE, 1, 2, components=[], strict=False))
        assert read_reply(DESCRIBE, 1, await book.client.receives())["error_code"] == 0
        assert asked == [QuotaOperation.ALTER, QuotaOperation.DESCRIBE]
    assert store.altered == []
