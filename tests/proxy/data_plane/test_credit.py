"""Property: charging within a credit, and recording it later, has the verdicts and the state of charging each time."""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.proxy.data_plane.meters import MeterTable
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import ProducerIdBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.builtin.producer_ids import ProducerIds
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.policies import EnforcementMode, Limit, QuotaPolicy
from headrace.quota_callbacks.requests import PERCENT_PER_NS, Address, Connection, Request
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS
from tests.proxy.data_plane.wire import needs_engine, new_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.quota_callbacks.verdicts import Throttle

BYTES, TIME = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE
IDS = QuotaKey.PRODUCER_IDS_RATE
CONNECTIONS = 3
PEER = Address(host="h", port=1)


class Meter:
    """What `engine/src/meters.rs` does."""

    def __init__(self) -> None:
        self.credit = 0
        self.is_withdrawn = False
        self.charges: list[tuple[int, int]] = []

    def charge(self, now_ms: int, amount: int) -> bool | None:
        """Return whether ``amount`` was charged; ``None`` to ask again."""
        if self.is_withdrawn:
            return None
        if self.credit < amount:
            return False
        self.credit -= amount
        if self.charges and self.charges[-1][0] == now_ms:
            self.charges[-1] = (now_ms, self.charges[-1][1] + amount)
        else:
            self.charges.append((now_ms, amount))
        return True


class Engine:
    """The meters of `headrace._engine.Engine`."""

    def __init__(self) -> None:
        self.meters: list[Meter] = []
        self.meanwhile: list[Callable[[], None]] = []
        """Called once, when charges were taken and are not recorded yet."""

    def create_meter(self) -> int:
        self.meters.append(Meter())
        return len(self.meters) - 1

    def remove_meter(self, _number: int) -> None:
        """Keep it, as a connection would."""

    def charged(self) -> list[int]:
        return [number for number, meter in enumerate(self.meters) if meter.charges]

    def take_charges(self, number: int) -> list[tuple[int, int]]:
        meter = self.meters[number]
        charges, meter.charges = sorted(meter.charges, key=lambda charge: charge[0]), []
        while self.meanwhile:
            self.meanwhile.pop()()
        return charges

    def withdraw(self, number: int) -> list[tuple[int, int]]:
        self.meters[number].is_withdrawn = True
        return self.take_charges(number)

    def grant(self, number: int, credit: int) -> None:
        meter = self.meters[number]
        meter.credit, meter.is_withdrawn = credit - sum(amount for _, amount in meter.charges), False


class Side:
    """A bucket with its quotas, which may change, and some connections."""

    def __init__(self, key: QuotaKey, window: Window) -> None:
        self.key = key
        self.limit: float | None = None
        self.quotas = ClientQuotas(windows={key: window}, metric_tags=self._tags, quota_limit=self._limit)
        self.callback: Any = ProducerIds() if key is IDS else ByteRate()
        self.callback.configure(PluginContext(options={}, quotas=self.quotas))
        self._connections = [Connection(connection_id=number, peer=PEER) for number in range(CONNECTIONS)]

    def _tags(self, key: str, user: str, client_id: str) -> Mapping[str, str] | None:
        return {"user": user, "client-id": client_id} if key == self.key else None

    def _limit(self, _key: str, _tags: Mapping[str, str]) -> float | None:
        return self.limit

    def change(self, limit: float | None) -> None:
        self.limit = limit
        self.quotas.quotas_changed()

    def connect(self, number: int) -> None:
        """Replace a connection by a new one."""
        self._connections[number] = Connection(connection_id=number, peer=PEER)

    def request(self, number: int, size: int, now_ms: int) -> Request:
        return Request(self._connections[number], ApiKey.PRODUCE, 9, 1, "c", size, now_ms / 1000)

    def bucket(self, number: int = 0) -> RateBucket:
        """Return the bucket as a callback gets it, with its limit of now."""
        found = self.quotas.bucket_for(self.request(number, 1, 0), self.key, RateBucket)
        assert found is not None
        return found

    def ask(self, number: int, amount: int, now_ms: int) -> Throttle | None:
        """Return the verdict on a request. One that waits is not charged, and abandoned."""
        if self.key is TIME:
            bucket = self.bucket(number)
            charge = bucket.charge_forwarded if bucket.paced else bucket.charge
            return charge(amount * PERCENT_PER_NS, now_ms)
        request = self.request(number, amount, now_ms)
        verdict: Throttle | None = self.callback.request_received(request, now_ms)
        if verdict is not None and verdict.ask_again:
            self.callback.request_abandoned(request, now_ms)
        return verdict


def limit(value: float, mode: EnforcementMode, observe: bool, burst_s: float | None, longest_ms: int) -> Limit:
    policy = QuotaPolicy(mode=mode, observe=observe, burst_s=burst_s, longest_throttle_ms=longest_ms)
    return Limit(value, entity="c", policy=policy)


others = (st.booleans(), st.sampled_from([None, 0.0, 0.5, 2.0]), st.sampled_from([MAX_THROTTLE_MS, 5000]))
limits = st.one_of(
    st.none(),
    st.builds(limit, st.sampled_from([1.0, 7.5, 100.0, 1000.0]), st.just(EnforcementMode.KAFKA), *others),
    # A debt decreases in a millisecond by a number that sums are exact with.
    st.builds(limit, st.sampled_from([125.0, 1000.0, 4000.0]), st.just(EnforcementMode.PACED), *others),
)
amounts = st.one_of(st.integers(1, 2000), st.sampled_from(["credit", "credit"]))
"""A number, or all that is left of the credit."""
events = st.lists(
    st.tuples(
        st.sampled_from(["native"] * 8 + ["python", "python", "collect", "change", "leave", "connect"]),
        st.sampled_from([0, 0, 0, 0, 0, 1, 7, 400, 999, 1000, 1001, 5000, 30000]),
        amounts,
        limits,
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=60,
)
windows = st.builds(Window, samples=st.sampled_from([1, 2, 3, 11]), seconds=st.sampled_from([1, 2]))


def play(key: QuotaKey, window: Window, first: float | None, script: list[Any], scale: int) -> int:
    """Play a script with a bucket that is charged natively and one that is charged each time; return how many charges
    were within a credit."""
    native, direct = Side(key, window), Side(key, window)
    now_ms, charged = 10**6, 0
    engine: Any = Engine()
    meters = MeterTable(engine, lambda: now_ms)
    native.quotas.on_change = meters.suspend
    for side in (native, direct):
        side.change(first)
        for number in range(CONNECTIONS):  # a connection was read by the control plane before
            side.bucket(number)
    meter = meters.take(native.bucket())
    meters.resume()
    for at, (event, wait_ms, size, changed, stale_ms) in enumerate(script):
        now_ms += wait_ms
        number = at % CONNECTIONS
        credit = engine.meters[meter.number].credit
        amount = min(max(credit, 1), 10**6 * scale) if size == "credit" else size * scale
        # The control plane may have read the clock before the last charge of a thread.
        at_ms = now_ms - (0 if direct.bucket().paced else stale_ms)
        if event == "connect":  # whose first request is read by the control plane
            for side in (native, direct):
                side.connect(number)
        if event == "native":
            answer = engine.meters[meter.number].charge(now_ms, amount)
            assert answer is not None, "withdrawn between two events"
            verdict = None if answer else native.ask(number, amount, now_ms)
            assert_same(verdict, direct.ask(number, amount, now_ms), key)
            if answer:
                charged += 1
                continue
        elif event in {"python", "connect"}:
            assert_same(native.ask(number, amount, at_ms), direct.ask(number, amount, at_ms), key)
        elif event == "collect":
            charge = partial(charge_meanwhile, engine.meters[meter.number], direct, number, amount, now_ms)
            engine.meanwhile.append(charge)
            meters.collect()
            engine.meanwhile.clear()
            continue  # reading the state would withdraw the credit
        elif event == "change":
            for side in (native, direct):
                side.change(changed)
                side.bucket()
            meters.resume()
        else:
            meters.give_back(meter)
            meter = meters.take(native.bucket())
        assert_same_state(native.bucket(), direct.bucket(), now_ms, key)
        meters.grant()
    assert_same_state(native.bucket(), direct.bucket(), now_ms, key)
    meters.give_back(meter)
    assert native.bucket().meter is None
    return charged


def charge_meanwhile(meter: Meter, direct: Side, number: int, amount: int, now_ms: int) -> None:
    """Charge what a thread charges while earlier charges are recorded."""
    if meter.charge(now_ms, amount):
        assert direct.ask(number, amount, now_ms) is None


def assert_same(one: Throttle | None, other: Throttle | None, key: QuotaKey) -> None:
    if key is not TIME or one is None or other is None:
        assert one == other
    else:  # sums of percentages are rounded in another order
        assert one.throttle_ms == pytest.approx(other.throttle_ms, abs=1)
        assert one.observe == other.observe


def assert_same_state(one: RateBucket, other: RateBucket, now_ms: int, key: QuotaKey) -> None:
    assert (one.limit, one.policy, one.last_used_ms) == (other.limit, other.policy, other.last_used_ms)
    assert one.was_throttled(now_ms) == other.was_throttled(now_ms)
    if key is not TIME:
        assert one.gate_ms == other.gate_ms
        assert one.observed(now_ms) == other.observed(now_ms)
        states = [bucket.state(now_ms) for bucket in (one, other)]
        for state in states:  # a credit is computed at its own time
            debt, age_ms, limit = state.pop("timeline", (0.0, 0, 0.0))
            state["debt"] = max(0.0, debt - limit * age_ms / 1000)
        assert states[0] == states[1]
        assert repr(list(one.measures(now_ms))) == repr(list(other.measures(now_ms)))
        return
    near = 1e-9
    assert one.gate_ms == pytest.approx(other.gate_ms, abs=1)
    assert one.observed(now_ms) == pytest.approx(other.observed(now_ms), rel=near, abs=near)
    rates = [bucket.state(now_ms)["rate"] or [] for bucket in (one, other)]
    assert [sample[:2] for sample in rates[0]] == [sample[:2] for sample in rates[1]]
    for sample, expected in zip(*rates, strict=True):
        assert sample[2] == pytest.approx(expected[2], rel=near, abs=near)


@settings(deadline=None)
@given(windows, limits, events)
def test_bytes_are_charged_as_each_time(window: Window, first: float | None, script: list[Any]) -> None:
    play(BYTES, window, first, script, 1)


@settings(deadline=None)
@given(windows, limits, events)
def test_request_time_is_charged_as_each_time(window: Window, first: float | None, script: list[Any]) -> None:
    play(TIME, window, first, script, 333_333)


class SeenIds:
    """What `headrace._engine.SeenIds` does."""

    def __init__(self) -> None:
        self._until_ms: dict[int, int] = {}
        self.is_closed = False

    def add(self, producer_id: int, until_ms: int) -> None:
        self._until_ms[producer_id] = until_ms

    def close(self) -> None:
        self.is_closed = True

    def new(self, ids: list[int], now_ms: int) -> list[int]:
        return [each for each in ids if each >= 0 and now_ms >= self._until_ms.get(each, -1)]


id_events = st.lists(
    st.tuples(
        st.integers(0, CONNECTIONS - 1),
        st.sampled_from([0, 1, 7, 499, 500, 501, 1000, 5000, 60_000]),
        st.lists(st.integers(-1, 20), min_size=1, max_size=8),
        st.sampled_from(["produce"] * 8 + ["connect", "change"]),
        st.one_of(
            st.none(),
            st.builds(limit, st.sampled_from([1.0, 4.0, 100.0]), st.sampled_from(EnforcementMode), *others),
        ),
    ),
    min_size=1,
    max_size=60,
)


@settings(deadline=None)
@given(windows, id_events)
def test_producer_ids_are_charged_as_each_time(window: Window, script: list[Any]) -> None:
    play_ids(window, script)


def play_ids(window: Window, script: list[Any]) -> int:
    """Play a script with connections that are relayed natively, and with some that are not; return how many requests
    the control plane did not see."""
    native, direct = Side(IDS, window), Side(IDS, window)
    relayed: dict[int, SeenIds] = {}
    """What the connections know that are relayed natively."""
    now_ms, unasked = 10**6, 0
    for side in (native, direct):
        side.change(limit(4.0, EnforcementMode.KAFKA, False, None, MAX_THROTTLE_MS))
    for number, wait_ms, ids, event, changed in script:
        now_ms += wait_ms
        if event == "change":  # all connections return
            relayed.clear()
            for side in (native, direct):
                side.change(changed)
        elif event == "connect":
            relayed.pop(number, None)
            for side in (native, direct):
                side.connect(number)
        expected = produce(direct, number, ids, now_ms)
        seen = relayed.get(number)
        if seen is None or seen.is_closed:
            relayed.pop(number, None)
            assert produce(native, number, ids, now_ms) == expected
            relay(native, number, now_ms, relayed)
        elif new := seen.new(ids, now_ms):
            del relayed[number]
            request = native.request(number, 1, now_ms)
            request.batches = [("", 0, 0, each) for each in new]
            assert [None, native.callback.batches_received(request, now_ms)] == expected
        else:
            unasked += 1
            assert expected == [None, None]
        one, other = (ids_of(side, number, now_ms) for side in (native, direct))
        assert one == other
    return unasked


def produce(side: Side, number: int, ids: list[int], now_ms: int) -> list[Throttle | None]:
    """Return the verdicts on a Produce request, which is not charged if it waits."""
    request = side.request(number, 1, now_ms)
    verdict = side.callback.request_received(request, now_ms)
    if verdict is not None and verdict.throttle_ms:
        side.callback.request_abandoned(request, now_ms)
        return [verdict]
    request.batches = [("", 0, 0, each) for each in ids]
    return [None, side.callback.batches_received(request, now_ms)]


def relay(side: Side, number: int, now_ms: int, relayed: dict[int, SeenIds]) -> None:
    """Give a connection to the data plane, as `NativeDataPlane.seen_ids`."""
    terms = side.callback.relay_terms(side.request(number, 1, now_ms), now_ms)
    if terms is None or terms.producer_ids is None:
        return
    bucket = terms.producer_ids
    if bucket.seen is None:
        bucket.seen = SeenIds()
        for each, until_ms in bucket.seen_until_ms.items():
            bucket.seen.add(each, until_ms)
    assert isinstance(bucket.seen, SeenIds)
    relayed[number] = bucket.seen


def ids_of(side: Side, number: int, now_ms: int) -> Any:
    bucket = side.quotas.bucket_for(side.request(number, 1, now_ms), IDS, ProducerIdBucket)
    assert bucket is not None
    tokens = bucket.tokens(now_ms)  # which takes them to this time
    return tokens, bucket.new_ids, bucket.gate_ms, bucket.state(now_ms), repr(list(bucket.measures(now_ms)))


def test_an_id_that_was_charged_is_not_asked_about() -> None:
    script = [(0, 1, [3], "produce", None)] * 10
    assert play_ids(Window(), script) == 9


def test_a_long_wait_applies_to_ids_that_were_seen() -> None:
    """A connection is held, whatever it sends, if its entity has to wait for longer than the window."""
    begin = [(0, 0, [1], "produce", None), (1, 0, [1], "produce", None), (0, 0, [1], "produce", None)]
    flood = [(2, 0, [each], "produce", None) for each in range(2, 40)]
    assert play_ids(Window(samples=2), begin + flood + [(0, 0, [1], "produce", None)]) == 1


def test_a_credit_that_lasts() -> None:
    side = Side(BYTES, Window())
    side.change(1000.0)
    bucket = side.bucket()
    assert bucket.has_lasting_credit(0)
    for second in range(11):
        bucket.charge(900, second * 1000)
    assert bucket.credit(10_500) == 100.0
    assert not bucket.has_lasting_credit(10_500)
    side.change(2000.0)
    assert side.bucket().has_lasting_credit(10_500)


def test_most_charges_are_within_the_credit() -> None:
    script = [("native", 1, 100, None, 0)] * 101
    assert play(BYTES, Window(), 1000.0, script, 1) == 100
    assert play(TIME, Window(), 100.0, script, 10**6) == 99, "the next one is what is kept for rounding"
    assert play(BYTES, Window(), None, script, 10**9) == 101


def test_a_limit_that_is_lowered_does_not_apply_to_earlier_charges() -> None:
    script = [("native", 1, 900, None, 0)] * 11 + [("change", 0, 1, 1.0, 0), ("python", 1, 1, None, 0)]
    assert play(BYTES, Window(), 1000.0, script, 1) == 11


def test_the_credit_of_an_unused_bucket() -> None:
    bucket = RateBucket(BYTES, (), Window())
    bucket.limit = 10.0
    assert bucket.credit(0) == 100.0
    bucket.limit = None
    assert bucket.credit(0) == math.inf


def test_a_bucket_with_a_meter_is_not_dropped() -> None:
    side = Side(BYTES, Window())
    engine: Any = Engine()
    meters = MeterTable(engine, lambda: 0)
    bucket = side.bucket()
    meter = meters.take(bucket)
    bucket.last_used_ms = 0
    assert side.quotas.expire(10**9) == 0
    meters.give_back(meter)
    assert side.quotas.expire(10**9) == 1
    assert bucket.dropped


@needs_engine
@pytest.mark.parametrize("value", [2.0**63 - 1, 1e12, sys.float_info.max])
@pytest.mark.parametrize("key", [BYTES, TIME])
def test_a_credit_that_is_larger_than_the_data_plane_can_count(key: QuotaKey, value: float) -> None:
    """Kafka allows these limits, and operators use the largest one for "no limit"."""
    engine = new_engine()
    try:
        side = Side(key, Window())
        side.change(limit(value, EnforcementMode.KAFKA, False, None, MAX_THROTTLE_MS))
        meters = MeterTable(engine, lambda: 10**6)
        bucket = side.bucket()
        meter = meters.take(bucket)
        side.bucket()  # a request that the control plane reads
        meters.grant()
        meters.give_back(meter)
        assert bucket.meter is None
    finally:
        engine.stop()
