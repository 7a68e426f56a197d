"""The client-quota APIs of two processes that share a store, and what both do with descriptions that are too long."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest
import structlog
import trio

from headrace.proxy import long_work
from headrace.proxy.quotas.client_quota_apis import ClientQuotaApis
from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.follower import StoreFollower
from headrace.proxy.quotas.sqlite.store import SqliteStore
from headrace.proxy.quotas.store import Alteration, Author, Snapshot
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import QuotaEntity
from headrace.quota_callbacks.requests import Address, Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

T = TypeVar("T")

ALTER = ApiKey.ALTER_CLIENT_QUOTAS
CLIENT = Connection(connection_id=1, peer=Address(host="192.0.2.1", port=1))
KEY = "producer_byte_rate"


class Process:
    """The APIs of one process, which does not follow the store by itself."""

    def __init__(self, path: Path) -> None:
        self.definitions = QuotaDefinitions(lambda *_: None, lambda: None)
        self.follower = StoreFollower(SqliteStore(str(path)), self.definitions, timeout_s=10)
        self.apis = ClientQuotaApis(BUILTIN_SCHEMA, self.definitions, self.follower, lambda *_: None)

    async def alter(self, value: float | None) -> int:
        """Set or remove a quota of alice, and return the error code."""
        entity = [{"entity_type": "user", "entity_name": "alice"}]
        ops = [{"key": KEY, "value": 0.0 if value is None else value, "remove": value is None}]
        request = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
        body = memoryview(encode("AlterClientQuotasRequest", 1, request))
        reply = await self.apis.answer(CLIENT, ApiKey.ALTER_CLIENT_QUOTAS, 1, body, allowed=True)
        (row,) = decode("AlterClientQuotasResponse", 1, reply)["entries"]
        code: int = row["error_code"]
        return code

    async def describe(self) -> dict[str, object]:
        body = memoryview(encode("DescribeClientQuotasRequest", 1, {"components": [], "strict": False}))
        reply = await self.apis.answer(CLIENT, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, body, allowed=True)
        return decode("DescribeClientQuotasResponse", 1, reply)

    async def value(self) -> float | None:
        """The quota of alice, as this process describes it."""
        for row in (await self.describe())["entries"]:  # type: ignore[attr-defined]
            for each in row["values"]:
                found: float = each["value"]
                return found
        return None


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Process, Process]]:
    processes = Process(tmp_path / "quotas.sqlite"), Process(tmp_path / "quotas.sqlite")
    for process in processes:
        await process.follower.open()
    yield processes
    for process in processes:
        await process.follower.close()


async def test_an_alteration_counts_although_the_other_process_has_changed_the_quota(
    two: tuple[Process, Process],
) -> None:
    """What a process knows is up to a quarter of a second old; it must not decide what is stored."""
    one, other = two
    for value, new in ((100.0, 50.0), (50.0, 100.0), (None, 50.0)):
        assert await other.alter(new) == 0
        assert await one.alter(value) == 0
        assert await other.alter(new) == 0
        assert await one.value() == await other.value() == new


async def test_many_alterations_at_the_same_time_are_applied_in_one_order(two: tuple[Process, Process]) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(two[number % 2].alter, float(number + 1))
    assert await two[0].value() == await two[1].value() is not None
    changes = await two[0].follower.audit(limit=100, before=None)
    assert [change.old for change in changes[:-1]] == [change.new for change in changes[1:]]
    assert changes[0].new == await two[0].value()


async def test_a_description_that_is_too_long_is_refused(two: tuple[Process, Process]) -> None:
    one, _ = two
    await one.alter(1.0)
    one.apis.max_reply_bytes = 10
    reply = await one.describe()
    assert (reply["error_code"], reply["entries"]) == (42, None)
    assert "limits.max_collected_bytes = 10" in str(reply["error_message"])


@pytest.mark.exhaustive
async def test_of_many_alterations_one_is_worked_on_at_a_time(
    two: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slices of all of them are not a long turn of the loop, which others would wait for."""
    one, _ = two
    entries = [
        {
            "entity": [{"entity_type": "user", "entity_name": f"user-{number}"}],
            "ops": [{"key": "no such key", "value": 1.0, "remove": False}],
        }
        for number in range(2000)
    ]
    body = memoryview(encode("AlterClientQuotasRequest", 1, {"entries": entries, "validate_only": True}))
    at_work, most = 0, 0
    unchanged = long_work.in_slices

    async def in_slices(steps: Generator[None, None, T], paused: Callable[[], AbstractContextManager[None]]) -> T:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        try:
            return await unchanged(steps, paused)
        finally:
            at_work -= 1

    monkeypatch.setattr(long_work, "in_slices", in_slices)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(partial(one.apis.answer, allowed=True), CLIENT, ALTER, 1, body)
    assert most == 1


async def test_a_store_that_fails_is_logged_once_a_minute(two: tuple[Process, Process]) -> None:
    """Whoever may change quotas could otherwise fill the log while the store fails."""
    one, _ = two
    await one.follower.close()
    with structlog.testing.capture_logs() as lines:
        assert [await one.alter(1.0) for _ in range(5)] == [-1] * 5
    assert [(line["event"], line["left_out"]) for line in lines] == [("quotas cannot be changed", None)]


async def test_a_description_has_each_entity_once_though_quotas_change_meanwhile(two: tuple[Process, Process]) -> None:
    """Of an entity that the brokers have, too, quotas are set or removed between two slices."""
    one, _ = two
    users = [QuotaEntity(user=f"user-{number}") for number in range(4)]
    one.apis.brokers = BrokersKnown({each: {KEY: 7.0} for each in users})
    one.apis.shows_brokers = True
    author = Author(principal="alice", address="192.0.2.1")
    await one.follower.alter([Alteration(entity=users[0], values={KEY: 1.0})], author)
    await one.follower.catch_up()
    steps = one.apis._description_in_steps(1, lambda _entity: True)
    next(steps)
    for _ in one.definitions.replace(Snapshot(sequence=9, quotas={users[1]: {KEY: 2.0}})):
        pass
    reply = await long_work.in_slices(steps)
    found = {
        row["entity"][0]["entity_name"]: {each["key"]: each["value"] for each in row["values"]}
        for row in decode("DescribeClientQuotasResponse", 1, reply)["entries"]
    }
    of_brokers = {f"brokers.{KEY}": 7.0}
    assert found == {
        "user-0": of_brokers,
        "user-1": {KEY: 2.0, **of_brokers},
        "user-2": of_brokers,
        "user-3": of_brokers,
    }


class BrokersKnown:
    """What a cluster has answered."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self.quotas = quotas

    def remark(self) -> str:
        return ""
