"""Replay of a number of new producer ids at once."""

from __future__ import annotations

import time

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.records.replay import Change, Op, Replay, Usage
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS, Throttle


def replay() -> Replay:
    found = Replay(dict.fromkeys(QuotaKey, Window(samples=11, seconds=60)))
    values = {QuotaKey.PRODUCER_IDS_RATE: 3.0}
    found.alter(Change(t_ms=0, entity=QuotaEntity(user="alice"), values=values, removed=()))
    return found


def usage(amount: float) -> Usage:
    return Usage(t_ms=5, user="alice", client_id="c", op=Op.NEW_PRODUCER_IDS, amount=amount, strict=False)


def test_ids_at_once_are_charged_as_one_after_the_other() -> None:
    together, singly = replay(), replay()
    for count in (0, 2, 5, 1):
        verdict = together.charge(usage(count))
        one_by_one = [singly.charge(usage(1)) for _ in range(count)]
        assert verdict == (one_by_one[-1] if one_by_one else None)


def test_any_number_is_charged_at_once() -> None:
    began_s = time.thread_time()
    verdict = replay().charge(usage(9e18))
    assert isinstance(verdict, Throttle)
    assert verdict.throttle_ms == MAX_THROTTLE_MS
    assert time.thread_time() - began_s < 10
