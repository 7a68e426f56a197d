"""What a decision costs with all four quotas on, and what an entity costs that only exists.

``python -m benchmarks.decisions``. One decision is what the callbacks do for one Produce: its bytes when it comes, the
producer id of its batch, its thread time when its reply comes, and the look that finds it to be no mutation. Numbers
are CPU time of this process, the best of several rounds, with 10 to 1,000,000 entities that have a bucket of each kind.
"""

from __future__ import annotations

import argparse
import gc
import time

import psutil

from proxy.hook_calls import HookCalls
from proxy.plugin_loading import new_plugin_manager, register
from quota_callbacks.buckets import MutationBucket, ProducerIdBucket, RateBucket
from quota_callbacks.byte_rate import ByteRate
from quota_callbacks.client_quotas import ClientQuotas
from quota_callbacks.controller_mutation import ControllerMutation
from quota_callbacks.default_quotas import DefaultQuotaCallback
from quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from quota_callbacks.policies import Quota
from quota_callbacks.producer_ids import ProducerIds
from quota_callbacks.request_percentage import RequestPercentage
from quota_callbacks.requests import Address, Connection, Request
from quota_callbacks.sampled_rate import Window

PRODUCE = 0
ROUNDS = 7
DECISIONS = 20_000
EVERYBODY = QuotaEntity(user=DEFAULT)
HIGH = 1e12
"""No limit binds: a verdict is made for nobody, as for most requests of most clients."""


def quotas_for(entities: int) -> tuple[HookCalls, ClientQuotas]:
    """The built-in callbacks, with a quota of each kind and as many users as are asked for."""
    manager = new_plugin_manager()
    plugins = (DefaultQuotaCallback(), ByteRate(), RequestPercentage(), ControllerMutation(), ProducerIds())
    for plugin in plugins:
        register(manager, type(plugin).__name__, plugin)
    hooks = HookCalls(manager)
    quotas = ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()),
        metric_tags=hooks.quota_metric_tags,
        quota_limit=hooks.quota_limit,
        max_buckets=10 * entities + 100,
    )
    hooks.configure(quotas, {})
    hooks.flatten()
    for key in QuotaKey:
        hooks.update_quota(key, EVERYBODY, Quota(value=HIGH))
    quotas.quotas_changed()
    return hooks, quotas


def decide(hooks: HookCalls, request: Request, now_ms: int) -> None:
    """All that is asked about one Produce."""
    calls = hooks.wants_request(PRODUCE)
    hooks.request_received(calls, request, now_ms)
    if request.read_batches:
        hooks.batches_received(request, now_ms)
    hooks.response_received(hooks.wants_response(PRODUCE), request, now_ms)


def produce(connection: Connection, number: int) -> Request:
    request = Request(connection, PRODUCE, 9, number, "client", 65_536, 0.0)
    request.acks = 1
    request.batches = (("topic", 0, 65_000, 4711),)
    request.forwarded_s, request.reply_s = 0.0, 0.001
    request.response_bytes, request.response_header_bytes = 100, 8
    return request


def decision_us(hooks: HookCalls, user: str) -> float:
    """CPU microseconds of one decision, the making of the request not counted."""
    connection = Connection(connection_id=1, peer=Address(host="h", port=1), user=user)
    best = float("inf")
    for turn in range(ROUNDS):
        requests = [produce(connection, number) for number in range(DECISIONS)]
        begin_ns = time.process_time_ns()
        for number, request in enumerate(requests):
            decide(hooks, request, turn * DECISIONS + number // 5)
        best = min(best, (time.process_time_ns() - begin_ns) / DECISIONS / 1000)
    return best


def bucket_bytes(quotas: ClientQuotas, entities: int, key: QuotaKey) -> tuple[float, float]:
    """Resident bytes of a bucket of ``key``, its share of the table included: one that only exists, and one that was
    used once and is idle since."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    buckets = [quotas.bucket(key, f"user-{number:07}", "client") for number in range(entities)]
    gc.collect()
    made = psutil.Process().memory_info().rss
    for bucket in buckets:
        if isinstance(bucket, RateBucket):
            bucket.charge(1000.0, 12_345)
        elif isinstance(bucket, MutationBucket):
            bucket.admit(3, 12_345)
        elif isinstance(bucket, ProducerIdBucket):
            bucket.charge(4711, 12_345)
    del buckets
    gc.collect()
    used = psutil.Process().memory_info().rss
    return (made - before) / entities, (used - before) / entities


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="entities in the last row (default 1,000,000)")
    most = parser.parse_args().most
    sizes = [size for size in (10, 1_000, 100_000, 1_000_000) if size <= most]
    first: float | None = None
    print(f"{'entities':>10} {'µs a decision':>14} {'ratio':>6}   bytes a bucket: never used, idle after one use")
    for size in sizes:
        hooks, quotas = quotas_for(size)
        costs = []
        for key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONTROLLER_MUTATION_RATE, QuotaKey.PRODUCER_IDS_RATE):
            made, used = bucket_bytes(quotas, size, key)
            if size >= 100_000:
                costs.append(f"{key}: {made:.0f}, {used:.0f}")
        us = decision_us(hooks, f"user-{size // 2:07}")
        first = first or us
        print(f"{size:>10} {us:>14.2f} {us / first:>6.2f}   {', '.join(costs)}", flush=True)
        del hooks, quotas


if __name__ == "__main__":
    main()
