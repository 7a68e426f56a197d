"""Measures the handler time of requests in a real broker, the source of
`headrace.quota_callbacks.builtin.request_costs.DEFAULT_COSTS`.

    .venv/bin/python -m benchmarks.request_costs [--samples 1000] [--one-by-one] [--only produce]

Starts a broker of Kafka 4.3.1 that is its own controller, with a JVM as in production (G1, both compilers), a request
quota that is never reached, and ``kafka.request.logger`` at DEBUG. One connection sends one request after the other.
With a quota, the log's localTimeMs is the handler time that Kafka's request quota charges
(``RequestChannel.Request.requestThreadTimeNanos``); without one it would include writing the reply. The controller's
time for a forwarded request is added. Prints the medians, the fitted lines (`benchmarks.request_cost_fit`), their
errors, and the table for the module.

The figures depend on the machine: all of them scale with its processor.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import click

from benchmarks import request_cost_admin, request_cost_data, request_cost_groups
from benchmarks.request_cost_client import CLIENT_ID, MeasuredClient, RefusedError, Work
from benchmarks.request_cost_fit import Point, fit, off_by, point
from benchmarks.request_cost_log import RequestLog
from headrace.proxy.wire.apis import APIS
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.builtin.request_costs import DEFAULT_COSTS, FALLBACK_COST, RequestCost
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.launch import THROUGHPUT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.proxy.wire.messages.codec import Message

CONFIG: dict[str, str | int | bool] = {
    "auto.create.topics.enable": False,
    # Required for the ACL requests. It checks super users first, so other requests are hardly affected.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "log.retention.check.interval.ms": 2000,
    # Empty groups are not removed before the end.
    "offsets.retention.check.interval.ms": 86_400_000,
}
REQUEST_LOG = "-Dorg.slf4j.simpleLogger.log.kafka.request.logger=debug"
HEAP_MB = 1024
# In percent; the limit that Kafka uses without a quota.
NEVER_HIT = 2.0**31 - 1
GROUP = 32  # ConfigResource.Type
SETTLE_TIMEOUT_S = 60.0
SETTLE_POLL_S = 0.1
# The minimum for a median; an API's share of the calls may be small.
LEAST_SAMPLES = 20

Times = dict[tuple[ApiKey, str], list[tuple[float, float]]]


def prepare(client: MeasuredClient) -> list[Work]:
    """Create topics, coordinators and the quota; return all workloads, which require them."""
    client.work = "preparation"
    client.ask(
        ApiKey.ALTER_CLIENT_QUOTAS, 1, request_cost_admin.quota_message(CLIENT_ID, "request_percentage", NEVER_HIT)
    )
    topics: list[Message] = [{"replication_factor": 1, **topic} for topic in request_cost_data.TOPICS]
    created = client.ask(ApiKey.CREATE_TOPICS, 7, {"timeout_ms": 30_000, "topics": topics})
    earliest = [{"name": "share.auto.offset.reset", "value": "earliest"}]
    group = {"resource_type": GROUP, "resource_name": request_cost_groups.SHARE_GROUP, "configs": earliest}
    client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [group]})
    works = everything({row["name"]: row["topic_id"] for row in created["topics"]}[request_cost_data.SHARED])
    # First the requests that create the internal topics, then those that require their leaders.
    for start in ("100 topics", "find ", "commit ", "transaction", "share "):
        for work in works:
            if work.name.startswith(start):
                until_settled(client, work)
    request_cost_data.fill_source(client)
    client.take_samples()
    return works


def until_settled(client: MeasuredClient, work: Work) -> None:
    """Call a workload until it succeeds: the first requests fail until leaders are elected and coordinators loaded."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        try:
            work.run(client, 0)
        except RefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(SETTLE_POLL_S)
        else:
            return


def everything(shared_topic_id: bytes) -> list[Work]:
    """Return all workloads."""
    return [*request_cost_data.works(), *request_cost_groups.works(shared_topic_id), *request_cost_admin.works()]


def measure(client: MeasuredClient, log: RequestLog, schedule: Iterable[Work], numbers: Iterator[int]) -> Times:
    """Call workloads and read the broker's log; return (KiB, ms) of each request by API and workload."""
    times: Times = defaultdict(list)
    for work in schedule:
        client.work = work.name
        work.run(client, next(numbers))
    samples = client.take_samples()
    handler_ms = log.handler_ms([sample.correlation_id for sample in samples])
    for sample in samples:
        times[sample.api_key, sample.work].append((sample.kib, handler_ms[sample.correlation_id]))
    return times


def schedule(works: Sequence[Work], calls: int, *, mixed: bool) -> list[Work]:
    """Return each workload repeated, one after the other or in a random order that is the same in every run."""
    calling = [work for work in works for _ in range(max(1, round(calls * work.share)))]
    if mixed:
        random.Random(calls).shuffle(calling)  # noqa: S311 - no secret
    return calling


def points_by_api(times: Iterable[Times]) -> dict[ApiKey, list[Point]]:
    """Return the medians over all rounds, by API."""
    joined: Times = defaultdict(list)
    for each in times:
        for key, values in each.items():
            joined[key] += values
    points: dict[ApiKey, list[Point]] = defaultdict(list)
    for (api_key, work), values in sorted(joined.items()):
        if len(values) >= LEAST_SAMPLES:
            points[api_key].append(point(work, [kib for kib, _ in values], [ms for _, ms in values]))
    return points


def report(points: Mapping[ApiKey, Sequence[Point]]) -> None:
    """Print every point with the error of its line, and the table."""
    costs = {api_key: fit(rows) for api_key, rows in points.items()}
    for api_key, rows in points.items():
        cost = costs[api_key]
        print(f"{APIS[api_key].name} ({api_key.value}): {cost.base_ms:.4f} ms + {cost.per_kib_ms:.6f} ms/KiB")
        for row in sorted(rows, key=lambda each: each.kib):
            spread = f"{row.lower_ms:8.4f} {row.ms:8.4f} {row.upper_ms:8.4f} ms"
            print(
                f"    {row.work:28} {row.kib:9.3f} KiB {spread} {row.samples:6} samples x {2 ** off_by(cost, row):.2f}"
            )
    offs = [2 ** abs(off_by(costs[api_key], row)) for api_key, rows in points.items() if len(rows) > 1 for row in rows]
    if offs:
        quartile, middle, upper = statistics.quantiles(offs, n=4)
        print(
            f"\nthe lines are off by a factor of {quartile:.2f}, {middle:.2f}, {upper:.2f} (quartiles of all points of"
        )
        print(f"APIs that have several), {max(offs):.2f} at the worst\n")
    for api_key, cost in costs.items():
        now = DEFAULT_COSTS.get(api_key, FALLBACK_COST)
        print(f"    {api_key.value}: {row_text(cost)},  # {APIS[api_key].name}; now {row_text(now)}")
    slopes = [cost.per_kib_ms for cost in costs.values() if cost.per_kib_ms]
    base_ms = statistics.median(cost.base_ms for cost in costs.values())
    fallback = RequestCost(base_ms=base_ms, per_kib_ms=statistics.median(slopes) if slopes else 0.0)
    print(f"\nfor the others: {row_text(fallback)}")


def row_text(cost: RequestCost) -> str:
    """Return a row of the table in `headrace.quota_callbacks.builtin.request_costs`, with the two significant digits
    that the measurement allows."""
    slope = f", per_kib_ms={cost.per_kib_ms:.2g}" if cost.per_kib_ms else ""
    return f"RequestCost(base_ms={cost.base_ms:.2g}{slope})"


@click.command()
@click.option("--samples", default=1000, show_default=True, help="Calls of each workload in all rounds together.")
@click.option("--warm-up", default=1000, show_default=True, help="Calls of each workload for the warm-up of the JVM.")
@click.option("--rounds", default=5, show_default=True, help="Number of rounds over which the calls are spread.")
@click.option("--only", default="", help="Only workloads whose name contains this text.")
@click.option("--mixed/--one-by-one", default=True, show_default=True, help="Whether requests of all kinds alternate.")
def main(samples: int, warm_up: int, rounds: int, only: str, mixed: bool) -> None:
    """Measure the handler time of Kafka's requests and fit the cost model to it."""
    options = (*THROUGHPUT_OPTIONS, REQUEST_LOG)
    numbers = itertools.count(1)
    with KafkaCluster(config=CONFIG, heap_mb=HEAP_MB, jvm_options=options, log_level="error") as cluster:
        broker = cluster.brokers[0]
        with MeasuredClient((broker.host, broker.port)) as client:
            works = [work for work in prepare(client) if only in work.name]
            log = RequestLog(broker.log_path, CLIENT_ID)
            # In order at first, since some workloads read what others have created.
            measure(client, log, works, numbers)
            measure(client, log, schedule(works, warm_up, mixed=mixed), numbers)
            once = schedule(works, samples // rounds, mixed=mixed)
            times = [measure(client, log, once, numbers) for _ in range(rounds)]
        report(points_by_api(times))


if __name__ == "__main__":
    main()
