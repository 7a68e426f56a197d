"""The store in a topic while brokers are killed: nothing acknowledged is lost, and it works again by itself.

With a cluster of its own. The number of kills is small here; the marked test kills for minutes.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

import pytest
import structlog
import trio
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic import store as topic_store
from headrace.quota_callbacks.entities import QuotaEntity
from testbed.kafka.cluster import KafkaCluster
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, alteration, opened, replay, since
from tests.proxy.quotas.topic.test_store import on, settings

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from headrace.proxy.quotas.store import QuotaStore
    from testbed.kafka.broker import Broker

WRITERS = 3
PROGRESS_S = 60.0


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    config = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}  # a new leader sooner
    with KafkaCluster(brokers=3, config=config) as cluster:
        yield cluster


def leader_of(cluster: KafkaCluster, topic: str) -> Broker:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    described = client.describe_topics(TopicCollection([topic]))[topic].result(60)
    return cluster.broker(described.partitions[0].leader.id)


class Storm:
    """Writers that set two keys of their own entities to the same number, again and again, and one key of another."""

    def __init__(self) -> None:
        self.acknowledged: dict[QuotaEntity, int] = {}
        self.attempted: dict[QuotaEntity, int] = {}
        self.failures: list[str] = []
        self.count = 0
        self.progress = trio.Event()

    async def write(self, store: QuotaStore, entity: QuotaEntity) -> None:
        number = 0
        while True:
            number += 1
            self.attempted[entity] = number
            both = [alteration(entity, a=number, b=number), alteration(ALICE, shared=number)]
            try:
                await store.alter(both, AUTHOR)
            except StoreError as error:
                self.failures.append(str(error))
            else:
                self.acknowledged[entity] = number
                self.count += 1
                self.progress.set()
                self.progress = trio.Event()

    async def more(self, count: int) -> None:
        """Return when so many more alterations were acknowledged, which takes some seconds after a leader's end."""
        wanted = self.count + count
        with trio.move_on_after(PROGRESS_S):
            while self.count < wanted:
                await self.progress.wait()
        assert self.count >= wanted, f"of {count} alterations, {wanted - self.count} are left: {self.failures[-3:]}"


async def kill_leaders(cluster: KafkaCluster, kills: int, rng: random.Random) -> None:
    found = settings(cluster)
    place = partial(on, found)
    storm = Storm()
    async with opened(place) as one, opened(place) as two:
        begin = (await two.snapshot()).sequence
        async with trio.open_nursery() as nursery:
            for number in range(WRITERS):
                for name, store in (("one", one), ("two", two)):
                    nursery.start_soon(storm.write, store, QuotaEntity(user=f"{name}-{number}"))
            for _ in range(kills):
                await storm.more(rng.randint(5, 50))
                leader = await trio.to_thread.run_sync(leader_of, cluster, found.topic)
                await trio.to_thread.run_sync(leader.kill)
                await storm.more(20)
                await trio.to_thread.run_sync(leader.restart)
                await trio.to_thread.run_sync(cluster.wait_ready)
            await storm.more(20)
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            for store in (one, two):
                await store.snapshot()  # follows the thread of an alteration that was cancelled, and may be made yet
            snapshot = await two.snapshot()
            assert (await one.snapshot()).quotas == snapshot.quotas
            followed = await two.changes_since(begin)
        if followed is not None:
            assert replay({}, followed) == snapshot.quotas
    async with opened(place) as late:
        assert (await late.snapshot()).quotas == snapshot.quotas
    for entity, number in storm.acknowledged.items():
        values = dict(snapshot.quotas[entity])
        assert values["a"] == values["b"], "no alteration of an entity is half made"
        assert number <= values["a"] <= storm.attempted[entity], "no acknowledged alteration is lost"


@pytest.mark.exhaustive
async def test_a_leader_is_killed_in_a_storm_of_alterations(three: KafkaCluster, rng: random.Random) -> None:
    await kill_leaders(three, 1, rng)


@pytest.mark.exhaustive
async def test_each_broker_in_turn_is_away(three: KafkaCluster) -> None:
    """Whichever it is, changes are made while it is: the leader, or the one that clients take for the controller."""
    async with opened(partial(on, settings(three))) as store:
        for number in range(3):
            await trio.to_thread.run_sync(three.broker(number).kill)
            failures: list[str] = []
            with trio.move_on_after(PROGRESS_S / 3):
                for value in itertools.count():
                    try:
                        await store.alter([alteration(ALICE, a=value)], AUTHOR)
                    except StoreError as error:
                        failures.append(str(error))
                    else:
                        break
            assert dict((await store.snapshot()).quotas[ALICE]) == {"a": value}, failures
            await trio.to_thread.run_sync(three.broker(number).restart)
            await trio.to_thread.run_sync(three.wait_ready)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_leaders_are_killed_again_and_again(three: KafkaCluster, rng: random.Random) -> None:
    await kill_leaders(three, 10, rng)


@pytest.mark.exhaustive
async def test_starting_without_the_cluster(three: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One proxy waits for it, another serves meanwhile; both have the quotas when it is back."""
    found = settings(three.broker(0).address)
    first = on(found)
    await first.open()
    await first.alter([alteration(ALICE, a=1.0)], AUTHOR)
    await first.close()
    monkeypatch.setattr(topic_store, "OPENING_TIMEOUT_S", 0.5)
    await trio.to_thread.run_sync(three.broker(0).kill)
    waiting, serving = on(found), on(found, waits=False, timeout_s=1.0)
    is_open = trio.Event()

    async def wait() -> None:
        assert (await waiting.open()).quotas == {ALICE: {"a": 1.0}}
        is_open.set()

    async def served() -> None:
        while True:
            try:
                changes = await serving.changes_since(position)
            except StoreError:
                await trio.sleep(0.2)
            else:
                assert changes is None
                return

    with structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with trio.fail_after(30):
                position = (await serving.open()).sequence
            with pytest.raises(StoreTimeoutError):
                await serving.changes_since(position)
            assert not is_open.is_set()
            await trio.to_thread.run_sync(three.broker(0).restart)
            await trio.to_thread.run_sync(three.wait_ready)
            monkeypatch.setattr(topic_store, "OPENING_TIMEOUT_S", 60.0)
            with trio.fail_after(60):
                await is_open.wait()
                await served()
        assert (await serving.snapshot()).quotas == {ALICE: {"a": 1.0}}
    events = {line["event"] for line in lines}
    assert {
        "waiting for the topic of quotas",
        "the quotas of the file are served until the topic can be read",
    } <= events
    assert await since(waiting, (await waiting.snapshot()).sequence) == []
    await waiting.close()
    await serving.close()
