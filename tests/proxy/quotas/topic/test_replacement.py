"""A topic of quotas that is deleted and created again is noticed and read anew; nothing is acknowledged in error."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio
from confluent_kafka import KafkaError, KafkaException, Producer, Uuid

from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.follower import INTERVAL_S, StoreFollower
from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic import creation as topic_creation
from headrace.proxy.quotas.topic.creation import TopicAdmin, topic_config
from headrace.proxy.quotas.topic.records import record_key
from headrace.proxy.quotas.topic.replica import KafkaLog
from headrace.proxy.quotas.topic.store import TopicStore
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, alteration, opened
from tests.proxy.quotas.topic.test_store import DAY_MS, create, delete, on, settings

if TYPE_CHECKING:
    from testbed.kafka.cluster import KafkaCluster


async def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_beginning(kafka3: KafkaCluster) -> None:
    found = settings(kafka3)
    async with opened(partial(on, found, timeout_s=10.0)) as store:
        for value in (1.0, 2.0):
            await store.alter([alteration(ALICE, a=value)], AUTHOR)
        position = (await store.snapshot()).sequence
        await trio.to_thread.run_sync(delete, kafka3, found.topic)
        with pytest.raises(StoreError):
            await store.alter([alteration(ALICE, a=3.0)], AUTHOR)
        with trio.fail_after(60):
            while True:
                try:
                    assert await store.changes_since(position) is None
                    break
                except StoreError:
                    await trio.sleep(0.1)
        assert (await store.snapshot()).quotas == {}
        await store.alter([alteration(ALICE, a=4.0)], AUTHOR)
        assert (await store.snapshot()).quotas == {ALICE: {"a": 4.0}}


async def test_a_topic_that_is_created_again_and_is_longer_at_once_is_read_from_its_beginning(
    kafka3: KafkaCluster,
) -> None:
    """As when an operator restores a backup: the new log continues where the old one was read, but is another one."""
    found = settings(kafka3)
    definitions = QuotaDefinitions(lambda *_: None, lambda: None)
    async with opened(partial(on, found)) as store:
        follower = StoreFollower(store, definitions, 20.0)
        await follower.alter([alteration(QuotaEntity(user=f"old{number}"), a=1.0) for number in range(3)], AUTHOR)
        await follower.catch_up()
        assert len(definitions) == 3
        await trio.to_thread.run_sync(recreate, kafka3, found.topic, 9)
        with trio.fail_after(60):
            while {str(each.user) for each in definitions.entities()} != {f"new{number}" for number in range(9)}:
                await trio.sleep(INTERVAL_S)
                with suppress(StoreError):
                    await follower.catch_up()
        await follower.alter([alteration(ALICE, a=4.0)], AUTHOR)
        await follower.catch_up()
        assert definitions.values(ALICE) == {"a": 4.0}


async def test_nothing_is_acknowledged_in_a_topic_that_was_created_again_unseen(kafka3: KafkaCluster) -> None:
    """Neither a change, nor a quota that was set already: the new log may lack what was known of the old one.

    If the new log has another leader, the old one says that there is no such topic. Then the proxy knows before it
    makes the change, and makes it in the new log.
    """
    found = settings(kafka3)
    log = KafkaLog(found)
    for value in (4.0, 5.0):  # the new logs are longer than what was read
        async with opened(lambda: TopicStore(log, timeout_s=20.0)) as store:
            await store.alter([alteration(ALICE, a=4.0)], AUTHOR)
            log._admin._next_question_s = math.inf  # nothing but an alteration asks for the id
            await trio.to_thread.run_sync(recreate, kafka3, found.topic, 30)
            try:
                await store.alter([alteration(ALICE, a=value)], AUTHOR)
            except StoreTimeoutError as error:
                assert "was replaced" in str(error)  # noqa: PT017 -- the other outcome is right, too
                await store.alter([alteration(ALICE, a=value)], AUTHOR)
            quotas = (await store.snapshot()).quotas
            assert quotas[ALICE] == {"a": value}
            assert QuotaEntity(user="new29") in quotas


def recreate(cluster: KafkaCluster, topic: str, quotas: int) -> None:
    """Delete a topic, create it again, and append quotas to it, faster than a proxy asks."""
    delete(cluster, topic)
    while True:
        try:
            create(cluster, topic, **{name.replace(".", "_"): value for name, value in topic_config(1, DAY_MS).items()})
            break
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(quotas):
        producer.produce(topic, b"1.0", record_key(QuotaEntity(user=f"new{number}"), "a"))
    assert producer.flush(60) == 0


def test_the_id_of_the_topic_is_asked_for_once_a_second_and_after_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a broker answers: another id, none at all as before Kafka 2.8, or an error, which ends no doubt."""
    topic = TopicAdmin(settings("127.0.0.1:1"))
    now_s = 1000.0
    monkeypatch.setattr(topic_creation.time, "monotonic", lambda: now_s)
    answers: list[Uuid | None] = []

    def describe(_deadline_s: float) -> SimpleNamespace:
        answer = answers.pop()
        if answer is None:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        return SimpleNamespace(topic_id=answer)

    monkeypatch.setattr(topic, "_describe", describe)
    assert not topic.is_replaced(now_s + 9), "nothing is asked before there is an id to compare"
    monkeypatch.setattr(topic, "_id", str(Uuid(1, 2)))
    for first, is_replaced in ((Uuid(1, 2), False), (Uuid(0, 0), False), (None, False), (Uuid(2, 1), True)):
        answer = first
        now_s += topic_creation.QUESTION_S
        answers.append(answer)
        assert topic.is_replaced(now_s + 9) is is_replaced
        for _ in range(4):
            now_s += 0.2
            assert not topic.is_replaced(now_s + 9), "a question more would have no answer"
        topic.require_check()
        if answer is None:
            for _ in range(2):
                answers.append(None)
                with pytest.raises(StoreTimeoutError, match="no broker answers whether it was created again"):
                    topic.is_replaced(now_s)
            answer = Uuid(1, 2)
            answers[:] = [answer, None]  # while there is time, it is asked again
        else:
            answers.append(answer)
        assert topic.is_replaced(now_s + 9) is is_replaced
        assert answers == []
