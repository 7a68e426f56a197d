"""The cost of a quota decision with all four quotas enabled, and the memory of idle entities.

``python -m benchmarks.decisions``. A decision comprises all callbacks for one Produce: its bytes on arrival, the
producer id of its batch, its thread time on its reply, and the check that it is not a mutation. Figures are CPU time of
this process, the minimum of several rounds, with 10 to 1,000,000 entities that have a bucket of each kind.
"""

from __future__ import annotations

import argparse
import gc
import time

import psutil

from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.builtin.controller_mutation import ControllerMutation
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.builtin.producer_ids import ProducerIds
from headrace.quota_callbacks.builtin.request_percentage import RequestPercentage
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import Quota
from headrace.quota_callbacks.requests import Address, Connection, Request

ROUNDS = 7
DECISIONS = 20_000
EVERYBODY = QuotaEntity(user=DEFAULT)
HIGH = 1e12
"""A limit that is never reached: no request is throttled, like most requests in practice."""


def quotas_for(entities: int) -> tuple[HookCalls, ClientQuotas]:
    """Return the built-in callbacks, with a quota of each kind and the given number of users."""
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
    """Call all hooks for one Produce."""
    calls = hooks.request_callbacks(ApiKey.PRODUCE.value)
    hooks.request_received(calls, request, now_ms)
    if request.read_batches:
        hooks.batches_received(request, now_ms)
    hooks.response_received(hooks.response_callbacks(ApiKey.PRODUCE.value), request, now_ms)


def produce(connection: Connection, number: int) -> Request:
    request = Request(connection, ApiKey.PRODUCE.value, 9, number, "client", 65_536, 0.0)
    request.acks = 1
    request.batches = (("topic", 0, 65_000, 4711),)
    request.forwarded_s, request.reply_s = 0.0, 0.001
    request.response_bytes, request.response_header_bytes = 100, 8
    return request


def decision_us(hooks: HookCalls, user: str) -> float:
    """Return the CPU microseconds of one decision, without creating the request."""
    return min(round_us(hooks, user, turn) for turn in range(ROUNDS))


def round_us(hooks: HookCalls, user: str, turn: int) -> float:
    """Return the CPU microseconds per decision of one round."""
    connection = Connection(connection_id=1, peer=Address(host="h", port=1), user=user)
    requests = [produce(connection, number) for number in range(DECISIONS)]
    begin_ns = time.process_time_ns()
    for number, request in enumerate(requests):
        decide(hooks, request, turn * DECISIONS + number // 5)
    return (time.process_time_ns() - begin_ns) / len(requests) / 1000


def bucket_bytes(quotas: ClientQuotas, entities: int, key: QuotaKey) -> tuple[float, float]:
    """Return the resident bytes of a bucket of ``key`` with its share of the table, never used and after one use."""
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
    print(f"{'entities':>10} {'µs/decision':>14} {'ratio':>6}   bytes/bucket: never used, idle after one use")
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
