"""Quotas of the configuration and of the store at the callbacks and at admission."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from headrace.config import loads
from headrace.proxy.counters import Counters
from headrace.proxy.network.admission import Admission
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import Upstream
from headrace.proxy.quotas.definitions import SLICE
from headrace.proxy.quotas.store import Snapshot
from headrace.proxy.quotas.topic.store import TopicStore
from headrace.proxy.server.configured import admission_limits_of
from headrace.proxy.server.garbage_collection import Collector
from headrace.proxy.server.quotas.brokers_quotas import BrokersQuotas
from headrace.proxy.server.quotas.quotas_in_force import QuotasInForce
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.entities import QuotaEntity, bounded_name
from headrace.quota_callbacks.policies import EnforcementMode
from tests.proxy.playbook import new_hooks

if TYPE_CHECKING:
    from headrace.config.schema import Config
    from headrace.proxy.quotas.topic.replica import KafkaLog

REQUIRED = 'upstream.bootstrap_servers = ["127.0.0.1:9"]\nlisten.address = "127.0.0.1:9192"\n'
RATE = "producer_byte_rate"


def quota_of(user: str, value: int) -> str:
    return f'[[quotas]]\nentity = {{ user = "{user}" }}\nproducer_byte_rate = {value}\n'


def put_into_force(config: Config) -> tuple[QuotasInForce, ClientQuotas]:
    hooks = new_hooks({})
    quotas = ClientQuotas(windows=config.windows(), metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit)
    hooks.configure(quotas, {})
    hooks.flatten()
    admission = Admission(admission_limits_of(config), Counters(), config.quota.window.rate_window)
    topology = Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3))
    upstream = Upstream(bootstrap_servers=[], topology=topology, connect_timeout_s=1.0, poller=Poller())
    return QuotasInForce(config, hooks, admission, upstream, Collector()), quotas


def limit_of(quotas: ClientQuotas, user: str) -> float | None:
    bucket = quotas.bucket(RATE, user, "")
    return None if bucket is None else bucket.limit


def test_a_long_name_applies_to_the_user_whose_name_is_shortened() -> None:
    quotas_in_force, quotas = put_into_force(loads(REQUIRED + quota_of("x" * 300, 7)))
    assert limit_of(quotas, bounded_name("x" * 300)) == 7
    assert list(quotas_in_force.definitions.entities()) == [QuotaEntity(user="x" * 300)]


def test_a_reload_is_in_force_at_once() -> None:
    quotas_in_force, quotas = put_into_force(loads(REQUIRED + quota_of("alice", 7)))
    quotas_in_force.configure(loads(REQUIRED + quota_of("alice", 8)))
    assert limit_of(quotas, "alice") == 8


async def test_a_reload_that_changes_many_quotas_leaves_the_rest_to_a_task() -> None:
    paced = loads(REQUIRED + '[client_quotas]\nenforcement = "paced"\nbrokers = "ignore"\n')
    former = loads(REQUIRED + '[client_quotas]\nbrokers = "ignore"\n')
    quotas_in_force, _ = put_into_force(former)
    definitions = quotas_in_force.definitions
    users = [QuotaEntity(user=f"user-{number}") for number in range(4 * SLICE)]
    for _ in definitions.replace(Snapshot(sequence=1, quotas={each: {RATE: 1.0} for each in users})):
        pass

    def paced_count() -> int:
        found = [definitions.in_force(each).get(RATE) for each in users]
        return sum(quota is not None and quota.policy.mode is EnforcementMode.PACED for quota in found)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(quotas_in_force.run)
            quotas_in_force.configure(paced)
            assert 0 < paced_count() <= SLICE
            while paced_count() < len(users):
                await trio.lowlevel.checkpoint()
            quotas_in_force.configure(former)
            assert paced_count() >= 3 * SLICE
            quotas_in_force.configure(paced)  # before the former policy is in force for all
            quotas_in_force.configure(former)
            while paced_count():
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("rule", "asks"), [("compare", True), ("import", True), ("show", True), ("ignore", False)])
async def test_whether_the_brokers_are_asked(rule: str, asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asking: list[BrokersQuotas] = []

    async def run(brokers: BrokersQuotas) -> None:
        asking.append(brokers)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(BrokersQuotas, "run", run)
    config = loads(f'{REQUIRED}[client_quotas]\nbrokers = "{rule}"\nfile = "/nowhere/quotas.sqlite"\n')
    quotas_in_force, _ = put_into_force(config)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quotas_in_force.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert bool(asking) is asks


def test_other_bootstrap_servers_are_those_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    text = REQUIRED + '[client_quotas]\nstore = "topic"\n'
    quotas_in_force, _ = put_into_force(loads(text))
    logs: list[KafkaLog] = []
    monkeypatch.setattr(TopicStore, "replace_log", lambda _, source: logs.append(source))
    quotas_in_force.configure(loads(text))
    assert logs == []
    quotas_in_force.configure(loads(text.replace('127.0.0.1:9"', 'kafka-2:9092"')))
    assert [each._settings.properties["bootstrap.servers"] for each in logs] == ["kafka-2:9092"]
