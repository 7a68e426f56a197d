"""Many quotas that were set while the proxy runs: putting them into force, describing them, and deciding by them.

    .venv/bin/python -m benchmarks.quota_definitions [--entities 100000]

Everything is measured with 10 entities and with the given number, each with a quota of its own for two keys; times are
CPU time of this process. *Longest step* is the longest time without a pause, in which no client is served.
"""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING

import click
import trio

from benchmarks.decisions import PRODUCE, decide, quotas_for
from headrace.proxy.quotas.client_quota_apis import ClientQuotaApis
from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.store import Snapshot
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.requests import Address, Connection, Request

if TYPE_CHECKING:
    from headrace.proxy.hooks.calls import HookCalls
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.policies import Quota

FEW = 10
VALUES = {"producer_byte_rate": 1e12, "request_percentage": 1e6}
DECISIONS = 20_000
CONNECTIONS = 2_000
VERSION = 1


class Steps(trio.abc.Instrument):
    """The longest time for which a task ran without a pause."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s = time.perf_counter()

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        """Note when the step begins."""
        self._began_s = time.perf_counter()

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        """Note how long the step took."""
        self.longest_s = max(self.longest_s, time.perf_counter() - self._began_s)


def definitions_for(hooks: HookCalls, quotas: ClientQuotas) -> QuotaDefinitions:
    def put_into_force(entity: QuotaEntity, key: str, quota: Quota | None) -> None:
        if quota is not None:
            hooks.update_quota(QuotaKey(key), entity, quota)

    return QuotaDefinitions(put_into_force, quotas.quotas_changed)


async def measure(entities: int) -> None:
    hooks, quotas = quotas_for(CONNECTIONS)
    definitions = definitions_for(hooks, quotas)
    snapshot = Snapshot(sequence=1, quotas={QuotaEntity(user=f"user-{number}"): VALUES for number in range(entities)})
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    begin = time.process_time()
    for _ in definitions.replace(snapshot):
        await trio.lowlevel.checkpoint()
    report("put into force", entities, time.process_time() - begin, steps)

    apis = ClientQuotaApis(BUILTIN_SCHEMA, definitions, None, lambda _connection, _operation: True)
    body = memoryview(encode("DescribeClientQuotasRequest", VERSION, {"components": [], "strict": False}))
    for is_traced in (False, True):
        steps.longest_s = 0.0
        if is_traced:
            tracemalloc.start()
        begin = time.process_time()
        reply = await apis.answer(client("anybody"), ApiKey.DESCRIBE_CLIENT_QUOTAS, VERSION, body, authenticated=False)
        if not is_traced:
            report("describe all of them", entities, time.process_time() - begin, steps)
        else:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            print(
                f"  {'memory of the description, at most':40} {peak / 1e6:10.1f} MB for {len(reply) / 1e6:.1f} MB sent"
            )
    trio.lowlevel.remove_instrument(steps)
    decisions(hooks, entities)


def decisions(hooks: HookCalls, entities: int) -> None:
    """Print the time of a decision on one connection, and of the first decisions on many connections."""
    one = client("user-3")
    begin = time.process_time()
    for number in range(DECISIONS):
        decide(hooks, request(one, number), number)
    each = (time.process_time() - begin) / DECISIONS
    print(f"  {'a decision':40} {each * 1e6:10.2f} us")
    for _ in range(2):  # the first time their buckets are created
        clients = [client(f"user-{number * 7919 % entities}") for number in range(CONNECTIONS)]
        begin = time.process_time()
        for number, new in enumerate(clients):
            decide(hooks, request(new, number), DECISIONS + number)
        each = (time.process_time() - begin) / CONNECTIONS
    print(f"  {'the first decision of a connection':40} {each * 1e6:10.2f} us")


def client(user: str) -> Connection:
    connection = Connection(connection_id=1, peer=Address(host="192.0.2.1", port=1))
    connection.user = user
    return connection


def request(connection: Connection, number: int) -> Request:
    found = Request(connection, PRODUCE, 9, number, "app", 1000, number / 1000)
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
def main(entities: int) -> None:
    """Measure quota definitions with few and with many entities."""
    for count in (FEW, entities):
        print(f"{count:,} entities:")
        trio.run(measure, count)


if __name__ == "__main__":
    main()
