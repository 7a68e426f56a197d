"""Which buckets have series of their own, what becomes of the others, and that names and values are Kafka's."""

from __future__ import annotations

import pytest

from headrace.plugins.metrics.names import LIMIT, LONGEST_TEXT, MEASURES, labels_of, series_of
from headrace.plugins.metrics.snapshot import MOST_QUEUES
from headrace.quota_callbacks.buckets.kinds import BUCKET_KINDS, MutationBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaKey
from tests.plugins.metrics.metered import (
    FETCH,
    IDS,
    KAFKA_TYPES,
    MUTATIONS,
    NOW_MS,
    PRODUCE,
    REQUEST,
    Metered,
    drain,
    values,
)

STATES = ("own", "other", "idle")


def entities(metered: Metered, reader: object) -> dict[str, float]:
    points = drain(reader.steps()).points["entities"]  # type: ignore[attr-defined]
    return {labels["state"]: count for labels, count in points if labels["quota"] == PRODUCE}


@pytest.mark.parametrize("key", QuotaKey)
def test_every_measure_of_every_bucket_has_a_name(key: QuotaKey) -> None:
    bucket = BUCKET_KINDS[key](key, (), Window())
    assert {*series_of(key)} == {*(name for name, _ in bucket.measures(0)), LIMIT}
    assert key in KAFKA_TYPES
    assert set(series_of(key)) <= {measure.kafka for measure in MEASURES}


def test_a_rate_its_limit_and_its_throttle_time() -> None:
    metered = Metered(limit=500)
    metered.use("alice", 20_000)
    metered.use("bob", 10)
    snapshot = drain(metered.reader().steps())
    assert values(snapshot, "byte-rate", quota="producer_byte_rate") == {"alice": 2000, "bob": 1}
    assert values(snapshot, "limit") == {"alice": 500, "bob": 500}
    assert values(snapshot, "throttle-time") == {"alice": 30_000}, "bob was not throttled: no series"
    assert snapshot.points["byte-rate"][0][0] == {  # type: ignore[index]
        "quota": "producer_byte_rate",
        "user": "alice",
        "client_id": "",
    }


def test_every_quota_by_kafkas_names() -> None:
    metered = Metered(limit=10)
    metered.use("alice", 50, REQUEST)
    metered.use("alice", 150, MUTATIONS)
    metered.use("alice", 12, IDS)
    metered.use("alice", 5000, FETCH)
    metered.quotas.exempt_request_time.record(90, NOW_MS)
    metered.muted = {"producer_byte_rate": 3}
    snapshot = drain(metered.reader().steps())
    assert values(snapshot, "request-time") == {"alice": 5}
    assert values(snapshot, "mutation-rate") == {"alice": 5}
    assert values(snapshot, "tokens", quota="controller_mutation_rate") == {"alice": 110 - 150}
    assert values(snapshot, "rate", quota="producer_ids_rate") == {"alice": 1.2}
    assert values(snapshot, "tokens", quota="producer_ids_rate") == {"alice": -2}
    assert values(snapshot, "byte-rate", quota="consumer_byte_rate") == {"alice": 500}
    assert snapshot.points["exempt-request-time"] == [({"quota": "request_percentage"}, 3)]
    queues = {labels["quota"]: count for labels, count in snapshot.points["queue-size"]}
    assert queues == dict.fromkeys(map(str, QuotaKey), 0) | {"producer_byte_rate": 3}


def test_without_a_limit_there_is_none_and_tokens_are_none() -> None:
    metered = Metered(limit=None)
    metered.use("alice", 60, MUTATIONS)
    metered.use("alice", 60, IDS)
    snapshot = drain(metered.reader().steps())
    assert values(snapshot, "mutation-rate") == {"alice": 2}
    assert snapshot.points["limit"] == []
    assert snapshot.points["tokens"] == [], "without end"


# --- the cap ---


def test_beyond_the_cap_all_others_are_one() -> None:
    metered = Metered(limit=500)
    for number in range(20):
        metered.now_ms = NOW_MS + number * 1000
        metered.use(f"user-{number}", 10_000 * (1 + number % 2))
    snapshot = drain(metered.reader(max_series=3 * 5).steps())
    rates = values(snapshot, "byte-rate")
    assert set(rates) == {"other", *(f"user-{number}" for number in range(15, 20))}, "those used last, and the rest"
    seen = sum(bucket.observed(metered.now_ms) for bucket in metered.quotas)
    assert sum(rates.values()) == pytest.approx(seen)
    own = {f"user-{number}" for number in range(15, 20)}
    assert set(values(snapshot, "limit")) == own, "limits do not add up"
    assert values(snapshot, "throttle-time")["other"] == 30_000, "the longest"
    (labels,) = [labels for labels, _ in snapshot.points["byte-rate"] if labels["user"] == "other"]
    assert labels == {"quota": "producer_byte_rate", "user": "other", "client_id": "other"}
    assert entities(metered, metered.reader(max_series=15)) == {"own": 5, "other": 15, "idle": 0}


def test_the_series_other_has_the_fewest_tokens() -> None:
    metered = Metered(limit=10)
    for user, mutations in (("a", 130), ("b", 500), ("c", 30)):
        metered.use(user, mutations, MUTATIONS)
    snapshot = drain(metered.reader(max_series=3).steps())
    assert values(snapshot, "tokens") == {"other": 110 - 500}
    assert values(snapshot, "mutation-rate") == {"other": 22}


def test_the_cap_is_over_all_quotas() -> None:
    metered = Metered(limit=1)
    for number in range(100):
        for key in QuotaKey:
            metered.use(f"user-{number}", 300, key)
    snapshot = drain(metered.reader(max_series=100).steps())
    of_entities = set(snapshot.points) - {"exempt-request-time", "queue-size", "entities"}
    own = [name for name in of_entities for labels, _ in snapshot.points[name] if labels["user"] != "other"]
    assert 90 < len(own) <= 100


def test_who_has_series_keeps_them_until_he_is_idle() -> None:
    metered = Metered()
    reader = metered.reader(max_series=3, idle_s=60)
    metered.use("first")
    drain(reader.steps())
    metered.now_ms += 30_000
    metered.use("second")
    assert set(values(drain(reader.steps()), "byte-rate")) == {"first", "other"}
    metered.now_ms += 30_001
    assert set(values(drain(reader.steps()), "byte-rate")) == {"second"}
    metered.use("first")
    snapshot = drain(reader.steps())
    assert set(values(snapshot, "byte-rate")) == {"second", "other"}
    assert snapshot.admitted == 2


def test_a_user_who_is_called_other_is_one_of_them() -> None:
    metered = Metered()
    metered.use("other", 500, client_id="other")
    metered.use("other", 200)
    points = drain(metered.reader().steps()).points["byte-rate"]
    assert sorted((labels["client_id"], value) for labels, value in points) == [("", 20), ("other", 50)]


# --- idle ---


def test_an_idle_entity_has_no_series() -> None:
    metered = Metered()
    metered.use("alice")
    metered.bucket("never used")
    reader = metered.reader(idle_s=60)
    assert entities(metered, reader) == {"own": 1, "other": 0, "idle": 1}
    metered.now_ms += 60_000
    assert set(values(drain(reader.steps()), "byte-rate")) == {"alice"}
    metered.now_ms += 1
    snapshot = drain(reader.steps())
    assert [name for name, points in snapshot.points.items() if points] == [
        "exempt-request-time",
        "queue-size",
        "entities",
    ]
    assert entities(metered, reader) == {"own": 0, "other": 0, "idle": 2}


def test_who_is_refused_is_not_idle() -> None:
    metered = Metered(limit=10)
    bucket = metered.bucket("alice", key=MUTATIONS)
    assert isinstance(bucket, MutationBucket)
    bucket.admit(10_000, metered.now_ms)
    reader = metered.reader(idle_s=10)
    for _ in range(10):
        assert set(values(drain(reader.steps()), "tokens")) == {"alice"}
        metered.now_ms += 8000
        assert bucket.admit(1, metered.now_ms) is not None
    metered.now_ms += 60_000
    assert values(drain(reader.steps()), "tokens") == {}


def test_a_bucket_that_was_dropped_is_forgotten() -> None:
    metered = Metered()
    reader = metered.reader(max_series=3, idle_s=10_000)
    metered.use("first")
    drain(reader.steps())
    metered.now_ms += 3_600_001
    metered.quotas.expire(metered.now_ms)
    metered.use("second")
    assert set(values(drain(reader.steps()), "byte-rate")) == {"second"}


# --- reading beside others ---


def test_buckets_may_come_and_go_between_two_steps() -> None:
    metered = Metered()
    for number in range(500):
        metered.use(f"user-{number}")
    reader = metered.reader(max_series=300)
    came = 0

    def meanwhile() -> None:
        nonlocal came
        came += 1
        metered.now_ms += 1
        metered.use(f"newcomer-{came}")
        metered.use(f"user-{came}", 50)
        metered.quotas.expire(metered.now_ms)

    snapshot = drain(reader.steps(), meanwhile)
    assert came > 40, "others may run often"
    rates = values(snapshot, "byte-rate")
    assert len(rates) == 101
    assert sum(rates.values()) >= 500 * 10


def test_queues_of_plugins_that_name_too_many_are_cut() -> None:
    metered = Metered()
    metered.muted = {f"topic-{number}": number for number in range(500)}
    queues = {labels["quota"]: count for labels, count in drain(metered.reader().steps()).points["queue-size"]}
    assert len(queues) == MOST_QUEUES + len(QuotaKey)
    assert min(count for quota, count in queues.items() if quota.startswith("topic-")) == 500 - MOST_QUEUES


# --- labels ---


@pytest.mark.parametrize(
    ("tags", "labels"),
    [
        ({"user": "a", "client-id": "c"}, {"user": "a", "client_id": "c"}),
        ({"team": "blue"}, {"team": "blue"}),
        ({"quota": "x", "__name__": "y", "9th": "z"}, {"tag_quota": "x", "tag_name__": "y", "tag_9th": "z"}),
        ({"a-b": "1", "a_b": "2"}, {"a_b": "1;2"}),
        ({"": "1"}, {"tag_": "1"}),
        ({"user": "a\ud800"}, {"user": "a\\ud800"}),
    ],
)
def test_tags_become_labels(tags: dict[str, str], labels: dict[str, str]) -> None:
    bucket = RateBucket(PRODUCE, tuple(tags.items()), Window())
    assert labels_of(bucket) == {"quota": "producer_byte_rate", **labels}


def test_a_long_text_is_cut_and_stays_its_own() -> None:
    long = [
        labels_of(RateBucket(PRODUCE, (("client-id", "x" * 30_000 + end),), Window()))["client_id"] for end in "abc"
    ]
    assert [len(text) for text in long] == [LONGEST_TEXT] * 3
    assert len(set(long)) == 3
    exact = "y" * LONGEST_TEXT
    assert labels_of(RateBucket(PRODUCE, (("client-id", exact),), Window()))["client_id"] == exact
