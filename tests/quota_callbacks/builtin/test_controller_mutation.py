"""Controller mutations: Kafka's tests of strict and permissive quotas, and the callback's choice by version."""

from __future__ import annotations

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import MutationBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.controller_mutation import ControllerMutation
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.error_codes import ErrorCode
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.requests import Address, Connection, Request, TopicMutation
from headrace.quota_callbacks.verdicts import THROTTLING_QUOTA_EXCEEDED, Refuse
from tests.quota_callbacks.our_quotas import FREE, Op, OurQuotas, Outcome

KEY = QuotaKey.CONTROLLER_MUTATION_RATE
CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS


def quotas(limit: float | None, samples: int = 10) -> OurQuotas:
    """Return quotas with ``limit`` for user u; ``None`` only for another user."""
    ours = OurQuotas(Window(samples=samples, seconds=1))
    ours.set(KEY, "u" if limit is not None else "other", None, limit or 1)
    return ours


def strict(ours: OurQuotas, amount: float, now_ms: int) -> Outcome:
    return ours.use(Op.STRICT, "u", "c", amount, now_ms)


def permissive(ours: OurQuotas, amount: float, now_ms: int) -> int:
    outcome = ours.use(Op.PERMISSIVE, "u", "c", amount, now_ms)
    assert outcome.accepted
    return outcome.throttle_ms


def mutations(ours: OurQuotas) -> MutationBucket:
    bucket = ours.quotas.bucket(KEY, "u", "c")
    assert isinstance(bucket, MutationBucket)
    return bucket


def test_strict_quota() -> None:
    """``StrictControllerMutationQuotaTest``."""
    ours = quotas(10)
    assert strict(ours, 90, 0) == FREE
    assert strict(ours, 90, 0) == FREE
    assert mutations(ours).tokens(0) == -80
    assert strict(ours, 90, 0) == Outcome(8000, accepted=False)
    assert mutations(ours).tokens(0) == -80, "what is refused is not charged"
    assert strict(ours, 90, 5000) == Outcome(3000, accepted=False)


def test_permissive_quota() -> None:
    """``PermissiveControllerMutationQuotaTest``: never exceeded, only throttled."""
    ours = quotas(10)
    assert [permissive(ours, 90, 0) for _ in range(3)] == [0, 8000, 17_000]
    throttle = mutations(ours).throttle(5000)
    assert throttle is not None
    assert throttle.throttle_ms == 12_000


@pytest.mark.parametrize("forwarded_s", [None, 0.0])
def test_who_leaves_before_the_reply_is_charged_for_what_may_have_changed(forwarded_s: float | None) -> None:
    ours, callback = quotas(10), ControllerMutation()
    callback.configure(PluginContext(options={}, quotas=ours.quotas))
    connection = Connection(connection_id=1, peer=Address(host="h", port=1), user="u")
    request = Request(connection, CREATE_PARTITIONS, 3, 1, "c", 10, 0.0)
    request.mutations = (TopicMutation(topic="t", partitions=0, at_most=40),)
    assert callback.request_received(request, 0) is None
    before = mutations(ours).tokens(0)
    request.forwarded_s = forwarded_s
    callback.request_abandoned(request, 0)
    assert before - mutations(ours).tokens(0) == (0 if forwarded_s is None else 40)


def test_quota_violation() -> None:
    """``ControllerMutationQuotaManagerTest.testControllerMutationQuotaViolation``."""
    ours, now_ms = quotas(10), 0
    for _ in range(10):
        assert strict(ours, 10, now_ms) == FREE
        now_ms += 1000
    assert strict(ours, 110, now_ms) == FREE
    assert strict(ours, 110, now_ms) == Outcome(1000, accepted=False)
    now_ms += 1000
    assert strict(ours, 110, now_ms) == FREE
    assert strict(ours, 1, now_ms) == Outcome(11_000, accepted=False)


def test_the_example_of_kip_599() -> None:
    ours = quotas(5, samples=100)
    assert [strict(ours, 80, 0) for _ in range(7)] == [FREE] * 7
    assert strict(ours, 1, 0) == Outcome(12_000, accepted=False)
    assert strict(ours, 1, 4500) == Outcome(7500, accepted=False)
    ours = quotas(5, samples=100)
    assert [permissive(ours, 80, 0) for _ in range(7)] == [0] * 6 + [12_000]


@pytest.mark.parametrize("op", [Op.STRICT, Op.PERMISSIVE])
def test_who_has_no_limit_is_measured_only(op: Op) -> None:
    ours = quotas(None)
    assert ours.use(op, "u", "c", 10**6, 0) == FREE
    assert ours.use(op, "u", "c", 1, 0) == FREE
    assert dict(mutations(ours).measures(0))["mutation-rate"] > 0


def test_strict_can_refuse_for_0_ms() -> None:
    """The throttle time can be 0 although the bucket is overdrawn, since it is rounded."""
    ours = quotas(3)
    assert strict(ours, 31, 0) == FREE
    assert strict(ours, 1, 0) == Outcome(333, accepted=False)
    assert strict(ours, 1, 333) == Outcome(0, accepted=False)
    assert strict(ours, 1, 334) == FREE


def test_a_quota_that_is_set_again_finds_the_old_debt() -> None:
    """Refill is lazy: a new quota applies to all time since the last use."""
    ours = quotas(10)
    assert permissive(ours, 150, 0) == 5000
    ours.set(KEY, "other", None, 1)
    ours.set(KEY, "u", None, None)
    ours.set(KEY, "u", None, 10)
    assert permissive(ours, 0, 1000) == 4000


def test_unless_the_bucket_was_touched_while_it_had_no_limit() -> None:
    """Refill is lazy: a new quota applies to all time since the last use."""
    ours = quotas(10)
    ours.set(KEY, "other", None, 1)
    assert permissive(ours, 150, 0) == 5000
    ours.set(KEY, "u", None, None)
    assert permissive(ours, 0, 1000) == 0
    ours.set(KEY, "u", None, 10)
    assert permissive(ours, 0, 1000) == 0


def test_a_changed_rate_applies_to_all_time_since_the_last_touch() -> None:
    """Refill is lazy: a new quota applies to all time since the last use."""
    ours = quotas(10)
    assert permissive(ours, 150, 0) == 5000
    ours.set(KEY, "u", None, 100)
    assert permissive(ours, 0, 400) == 100


class Callback:
    """The callback with its own quotas, called as the proxy does."""

    def __init__(self, limit: float | None) -> None:
        self.quotas = quotas(limit)
        self.callback = ControllerMutation()
        self.callback.configure(PluginContext(options={}, quotas=self.quotas.quotas))
        self.connection = Connection(connection_id=1, peer=Address(host="127.0.0.1", port=1), user="u")

    def request(self, api_key: int, api_version: int, topics: dict[str | bytes, int]) -> Request:
        request = Request(self.connection, api_key, api_version, 1, "c", 100, 0.0)
        request.mutations = tuple(TopicMutation(topic=topic, partitions=count) for topic, count in topics.items())
        return request

    def permissive_ms(self, request: Request, errors: dict[str | bytes, int] | None = None, now_ms: int = 0) -> int:
        assert self.callback.request_received(request, now_ms) is None
        request.topic_errors = errors or {}
        throttle = self.callback.response_received(request, now_ms)
        return 0 if throttle is None else throttle.throttle_ms


@pytest.mark.parametrize(("api_key", "version"), [(CREATE_TOPICS, 6), (DELETE_TOPICS, 5), (CREATE_PARTITIONS, 3)])
def test_new_versions_are_refused_topic_by_topic(api_key: int, version: int) -> None:
    """``ControllerMutationQuotaTest``, 10 x 1 s at 2 a second: of two topics of 30 the second is refused."""
    rig = Callback(2)
    request = rig.request(api_key, version, {"a": 30, "b": 30})
    refusal = rig.callback.request_received(request, 0)
    assert isinstance(refusal, Refuse)
    assert refusal.topics == {"b": THROTTLING_QUOTA_EXCEEDED}
    assert refusal.throttle_ms == 5000
    request.topic_errors = {"a": 0}
    assert rig.callback.response_received(request, 10) is None


@pytest.mark.parametrize(("api_key", "version"), [(CREATE_TOPICS, 5), (DELETE_TOPICS, 4), (CREATE_PARTITIONS, 2)])
def test_old_versions_are_muted(api_key: int, version: int) -> None:
    """``ControllerMutationQuotaTest``: both topics are created, and the channel is muted."""
    rig = Callback(2)
    assert rig.permissive_ms(rig.request(api_key, version, {"a": 30, "b": 30})) == 20_000


@pytest.mark.parametrize(("version", "api_key"), [(6, CREATE_TOPICS), (5, CREATE_TOPICS), (3, CREATE_PARTITIONS)])
def test_an_unbounded_user_is_not_throttled(version: int, api_key: int) -> None:
    """``ControllerMutationQuotaTest.test…UnboundedQuota``."""
    rig = Callback(None)
    assert rig.permissive_ms(rig.request(api_key, version, {"a": 30, "b": 30})) == 0


def test_what_the_broker_refused_is_given_back() -> None:
    rig = Callback(2)
    assert rig.permissive_ms(rig.request(CREATE_TOPICS, 5, {"a": 30, "b": 30}), {"b": 36}) == 5000
    rig = Callback(2)
    request = rig.request(CREATE_TOPICS, 7, {"a": 30})
    assert rig.callback.request_received(request, 0) is None
    request.topic_errors = {"a": 36}
    rig.callback.response_received(request, 0)
    assert mutations(rig.quotas).tokens(0) == 20


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("error", "left"), [(0, -80), (3, 20)])
def test_what_was_changed_unforeseen_is_charged_with_the_reply(version: int, error: int, left: int) -> None:
    """The broker's Metadata did not show the topic yet."""
    rig = Callback(2)
    request = rig.request(CREATE_PARTITIONS, version, {})
    request.mutations = (TopicMutation(topic="a", partitions=0, at_most=100),)
    assert rig.callback.request_received(request, 0) is None
    assert mutations(rig.quotas).tokens(0) == 20
    request.topic_errors = {"a": error}
    rig.callback.response_received(request, 0)
    assert mutations(rig.quotas).tokens(0) == left


@pytest.mark.parametrize("error", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_what_may_have_been_done_is_not_given_back(error: ErrorCode) -> None:
    rig = Callback(2)
    assert rig.permissive_ms(rig.request(DELETE_TOPICS, 4, {"a": 30, "b": 30}), {"b": error}) == 20_000
    rig = Callback(2)
    request = rig.request(CREATE_TOPICS, 7, {"a": 30})
    assert rig.callback.request_received(request, 0) is None
    request.topic_errors = {"a": error}
    rig.callback.response_received(request, 0)
    assert mutations(rig.quotas).tokens(0) == -10


def test_validate_only_is_exempt_and_a_topic_without_cost_always_admitted() -> None:
    rig = Callback(2)
    request = rig.request(CREATE_TOPICS, 7, {"a": 10**6})
    request.validate_only = True
    assert rig.callback.request_received(request, 0) is None
    assert mutations(rig.quotas).tokens(0) == 20
    refusal = rig.callback.request_received(rig.request(CREATE_TOPICS, 7, {"a": 30, "bad": 0, "b": 1}), 0)
    assert isinstance(refusal, Refuse)
    assert refusal.topics == {"b": THROTTLING_QUOTA_EXCEEDED}
