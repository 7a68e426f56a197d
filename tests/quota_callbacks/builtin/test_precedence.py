"""Which quota applies and which bucket is charged: the values of ``ClientQuotaManagerTest``."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.quota_callbacks.buckets.client_quotas import IDLE_EXPIRY_MS
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.builtin.precedence import Level, QuotaLevels, Tags, sanitize
from headrace.quota_callbacks.entities import DEFAULT, EntityName, QuotaEntity, QuotaKey
from tests.quota_callbacks.kafka_quotas import java
from tests.quota_callbacks.our_quotas import Op, OurQuotas

KEY = QuotaKey.PRODUCER_BYTE_RATE


class Cluster(OurQuotas):
    """Quotas of one key."""

    def of(self, user: EntityName | None, client_id: EntityName | None, value: float | None) -> None:
        self.set(KEY, user, client_id, value)

    def charge(self, user: str, client_id: str, amount: float, now_ms: int = 0) -> int:
        return self.use(Op.PRODUCE, user, client_id, amount, now_ms).throttle_ms

    def bucket(self, user: str, client_id: str) -> RateBucket | None:
        bucket = self.quotas.bucket(KEY, user, client_id)
        assert bucket is None or isinstance(bucket, RateBucket)
        return bucket


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_quota_config_precedence(cluster: Cluster) -> None:
    """``testQuotaConfigPrecedence``."""
    for user, client_id, value in [
        (DEFAULT, None, 1000),
        (None, DEFAULT, 2000),
        (DEFAULT, DEFAULT, 3000),
        ("A", None, 4000),
        ("A", "c1", 5000),
        ("B", None, 6000),
        ("B", "c1", 7000),
        ("B", DEFAULT, 8000),
        ("C", None, 10_000),
        (None, "c1", 9000),
    ]:
        cluster.of(user, client_id, value)
    charge = cluster.charge
    assert charge("A", "c1", 49_500) == 0
    assert charge("A", "c2", 49_500) == 2375
    assert charge("A", "c3", 0) == 2375, "shared with c2"
    assert charge("A", "c1", 0) == 0
    assert charge("B", "c1", 88_000) == 2571
    assert [charge("B", "c2", 77_000), charge("B", "c3", 77_000)] == [0, 0]
    assert charge("D", "c1", 38_500) == 2833
    assert [charge("D", "c2", 27_500), charge("E", "c1", 27_500)] == [0, 0]

    cluster.of(DEFAULT, DEFAULT, None)
    assert charge("D", "c1", 0) == 0
    assert charge("E", "c4", 16_500) == 6500
    assert charge("F", "c4", 8800) == 0
    assert charge("F", "c5", 8800) == 7600

    cluster.of(DEFAULT, None, None)
    assert [charge("F", "c4", 0), charge("F", "c5", 0)] == [0, 0]
    assert charge("F", "c5", 27_500) == 3750
    assert charge("G", "c5", 0) == 3750, "a client's quota is shared across users"


def test_quota_parsing(cluster: Cluster) -> None:
    """``testQuotaParsing``: a quota that changes keeps the history."""
    cluster.of("u", "c", 2000)
    assert cluster.charge("u", "c", 27_500) == 3750
    cluster.of("u", "c", 3000)
    assert cluster.charge("u", "c", 0) == 0
    cluster.of("u", "c", 500)
    assert cluster.charge("u", "c", 0) == 45_000
    cluster.of("u", "c", None)
    cluster.of(DEFAULT, DEFAULT, 4000)
    assert cluster.charge("u", "c", 11_000) == 0


def test_enabled_levels() -> None:
    """``testQuotaTypesEnabledUpdates``."""
    levels, seen = QuotaLevels(), [0]
    changes: list[tuple[EntityName | None, EntityName | None, float | None]] = [
        (None, "c", 1),
        ("u", None, 1),
        ("u", None, 2),
        (None, DEFAULT, 1),
        ("u", "c", 1),
        (DEFAULT, "c", 1),
        ("u", DEFAULT, 1),
        ("u", None, None),
        (None, "c", None),
        (None, DEFAULT, None),
        ("u", "c", None),
        (DEFAULT, "c", None),
        ("u", DEFAULT, None),
        ("u", DEFAULT, None),
    ]
    for user, client_id, value in changes:
        entity = QuotaEntity(user=user, client_id=client_id)
        if value is None:
            levels.remove(entity)
        else:
            levels.update(entity, value)
        seen.append(int(levels.levels))
    assert seen == [0, 1, 3, 3, 3, 7, 7, 7, 5, 5, 4, 4, 4, 0, 0]
    assert Level.CLIENT | Level.USER | Level.PAIR == 7


def test_nothing_is_recorded_while_a_key_has_no_quota(cluster: Cluster) -> None:
    assert cluster.bucket("u", "c") is None
    cluster.of("other", None, 10)
    assert cluster.bucket("u", "c") is not None, "recorded, though unlimited"
    assert cluster.charge("u", "c", 10**9) == 0


def test_history_of_an_unmatched_user_counts_once_it_has_a_quota(cluster: Cluster) -> None:
    cluster.of("other", None, 10)
    cluster.charge("u", "c", 20_000)
    cluster.of("u", None, 1000)
    assert cluster.charge("u", "c", 0) == 10_000


def test_history_of_an_unmatched_user_does_not_count_if_only_a_client_level_existed(cluster: Cluster) -> None:
    """It is charged to the client's bucket; without any quota it is not charged."""
    assert cluster.charge("u", "c", 20_000) == 0
    cluster.of(None, "c", 10**6)
    assert cluster.charge("u", "c", 20_000) == 0
    cluster.of("u", None, 1000)
    assert cluster.charge("u", "c", 0) == 0
    cluster.of("u", None, None)
    cluster.of(None, "c", 1000)
    assert cluster.charge("v", "c", 0) == 10_000


def test_an_unrelated_level_can_restart_a_counter(cluster: Cluster) -> None:
    cluster.of(None, DEFAULT, 1000)
    assert cluster.charge("u", "c", 20_000) == 10_000
    cluster.of("u", None, 10**6)
    assert cluster.charge("u", "c", 0) == 0, "now in the user's bucket"


def test_an_empty_client_id_escapes_pair_quotas_and_the_client_default(cluster: Cluster) -> None:
    cluster.of(None, DEFAULT, 10)
    assert cluster.charge("u", "", 10**6) == 0
    assert cluster.charge("u", "x", 10**6) > 0
    cluster.of("u", DEFAULT, 10)
    assert cluster.charge("u", "", 10**6) == 0


NAMES = ["a b", "*", "%2A", "\u00e9", "e\u0301", "<default>", "A", "a"]  # NFC and NFD of one letter among them


@pytest.mark.parametrize("name", NAMES)
def test_names_match_exactly(cluster: Cluster, name: str) -> None:
    cluster.of(name, None, 10)
    for other in NAMES:
        assert (cluster.charge(other, "c", 10**6, 0) > 0) is (other == name), other


@pytest.mark.parametrize(
    ("raw", "tag"), [("a b", "a%20b"), ("*", "%2A"), ("a.b-c_d~e", "a.b-c_d%7Ee"), ("ü:", "%C3%BC%3A")]
)
def test_users_are_percent_encoded_as_kafka_does(raw: str, tag: str) -> None:
    assert sanitize(raw) == tag


@settings(deadline=None)
@given(user=st.text(st.characters(codec="utf-8")))
def test_kafkas_sanitizer_agrees(user: str) -> None:
    assert sanitize(user) == java("org.apache.kafka.common.utils.Sanitizer").sanitize(user)


def test_a_user_with_the_default_pair_gives_each_client_a_bucket_of_its_own() -> None:
    levels = QuotaLevels()
    levels.update(QuotaEntity(user="u", client_id=DEFAULT), 10)
    levels.update(QuotaEntity(user=DEFAULT), 10)
    assert levels.tags("u", "c1") == Tags("u", "c1")
    assert levels.tags("v", "c1") == Tags("v", "")
    assert levels.limit(Tags("u", "c1")) == (10, QuotaEntity(user="u", client_id=DEFAULT))


def test_a_throttle_names_the_entity_whose_quota_applied(cluster: Cluster) -> None:
    cluster.of("u", DEFAULT, 1000)
    bucket = cluster.bucket("u", "c9")
    assert bucket is not None
    throttle = bucket.charge(20_000, 0)
    assert throttle is not None
    assert throttle.reason is not None
    assert throttle.reason.entity == "user=u, client-id=<default>"
    assert (throttle.reason.observed, throttle.reason.limit) == (2000, 1000)


def test_idle_buckets_expire_and_what_was_resolved_before_is_stale(cluster: Cluster) -> None:
    cluster.of("u", None, 1000)
    cluster.charge("u", "c", 1, now_ms=5)
    (bucket,) = cluster.quotas
    assert cluster.quotas.expire(IDLE_EXPIRY_MS + 5) == 0
    assert cluster.quotas.expire(IDLE_EXPIRY_MS + 6) == 1
    assert list(cluster.quotas) == []
    assert bucket.dropped, "a caller that has resolved it has to ask again"


def test_an_entity_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs at least one part"):
        QuotaEntity()
    with pytest.raises(ValueError, match="must not be empty"):
        QuotaEntity(user="")
