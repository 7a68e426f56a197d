"""The limits on the number and the rate of connections of a user."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.proxy.counters import Counters
from headrace.proxy.network.admission import MAX_DELAYED_OF_A_USER, Admission
from tests.proxy.network.test_connection_rates import BURST_S, UNLIMITED, WINDOW

if TYPE_CHECKING:
    from headrace.proxy.network.admission import UserRefusal


def admission(**limits: Any) -> Admission:
    return Admission(replace(UNLIMITED, **limits), Counters(), WINDOW)


def refusals(admitting: Admission, user: str, count: int, now_s: float = 0.0) -> list[UserRefusal | None]:
    return [admitting.admit_user(user, now_s) for _ in range(count)]


def refused(admitting: Admission) -> dict[str, int]:
    return admitting._counters.connections_refused


def test_each_user_has_a_number_of_connections_of_its_own() -> None:
    admitting = admission(max_connections_per_user=3)
    assert refusals(admitting, "alice", 3) == [None] * 3
    [refusal] = refusals(admitting, "alice", 1)
    assert refusal is not None
    assert refusal.reason == "user alice: limits.max_connections_per_user = 3 is reached"
    assert refusal.delay_s == 0
    assert refusals(admitting, "bob", 3) == [None] * 3
    assert refused(admitting) == {"max_connections_per_user": 1}
    admitting.leave_user("alice")
    assert refusals(admitting, "alice", 1) == [None]


def test_a_user_that_connects_too_fast_is_closed_after_a_delay() -> None:
    admitting = admission(max_connection_rate_per_user=2)
    assert refusals(admitting, "alice", 2 * BURST_S) == [None] * 2 * BURST_S
    [refusal] = refusals(admitting, "alice", 1)
    assert refusal is not None
    assert refusal.reason == "user alice: limits.max_connection_rate_per_user = 2 is exceeded"
    assert refusal.delay_s == 0.5, "one connection is half a second of the limit"
    assert refusals(admitting, "bob", 1) == [None]
    assert refusals(admitting, "alice", 1, now_s=12.0) == [None], "what was refused is not counted"
    assert refused(admitting) == {"max_connection_rate_per_user": 1}


def test_few_connections_of_a_user_wait_to_be_closed() -> None:
    admitting = admission(max_connection_rate_per_user=1)
    refusals(admitting, "alice", BURST_S)
    delays = [each.delay_s for each in refusals(admitting, "alice", MAX_DELAYED_OF_A_USER + 5) if each is not None]
    assert delays == [1.0] * MAX_DELAYED_OF_A_USER + [0.0] * 5
    refusals(admitting, "bob", BURST_S)
    assert [each.delay_s for each in refusals(admitting, "bob", 1) if each is not None] == [1.0]
    admitting.end_delay("alice")
    assert [each.delay_s for each in refusals(admitting, "alice", 2) if each is not None] == [1.0, 0.0]


def test_exempt_users_and_a_reload() -> None:
    admitting = admission(
        max_connections_per_user=1, max_connection_rate_per_user=1, per_user_exempt=frozenset({"mirror-maker"})
    )
    assert refusals(admitting, "mirror-maker", 30) == [None] * 30
    assert refusals(admitting, "alice", 2)[1] is not None
    admitting.limits = replace(UNLIMITED, max_connections_per_user=30)
    assert refusals(admitting, "mirror-maker", 1) != [None], "what an exempt user has open counts after a reload"
    assert refusals(admitting, "alice", 29) == [None] * 29


def test_without_a_limit_nobody_is_refused() -> None:
    assert refusals(admission(), "alice", 1000) == [None] * 1000
