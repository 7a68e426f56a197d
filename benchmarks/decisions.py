"""The cost of a quota decision with all four quotas enabled, the memory of idle entities, and the cost of workers.

``python -m benchmarks.decisions``. A decision comprises all callbacks for one Produce: its bytes on arrival, the
producer id of its batch, its thread time on its reply, and the check that it is not a mutation. Figures are CPU time of
this process, the minimum of several rounds, with 10 to 1,000,000 entities that have a bucket of each kind.

Then decisions with 2 and 4 workers that share their buckets (`headrace.quota_callbacks.buckets.shared.buckets`), as
ratios to one worker that shares nothing. The workers run in turn in this process: first one decides while the others
are idle, then all decide on the same buckets, so that each decision has to merge the updates of all others. With paced
enforcement, the decision is about bytes only.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import mmap
import time
from typing import TYPE_CHECKING

import psutil

from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.buckets.shared.buckets import SharedBuckets
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.builtin.controller_mutation import ControllerMutation
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.builtin.producer_ids import ProducerIds
from headrace.quota_callbacks.builtin.request_percentage import RequestPercentage
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import KAFKA_POLICY, EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.requests import Address, Connection, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

PRODUCE = 0
ROUNDS = 7
DECISIONS = 20_000
SHORT_ROUNDS = 60
EVERYBODY = QuotaEntity(user=DEFAULT)
HIGH = 1e12
"""A limit that is never reached: no request is throttled, like most requests in practice."""


def quotas_for(
    entities: int,
    shared: SharedBuckets | None = None,
    policy: QuotaPolicy = KAFKA_POLICY,
    keys: Sequence[QuotaKey] = tuple(QuotaKey),
) -> tuple[HookCalls, ClientQuotas]:
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
        shared=shared,
    )
    hooks.configure(quotas, {})
    hooks.flatten()
    for key in keys:
        hooks.update_quota(key, EVERYBODY, Quota(value=HIGH, policy=policy))
    quotas.quotas_changed()
    return hooks, quotas


def decide(hooks: HookCalls, request: Request, now_ms: int) -> None:
    """Call all hooks for one Produce."""
    calls = hooks.request_callbacks(PRODUCE)
    hooks.request_received(calls, request, now_ms)
    if request.read_batches:
        hooks.batches_received(request, now_ms)
    hooks.response_received(hooks.response_callbacks(PRODUCE), request, now_ms)


def produce(connection: Connection, number: int) -> Request:
    request = Request(connection, PRODUCE, 9, number, "client", 65_536, 0.0)
    request.acks = 1
    request.batches = (("topic", 0, 65_000, 4711),)
    request.forwarded_s, request.reply_s = 0.0, 0.001
    request.response_bytes, request.response_header_bytes = 100, 8
    return request


def decision_us(hooks: HookCalls, user: str) -> float:
    """Return the CPU microseconds of one decision, without creating the request."""
    return min(round_us([hooks], user, turn, DECISIONS) for turn in range(ROUNDS))


def round_us(workers: Sequence[HookCalls], user: str, turn: int, decisions: int) -> float:
    """Return the CPU microseconds per decision of one round, in which ``workers`` decide in turn."""
    connections = [Connection(connection_id=1, peer=Address(host="h", port=1), user=user) for _ in workers]
    requests = [
        (hooks, produce(connection, number))
        for number in range(decisions // len(workers))
        for hooks, connection in zip(workers, connections, strict=True)
    ]
    begin_ns = time.process_time_ns()
    for number, (hooks, request) in enumerate(requests):
        decide(hooks, request, turn * decisions + number // 5)
    return (time.process_time_ns() - begin_ns) / len(requests) / 1000


def sharing(count: int, policy: QuotaPolicy, keys: Sequence[QuotaKey]) -> list[HookCalls]:
    """Return ``count`` workers that share their buckets."""
    memory = memoryview(mmap.mmap(-1, SharedBuckets.size_of(count, 64)))
    SharedBuckets.create(memory, workers=count, rows=64)
    views = [SharedBuckets(memory, worker=worker, lock=contextlib.nullcontext()) for worker in range(count)]
    return [quotas_for(10, view, policy, keys)[0] for view in views]


def print_sharing() -> None:
    """Print the cost of shared buckets; short rounds of all kinds alternate, so that other load affects all equally."""
    print(f"\n{'':>16} {'workers':>8} {'others idle: µs, ratio':>24} {'all in turn: µs, ratio':>24}")
    paced = QuotaPolicy(mode=EnforcementMode.PACED)
    for name, policy, keys in (
        ("all four quotas", KAFKA_POLICY, tuple(QuotaKey)),
        ("bytes, paced", paced, (QuotaKey.PRODUCER_BYTE_RATE,)),
    ):
        alone = [quotas_for(10, None, policy, keys)[0]]
        kinds = {(1, "idle"): alone, (1, "busy"): alone}
        for count in (2, 4):
            kinds[count, "idle"] = sharing(count, policy, keys)[:1]
            kinds[count, "busy"] = sharing(count, policy, keys)
        best = dict.fromkeys(kinds, float("inf"))
        for turn in range(SHORT_ROUNDS):
            for kind, workers in kinds.items():
                best[kind] = min(best[kind], round_us(workers, kind[1], turn, DECISIONS // 10))
        for count in (1, 2, 4):
            costs = [best[count, "idle"], best[count, "busy"]]
            print(
                f"{name:>16} {count:>8}" + "".join(f"{us:>18.2f} {us / best[1, 'idle']:>6.2f}" for us in costs),
                flush=True,
            )


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
    print_sharing()


if __name__ == "__main__":
    main()
