"""New connections of an entity that has to wait: who waits, for how long, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.buckets.waiting import CHARGED_WITHIN_MS, SPACING_MS, Wait
from headrace.quota_callbacks.builtin.byte_rate import PRODUCE, ByteRate
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.policies import KAFKA_POLICY, NewConnections, QuotaPolicy
from headrace.quota_callbacks.requests import Request
from headrace.quota_callbacks.testing import make_connection
from tests.quota_callbacks.our_quotas import OurQuotas

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.quota_bucket import QuotaBucket
    from headrace.quota_callbacks.requests import Connection
    from headrace.quota_callbacks.verdicts import Throttle

KEY: Final = QuotaKey.PRODUCER_BYTE_RATE
LIMIT: Final = 1000
LARGE: Final = 15_000
"""Throttled for 5 s: 15 s at the limit, less a window of 10 s."""


class Proxy:
    """The byte-rate callback, with a quota of user u."""

    def __init__(self, policy: QuotaPolicy = KAFKA_POLICY) -> None:
        self.ours = OurQuotas()
        self.ours.set(KEY, "u", None, LIMIT, policy)
        self.callback = ByteRate()
        self.callback.configure(PluginContext(options={}, quotas=self.ours.quotas))

    def produce(
        self, now_ms: int, size: int = LARGE, connection: Connection | None = None
    ) -> tuple[Request, Throttle | None]:
        """Receive a Produce, on a new connection unless one is given; return it and the verdict."""
        request = Request(connection or make_connection(user="u"), PRODUCE, 7, 1, "c", size, now_ms / 1000)
        return request, self.callback.request_received(request, now_ms)

    def ask_again(self, request: Request, now_ms: int) -> Throttle | None:
        return self.callback.request_received(request, now_ms)

    @property
    def bucket(self) -> QuotaBucket:
        found = self.ours.quotas.bucket(KEY, "u", "c")
        assert found is not None
        return found


def held_ms(verdict: Throttle | None) -> int:
    """For how long a request is held; 0 if it was charged."""
    if verdict is None or not verdict.hold:
        return 0
    assert verdict.ask_again
    assert verdict.reason is not None
    assert (verdict.reason.quota, verdict.reason.entity) == (KEY.value, "user=u")
    return verdict.throttle_ms


def test_a_new_connection_waits_and_is_charged_afterwards() -> None:
    proxy = Proxy()
    first, verdict = proxy.produce(0)
    assert verdict is not None
    assert (verdict.throttle_ms, verdict.hold) == (5000, False)
    _, verdict = proxy.produce(999, 0, first.connection)
    assert held_ms(verdict) == 0, "it came in the millisecond in which the throttle was imposed"
    request, verdict = proxy.produce(1000, 2000)
    assert held_ms(verdict) == 4000
    assert proxy.bucket.observed(1000) == LARGE / 10, "nothing is charged yet"
    verdict = proxy.ask_again(request, 5000)
    assert verdict is not None
    assert (verdict.throttle_ms, verdict.hold) == (7000, False), "17 s at the limit in 10 s"
    _, verdict = proxy.produce(5001, 100, first.connection)
    assert held_ms(verdict) == 0, "connections that were used before are treated as Kafka does"


def test_who_waited_once_is_treated_as_kafka_does() -> None:
    proxy = Proxy()
    proxy.produce(0)
    request, verdict = proxy.produce(1, 3000)
    proxy.ask_again(request, 5000)
    _, verdict = proxy.produce(5001, 100, request.connection)
    assert verdict is not None
    assert not verdict.hold


def test_all_wait_if_the_entity_overdraws_more_than_kafka_remembers() -> None:
    proxy = Proxy()
    used, _ = proxy.produce(0, 100)
    proxy.produce(1, 30_000)
    _, verdict = proxy.produce(2, 100, used.connection)
    assert held_ms(verdict) == 20_098
    _, verdict = proxy.produce(20_101 - 11_000, 100, make_connection(user="u"))
    assert held_ms(verdict) > 0, "a new one waits to the end"


def test_one_after_the_other_in_the_order_of_their_requests() -> None:
    proxy = Proxy()
    proxy.produce(0)
    waiting = [proxy.produce(10 + number, 1000) for number in range(5)]
    times = [held_ms(verdict) + 10 + number for number, (_, verdict) in enumerate(waiting)]
    assert times == [5000 + number * SPACING_MS for number in range(5)]
    now_ms, admitted = 5000, []
    while len(admitted) < 5:
        for number, (request, _) in enumerate(waiting):
            if number not in admitted and held_ms(proxy.ask_again(request, now_ms)) == 0:
                admitted.append(number)
                begun_ms = now_ms
        now_ms += 1
        assert now_ms < 60_000
    assert admitted == [0, 1, 2, 3, 4]
    assert begun_ms >= 5000 + 4 * 900, "each waited for the throttle of its predecessor"


def test_who_has_many_requests_wait_delays_another_by_one_turn() -> None:
    """A quota of a client id, or of a team, has several users. None of the requests that are admitted is charged."""
    wait, alice, bob = Wait(), make_connection(user="alice"), make_connection(user="bob")
    requests = [Request(connection, PRODUCE, 7, 1, "c", 1, 0.0) for connection in (*[alice] * 50, bob)]
    wait.extend(0, 1000, 0)
    admitted: dict[Request, int] = {}
    for now_ms in range(0, 60_000, SPACING_MS):
        for request in requests:
            if request not in admitted and wait.hold_ms(request, 0, now_ms) == 0:
                admitted[request] = now_ms
    assert list(admitted)[:3] == [requests[0], requests[-1], requests[1]]
    assert admitted[requests[-1]] <= 1000 + CHARGED_WITHIN_MS + SPACING_MS
    assert len(admitted) == len(requests)
    assert wait.is_over(60_000)


def test_what_is_given_back_shortens_the_wait_and_leaves_the_queue_as_it_is() -> None:
    proxy = Proxy()
    charged, _ = proxy.produce(0)
    first, second = (proxy.produce(number, 100)[0] for number in (1, 2))
    proxy.bucket.take_back(LARGE, 0, 3)
    assert held_ms(proxy.ask_again(second, 4)) > 0, "the other one came before"
    assert held_ms(proxy.ask_again(first, 5)) == 0
    _, verdict = proxy.produce(6, 100, charged.connection)
    assert held_ms(verdict) == 0


def test_who_hangs_up_gives_its_place_up() -> None:
    proxy = Proxy()
    proxy.produce(0)
    dead, _ = proxy.produce(1)
    alive, _ = proxy.produce(2)
    proxy.callback.request_abandoned(dead, 3)
    assert proxy.bucket.observed(3) == pytest.approx(LARGE / 10, rel=0.01), "what was not charged is not given back"
    assert held_ms(proxy.ask_again(alive, 5000)) == 0
    proxy.callback.request_abandoned(alive, 5001)


def test_who_does_not_ask_in_time_is_passed_over() -> None:
    proxy = Proxy()
    proxy.produce(0)
    stuck, _ = proxy.produce(1, 100)
    alive, _ = proxy.produce(2, 100)
    assert held_ms(proxy.ask_again(alive, 5000)) > 0
    assert held_ms(proxy.ask_again(alive, 5001 + CHARGED_WITHIN_MS)) == 0
    assert held_ms(proxy.ask_again(stuck, 5002 + CHARGED_WITHIN_MS)) == 5098, "it is the next"
    assert held_ms(proxy.ask_again(stuck, 10_100 + CHARGED_WITHIN_MS)) == 0


def test_others_that_go_on_do_not_keep_a_new_one_waiting_for_ever() -> None:
    proxy = Proxy()
    busy, _ = proxy.produce(0, 100)
    proxy.produce(1, LARGE - 100)
    request, verdict = proxy.produce(2, 100)
    assert held_ms(verdict) == 4998
    _, verdict = proxy.produce(4000, 1000, busy.connection)
    assert verdict is not None
    assert verdict.throttle_ms == 6000
    assert held_ms(proxy.ask_again(request, 5000)) == 0, "others have been charged meanwhile"


@pytest.mark.parametrize(
    "policy", [QuotaPolicy(observe=True), QuotaPolicy(new_connections=NewConnections.KAFKA)], ids=["observe", "kafka"]
)
def test_policies_that_do_not_make_them_wait(policy: QuotaPolicy) -> None:
    proxy = Proxy(policy=policy)
    proxy.produce(0)
    assert held_ms(proxy.produce(1)[1]) == 0


def test_a_changed_quota_and_the_switch_end_the_wait() -> None:
    proxy = Proxy()
    proxy.produce(0)
    waiting, verdict = proxy.produce(1, 100)
    assert held_ms(verdict) > 0
    proxy.ours.set(KEY, "u", None, LIMIT * 10)
    assert held_ms(proxy.ask_again(waiting, 2)) == 0
    proxy = Proxy()
    proxy.produce(0)
    proxy.ours.quotas.end_waits()
    assert held_ms(proxy.produce(1, 100)[1]) == 0


def test_a_longest_throttle_bounds_the_wait() -> None:
    proxy = Proxy(policy=QuotaPolicy(longest_throttle_ms=700))
    proxy.produce(0)
    assert held_ms(proxy.produce(100)[1]) == 600


def test_a_restart_keeps_the_wait_unless_the_limit_is_another() -> None:
    proxy = Proxy()
    proxy.produce(0)
    state = proxy.bucket.state(1000)
    for limit, expected_ms in ((LIMIT, 4000), (LIMIT + 1, 0)):
        after = Proxy()
        after.ours.set(KEY, "u", None, limit)
        after.ours.quotas.restore(KEY, proxy.bucket.tags, state, 50_000)
        assert held_ms(after.produce(50_000, 1)[1]) == expected_ms
