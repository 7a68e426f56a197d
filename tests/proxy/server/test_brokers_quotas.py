"""The brokers' quotas: asking for many of them does not delay clients, and the remark follows every change."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.kafka_client.errors import ApiTimeoutError
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import Upstream
from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.store import Author, Change
from headrace.proxy.server import brokers_quotas
from headrace.proxy.server.brokers_quotas import SHOWN, SLICE, BrokersQuotas, by_entity_in_force
from headrace.quota_callbacks.entities import QuotaEntity, bounded_name
from headrace.quota_callbacks.policies import KAFKA_POLICY, Quota
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from headrace.proxy.kafka_client.settings import ClientSettings
    from headrace.proxy.server.brokers_quotas import Quotas
    from headrace.quota_callbacks.sasl import UpstreamSasl

ALICE = QuotaEntity(user="alice")
RATE = "producer_byte_rate"
BOTH = "both the brokers and the proxy throttle by these quotas: "


def known() -> tuple[QuotaDefinitions, BrokersQuotas]:
    definitions = QuotaDefinitions(lambda entity, _key, _quota: brokers.note(entity), lambda: None)
    topology = Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3))
    upstream = Upstream(
        bootstrap_servers=[Address(host="127.0.0.1", port=9)],
        topology=topology,
        connect_timeout_s=1.0,
        poller=Poller(),
    )
    brokers = BrokersQuotas(upstream, definitions, wanted=True)
    return definitions, brokers


def set_in_store(definitions: QuotaDefinitions, entity: QuotaEntity, value: float | None) -> None:
    author = Author(principal="alice", address="127.0.0.1")
    change = Change(sequence=1, time_ms=0, author=author, entity=entity, key=RATE, old=None, new=value)
    assert list(definitions.apply([change])) == []


async def learn(brokers: BrokersQuotas, quotas: Quotas) -> None:
    await brokers.learn(quotas, by_entity_in_force(quotas))


async def test_the_remark_follows_each_change_of_either_side() -> None:
    definitions, brokers = known()
    await learn(brokers, {ALICE: {RATE: 1.0, "request_percentage": 2.0}})
    assert brokers.remark() == ""
    set_in_store(definitions, ALICE, 5.0)
    assert brokers.remark() == f"{BOTH}producer_byte_rate of user=alice"
    set_in_store(definitions, ALICE, 6.0)
    assert brokers.remark() == f"{BOTH}producer_byte_rate of user=alice"
    list(definitions.set_file({ALICE: {"request_percentage": Quota(value=3.0)}}, KAFKA_POLICY))
    assert brokers.remark() == f"{BOTH}producer_byte_rate of user=alice; request_percentage of user=alice"
    set_in_store(definitions, ALICE, None)
    assert brokers.remark() == f"{BOTH}request_percentage of user=alice"
    await learn(brokers, {})
    assert brokers.remark() == ""


@pytest.mark.parametrize(
    ("at_brokers", "ours"),
    [
        (QuotaEntity(ip="2001:DB8:0::1"), QuotaEntity(ip="2001:db8::1")),
        (QuotaEntity(user="x" * 300), QuotaEntity(user=bounded_name("x" * 300))),
    ],
)
async def test_forms_of_a_name_are_one_entity(at_brokers: QuotaEntity, ours: QuotaEntity) -> None:
    definitions, brokers = known()
    await learn(brokers, {at_brokers: {RATE: 1.0}})
    set_in_store(definitions, ours, 5.0)
    assert brokers.remark() == f"{BOTH}producer_byte_rate of {ours}"
    assert brokers.quotas == {at_brokers: {RATE: 1.0}}, "they are described as the brokers have them"


async def test_many_quotas_are_compared_in_slices() -> None:
    definitions, brokers = known()
    quotas = {QuotaEntity(user=f"user-{number}"): {RATE: 1.0} for number in range(3 * SLICE)}
    for entity in quotas:
        set_in_store(definitions, entity, 1.0)
    counts: list[int] = []

    async def watch() -> None:
        while True:
            counts.append(len(brokers._both))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await learn(brokers, quotas)
        nursery.cancel_scope.cancel()
    assert {SLICE, 2 * SLICE} & set(counts), "other tasks run between the slices"
    assert brokers.remark().endswith(f"user=user-{SHOWN - 1} and {3 * SLICE - SHOWN} more")


async def test_the_cluster_is_asked_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    _, brokers = known()
    asked, answer = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def ask(settings: ClientSettings, _login: UpstreamSasl | None) -> tuple[Quotas, Quotas]:
        assert [str(each) for each in settings.bootstrap_servers] == ["127.0.0.1:9"]
        token.run_sync_soon(asked.set)
        assert answer.wait(20)
        return {ALICE: {RATE: 1.0}}, {ALICE: {RATE: 1.0}}

    monkeypatch.setattr(brokers_quotas, "_ask", ask)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(brokers.run)
            await asked.wait()
            assert not brokers.known.is_set()
            answer.set()
            await brokers.known.wait()
            nursery.cancel_scope.cancel()
    assert brokers.quotas == {ALICE: {RATE: 1.0}}


@pytest.mark.parametrize("failure", [ApiTimeoutError("timed out"), RuntimeError("a bug")])
async def test_a_failure_changes_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    _, brokers = known()
    await learn(brokers, {ALICE: {RATE: 1.0}})
    answers = iter([failure])

    def ask(_settings: ClientSettings, _login: UpstreamSasl | None) -> tuple[Quotas, Quotas]:
        for error in answers:
            raise error
        return {}, {}

    monkeypatch.setattr(brokers_quotas, "_ask", ask)
    await brokers._refresh()
    assert (brokers.known.is_set(), brokers.quotas) == (False, {ALICE: {RATE: 1.0}})
    await brokers._refresh()
    assert (brokers.known.is_set(), brokers.quotas) == (True, {})
