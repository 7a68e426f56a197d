"""Many quotas that were set while the proxy runs: putting them into force, describing them, and deciding by them.

    .venv/bin/python -m benchmarks.quota_definitions [--entities 100000]

Everything is measured with 10 entities and with the given number, each with a quota of its own for two keys; times are
CPU time, so that other programs on the machine do not count. *Longest step* is that without a pause, in which no client
is served; it contains the garbage collections that fall into it, unless ``--no-collection`` disables them.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING

import click
import trio

from benchmarks.decisions import ROUNDS, decide, quotas_for
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import Upstream
from headrace.proxy.quotas.client_quota_apis import ClientQuotaApis
from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.store import Author, Change, Snapshot
from headrace.proxy.server.garbage_collection import Collector
from headrace.proxy.server.quotas.brokers_quotas import BrokersQuotas, by_entity_in_force
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import QuotaPolicy
from headrace.quota_callbacks.requests import Address, Connection, Request

if TYPE_CHECKING:
    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.policies import Quota

FEW = 10
KEY = "producer_byte_rate"
VALUES = {"producer_byte_rate": 1e12, "request_percentage": 1e6}
DECISIONS = 20_000
CONNECTIONS = 2_000
REMARKS = 1_000
VERSION = 1


class Steps(trio.abc.Instrument):
    """The longest CPU time for which a task ran without a pause."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s = time.thread_time()

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        """Note when the step begins."""
        self._began_s = time.thread_time()

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        """Note how long the step took."""
        self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


def definitions_for(hooks: HookCalls, quotas: ClientQuotas) -> QuotaDefinitions:
    collector = Collector()

    def put_into_force(entity: QuotaEntity, key: str, quota: Quota | None) -> None:
        collector.freeze_if_grown("entities", len(definitions))
        if quota is not None:
            hooks.update_quota(QuotaKey(key), entity, quota)

    definitions = QuotaDefinitions(put_into_force, quotas.quotas_changed)
    return definitions


async def measure(entities: int) -> None:
    hooks, quotas = quotas_for(CONNECTIONS)
    definitions = definitions_for(hooks, quotas)
    snapshot = Snapshot(sequence=1, quotas={QuotaEntity(user=f"user-{number}"): VALUES for number in range(entities)})
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    begin = await start(steps)
    for _ in definitions.replace(snapshot):
        await trio.lowlevel.checkpoint()
    report("put into force", entities, time.process_time() - begin, steps)
    await measure_changes(definitions, snapshot, steps)
    brokers = await measure_brokers(definitions, snapshot, steps)
    await measure_descriptions(definitions, brokers, entities, steps)
    trio.lowlevel.remove_instrument(steps)
    decisions(hooks, entities)


async def measure_descriptions(
    definitions: QuotaDefinitions, brokers: BrokersQuotas, entities: int, steps: Steps
) -> None:
    """Print the times of describing all quotas, also those of the brokers, and the memory that a description needs."""
    apis = ClientQuotaApis(BUILTIN_SCHEMA, definitions, None, lambda _connection, _operation: True)
    apis.brokers = brokers
    body = memoryview(encode("DescribeClientQuotasRequest", VERSION, {"components": [], "strict": False}))
    describe = partial(apis.answer, client("anybody"), ApiKey.DESCRIBE_CLIENT_QUOTAS, VERSION, body, allowed=True)
    for what, shows_brokers in (("describe all of them", False), ("describe those of the brokers, too", True)):
        apis.shows_brokers = shows_brokers
        begin = await start(steps)
        await describe()
        report(what, entities, time.process_time() - begin, steps)
    apis.shows_brokers = False
    tracemalloc.start()
    reply = await describe()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"  {'memory of the description, at most':40} {peak / 1e6:10.1f} MB for {len(reply) / 1e6:.1f} MB sent")


async def measure_changes(definitions: QuotaDefinitions, snapshot: Snapshot, steps: Steps) -> None:
    """Print the times of changing every quota, of a new default policy, and of a snapshot that differs in nothing."""
    author = Author(principal="user", address="192.0.2.1")
    changes = [
        Change(sequence=1, time_ms=0, author=author, entity=entity, key=KEY, old=None, new=5e11)
        for entity in snapshot.quotas
    ]
    under_test = {
        "apply a change of each": definitions.apply(changes),
        "put a new default policy into force": definitions.set_file({}, QuotaPolicy(observe=True)),
        "restore the former policy": definitions.set_file({}, QuotaPolicy()),
        "restore the former values": definitions.replace(snapshot),
        "compare an equal snapshot": definitions.replace(snapshot),
    }
    for what, changing in under_test.items():
        begin = await start(steps)
        for _ in changing:
            await trio.lowlevel.checkpoint()
        report(what, len(snapshot.quotas), time.process_time() - begin, steps)


async def measure_brokers(definitions: QuotaDefinitions, snapshot: Snapshot, steps: Steps) -> BrokersQuotas:
    """Print the time of comparing the quotas with those of the brokers, which have the same, and of the remark.

    The brokers that are returned have as many further entities, which the proxy does not have.
    """
    upstream = Upstream(
        bootstrap_servers=(),
        topology=Topology(advertised_host="localhost", advertised_port=9192, node_ids=range(1)),
        connect_timeout_s=1.0,
        poller=Poller(),
    )
    brokers = BrokersQuotas(upstream, definitions, wanted=True)
    in_force = by_entity_in_force(snapshot.quotas)
    begin = await start(steps)
    await brokers.learn(snapshot.quotas, in_force)
    report("compare with the brokers' quotas", len(snapshot.quotas), time.process_time() - begin, steps)
    begin = time.process_time()
    for _ in range(REMARKS):
        brokers.remark()
    print(f"  {'a remark about them':40} {(time.process_time() - begin) / REMARKS * 1e6:10.2f} us")
    others = {QuotaEntity(client_id=f"app-{number}"): VALUES for number in range(len(snapshot.quotas))}
    brokers.quotas = {**snapshot.quotas, **others}
    return brokers


async def start(steps: Steps) -> float:
    """Collect garbage, begin a new step, and return the CPU time."""
    gc.collect()
    await trio.lowlevel.checkpoint()
    steps.longest_s = 0.0
    return time.process_time()


def decisions(hooks: HookCalls, entities: int) -> None:
    """Print the time of a decision on one connection, and of the first decisions on many connections."""
    one = client("user-3")
    each = min(decision_s(hooks, one, turn) for turn in range(ROUNDS))
    print(f"  {'a decision':40} {each * 1e6:10.2f} us")
    for _ in range(2):  # the first time their buckets are created
        clients = [client(f"user-{number * 7919 % entities}") for number in range(CONNECTIONS)]
        begin = time.process_time()
        for number, new in enumerate(clients):
            decide(hooks, request(new, number), ROUNDS * DECISIONS + number)
        each = (time.process_time() - begin) / CONNECTIONS
    print(f"  {'the first decision of a connection':40} {each * 1e6:10.2f} us")


def decision_s(hooks: HookCalls, one: Connection, turn: int) -> float:
    """Return the mean CPU time of a decision in one round."""
    numbers = range(turn * DECISIONS, (turn + 1) * DECISIONS)
    begin = time.process_time()
    for number in numbers:
        decide(hooks, request(one, number), number)
    return (time.process_time() - begin) / DECISIONS


def client(user: str) -> Connection:
    connection = Connection(connection_id=1, peer=Address(host="192.0.2.1", port=1))
    connection.user = user
    return connection


def request(connection: Connection, number: int) -> Request:
    found = Request(connection, ApiKey.PRODUCE.value, 9, number, "app", 1000, number / 1000)
    found.arrived = True
    found.response_bytes = 100
    return found


def report(what: str, entities: int, taken_s: float, steps: Steps) -> None:
    longest = steps.longest_s * 1000
    print(
        f"  {what:40} {taken_s * 1000:10.1f} ms, {taken_s / entities * 1e6:6.1f} us each, longest step {longest:.1f} ms"
    )


@click.command()
@click.option("--entities", default=100_000, show_default=True)
@click.option("--no-collection", is_flag=True, help="Disable garbage collection.")
def main(entities: int, no_collection: bool) -> None:
    """Measure quota definitions with few and with many entities."""
    if no_collection:
        gc.disable()
    for count in (FEW, entities):
        print(f"{count:,} entities:")
        trio.run(measure, count)


if __name__ == "__main__":
    main()
