"""The table of buckets: nobody ends a throttle by filling it, and nobody else shares a bucket because of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.bucket_table import IDLE_EXPIRY_MS, BucketTable, owner_of
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, QuotaBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, Limit, QuotaPolicy
from headrace.quota_callbacks.requests import Address, Connection, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = QuotaKey.PRODUCER_BYTE_RATE
WINDOW_MS = 11_000
LIMIT = 1000.0


def quotas_with(*, max_buckets: int = 100, max_owned: int = 10, policy: QuotaPolicy | None = None) -> ClientQuotas:
    """Quotas of 1,000 for each client id, and for each user without one."""

    def tags(_key: str, user: str, client_id: str) -> Mapping[str, str]:
        return {"user": user, "client-id": ""} if user.startswith("user") else {"user": "", "client-id": client_id}

    entity = QuotaEntity(client_id=DEFAULT)
    limit = Limit(LIMIT, entity, policy or QuotaPolicy())
    return ClientQuotas(
        windows={key: Window() for key in QuotaKey},
        metric_tags=tags,
        quota_limit=lambda _key, _tags: limit,
        max_buckets=max_buckets,
        max_owned=max_owned,
    )


def request_of(connection: Connection, client_id: str, now_ms: int = 0) -> Request:
    return Request(connection, ApiKey.PRODUCE, 9, 1, client_id, 100, now_ms / 1000)


def connection_from(host: str, user: str = "ANONYMOUS") -> Connection:
    return Connection(connection_id=1, peer=Address(host=host, port=1), user=user)


def bucket_of(quotas: ClientQuotas, connection: Connection, client_id: str, now_ms: int = 0) -> RateBucket:
    bucket = quotas.bucket_for(request_of(connection, client_id, now_ms), KEY, RateBucket)
    assert bucket is not None
    return bucket


def test_a_debt_survives_any_number_of_invented_client_ids() -> None:
    quotas = quotas_with()
    honest, attacker = connection_from("192.0.2.1", "user-a"), connection_from("192.0.2.2")
    owing = bucket_of(quotas, honest, "c")
    throttle = owing.charge(10_000_000, 0)
    assert throttle is not None
    for number in range(1000):
        bucket_of(quotas, attacker, f"invented-{number}").charge(1, 1)
        quotas.expire(number * 100)
    assert bucket_of(quotas, honest, "c") is owing
    assert quotas.overflowed > 0


def test_a_wait_that_is_longer_than_an_hour_is_not_forgotten() -> None:
    """Unless the quota is enforced as by a broker, which forgets it, too."""
    paced = QuotaPolicy(mode=EnforcementMode.PACED)
    for policy, is_kept in ((QuotaPolicy(), False), (paced, True)):
        quotas, connection = quotas_with(policy=policy), connection_from("192.0.2.1", "user-a")
        bucket = bucket_of(quotas, connection, "c")
        if bucket.paced:
            bucket.reserve(LIMIT * 10_000, 0)
            bucket.reserve(1, 0)
        else:
            bucket.charge(LIMIT * 10_000, 0)
            assert bucket.gate_ms > 2 * IDLE_EXPIRY_MS
        quotas.expire(IDLE_EXPIRY_MS + 1)
        assert bucket.dropped is not is_kept


def test_further_client_ids_of_one_client_share_one_bucket_with_no_other_client() -> None:
    quotas = quotas_with()
    attacker, honest = connection_from("192.0.2.2"), connection_from("192.0.2.3")
    buckets = {bucket_of(quotas, attacker, f"invented-{number}") for number in range(1000)}
    assert len(buckets) == 11
    (shared,) = (each for each in buckets if each.overflow)
    assert shared.limit == LIMIT
    other = bucket_of(quotas, honest, "honest")
    assert not other.overflow
    assert bucket_of(quotas, connection_from("192.0.2.2", "user-b"), "c") not in buckets, "a user is no invented name"


def test_a_full_table_keeps_its_maximum_and_the_limit() -> None:
    quotas = quotas_with(max_buckets=5)
    for number in range(100):
        bucket_of(quotas, connection_from(f"192.0.2.{number}"), f"c{number}")
    assert len(quotas) == 6
    assert sum(each.overflow for each in quotas) == 1


def test_client_ids_get_buckets_again_when_others_have_forgotten_everything() -> None:
    quotas = quotas_with()
    client = connection_from("192.0.2.2")
    for number in range(20):
        bucket_of(quotas, client, f"c{number}").charge(1, 0)
    shared = bucket_of(quotas, client, "late", 10)
    assert shared.overflow
    assert quotas.expire(WINDOW_MS) == 0, "the rates may still count"
    assert quotas.expire(WINDOW_MS + 1) == 5, "no more than until the share is half full, and the shared one stays"
    assert quotas.table.evicted == 5
    assert not bucket_of(quotas, client, "late", WINDOW_MS + 1).overflow


def test_a_shared_bucket_has_the_current_limit() -> None:
    quotas = quotas_with(max_owned=1)
    client = connection_from("192.0.2.2")
    bucket_of(quotas, client, "first")
    shared = bucket_of(quotas, client, "second")
    quotas.quotas_changed()
    assert [each.limit for each in quotas if each is shared] == [LIMIT]
    assert bucket_of(quotas, client, "third") is shared


def test_what_a_bucket_forgets_and_when() -> None:
    def used(kind: type[QuotaBucket], key: QuotaKey) -> QuotaBucket:
        bucket = kind(key, (), Window())
        bucket.limit, bucket.last_used_ms = LIMIT, 0
        return bucket

    rate = used(RateBucket, KEY)
    assert not rate.forgotten(WINDOW_MS)
    assert rate.forgotten(WINDOW_MS + 1)

    waiting = used(RateBucket, KEY)
    assert isinstance(waiting, RateBucket)
    waiting.charge(10_000_000, 0, longest_ms=1)
    waiting.charge(1000, 11_000)
    waiting._extend_wait(11_000, 50_000, 11_000)
    assert not waiting.forgotten(49_999)
    assert waiting.forgotten(50_000)

    paced = used(RateBucket, KEY)
    paced.policy = QuotaPolicy(mode=EnforcementMode.PACED)
    paced.reserve(100_000, 0)
    assert not paced.forgotten(99_999)
    assert paced.forgotten(100_000)

    mutations = used(MutationBucket, QuotaKey.CONTROLLER_MUTATION_RATE)
    assert isinstance(mutations, MutationBucket)
    mutations.charge(LIMIT * 11 + LIMIT * 100, 0)
    assert not mutations.forgotten(110_999)
    assert mutations.forgotten(111_000)

    ids = ProducerIdBucket(QuotaKey.PRODUCER_IDS_RATE, (), Window(samples=1, seconds=3600))
    ids.limit, ids.last_used_ms = 10.0, 0
    ids.charge(7, 0)
    ids.charge(8, 2_000_000)
    assert not ids.forgotten(2_000_000 + 3_600_000)
    assert ids.forgotten(2_000_000 + 3_600_001)


def test_the_work_of_a_sweep_is_divided() -> None:
    table = BucketTable()
    for number in range(100):
        table.add(RateBucket(KEY, (("user", f"u{number}"),), Window()))
    steps = table.sweep(0)
    assert sum(1 for _ in steps) == 4


def test_whom_a_bucket_counts_for() -> None:
    def owner(host: str, client_id: str, **tags: str) -> tuple[str, str] | None:
        return owner_of(connection_from(host, "alice"), client_id, tuple(tags.items()))

    assert owner("192.0.2.1", "c", user="alice", client="c") == ("alice", "192.0.2.1")
    assert owner("::ffff:192.0.2.1", "c", client="c") == ("alice", "192.0.2.1")
    assert owner("2001:db8::1", "c", client="c") == owner("2001:db8::2", "c", client="c")
    assert owner("2001:db8::1", "c", client="c") != owner("2001:db8:0:1::1", "c", client="c")
    assert owner("fe80::1%eth0", "c", client="c") is not None
    assert owner("192.0.2.1", "c", user="alice", client="") is None
    assert owner("192.0.2.1", "", user="alice", client="") is None
    assert owner("192.0.2.1", "alice", user="alice", client="") is None
