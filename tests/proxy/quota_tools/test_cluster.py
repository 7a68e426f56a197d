"""Long changes: batches, progress, and clusters that refuse a part or go away meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.proxy.kafka_client.errors import ApiTimeoutError, BrokerError, InvalidRequestError, KafkaClientError
from headrace.proxy.kafka_client.results import Results
from headrace.proxy.kafka_client.settings import ClientSettings, parse_addresses
from headrace.proxy.quota_tools import cluster as module
from headrace.proxy.quota_tools.cluster import BATCH_CHANGES, QuotaCluster, error_text
from headrace.proxy.quota_tools.errors import ClusterError
from headrace.proxy.quota_tools.plans import make_plan
from headrace.quota_callbacks.entities import QuotaEntity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.proxy.kafka_client.quotas import QuotaAlteration


class Client:
    """Remembers the alterations of each call, and answers with the errors that the test wants."""

    def __init__(self) -> None:
        self.calls: list[Sequence[QuotaAlteration]] = []
        self.bad_keys: set[str] = set()
        self.message = "bad {}"
        self.lost_after = 1000

    def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool, raise_errors: bool
    ) -> Results[QuotaEntity, None]:
        assert not raise_errors
        self.calls.append(alterations)
        outcomes: dict[QuotaEntity, KafkaClientError | None] = {}
        for each in alterations:
            bad = sorted(self.bad_keys & each.values.keys())
            outcomes[each.entity] = InvalidRequestError(self.message.format(bad[0])) if bad else None
        if len(self.calls) > self.lost_after:
            outcomes = {each.entity: ApiTimeoutError("no answer") for each in alterations}
        assert validate_only in (True, False)
        return Results(outcomes=outcomes)

    def close(self) -> None:
        pass


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    stand_in = Client()
    monkeypatch.setattr(module, "SyncAdminClient", lambda _settings: stand_in)
    return stand_in


@pytest.fixture
def cluster(client: Client) -> QuotaCluster:
    return QuotaCluster(ClientSettings(bootstrap_servers=parse_addresses("one:1")))


def users(count: int, values: Mapping[str, float | None]) -> dict[QuotaEntity, Mapping[str, float | None]]:
    return {QuotaEntity(user=f"user-{number}"): values for number in range(count)}


def test_changes_are_sent_in_batches_of_whole_entities(client: Client, cluster: QuotaCluster) -> None:
    changes = users(1201, {"a": 1.0, "b": None, "c": 2.0})
    seen: list[tuple[int, int]] = []
    assert cluster.alter(changes, progress=lambda done, total: seen.append((done, total))) == []
    sizes = [sum(len(each.values) for each in call) for call in client.calls]
    assert max(sizes) <= BATCH_CHANGES
    assert {each.entity: each.values for call in client.calls for each in call} == changes
    assert sum(map(len, client.calls)) == 1201
    assert seen[-1] == (1201, 1201)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_an_entity_with_more_keys_than_a_batch_is_not_split(client: Client, cluster: QuotaCluster) -> None:
    cluster.alter(users(2, {f"key-{number}": 1.0 for number in range(BATCH_CHANGES + 1)}))
    assert [len(call) for call in client.calls] == [1, 1]


def test_a_cluster_that_goes_away_says_how_much_is_done(client: Client, cluster: QuotaCluster) -> None:
    client.lost_after = 2
    changes = users(3 * BATCH_CHANGES, {"a": 1.0})
    message = rf"^one:1: no answer \({2 * BATCH_CHANGES} of {3 * BATCH_CHANGES} entities are changed\)$"
    with pytest.raises(ClusterError, match=message):
        cluster.alter(changes)


def test_refusals_do_not_stop_the_others(client: Client, cluster: QuotaCluster) -> None:
    client.bad_keys = {"bad"}
    one, two = QuotaEntity(user="one"), QuotaEntity(user="two")
    refused = cluster.alter({one: {"bad": 1.0}, two: {"good": 1.0}})
    assert [(each.entity, each.key, each.reason) for each in refused] == [(one, None, "bad bad")]


def test_a_key_for_other_entities_says_for_which(client: Client, cluster: QuotaCluster) -> None:
    client.bad_keys = {"producer_byte_rate"}
    client.message = "Invalid configuration key {}"
    (refused,) = cluster.alter({QuotaEntity(ip="192.0.2.1"): {"producer_byte_rate": 1.0}})
    assert refused.reason == (
        "Invalid configuration key producer_byte_rate"
        " (producer_byte_rate is for client-id or user or user with client-id only)"
    )
    assert refused.code == 42


def test_a_plan_is_checked_key_by_key(client: Client, cluster: QuotaCluster) -> None:
    client.bad_keys = {"bad", "worse"}
    one, two, three = (QuotaEntity(user=each) for each in ("one", "two", "three"))
    wanted = {one: {"bad": 1.0, "good": 2.0, "worse": 3.0}, two: {"good": 1.0}, three: {"worse": 1.0}}
    refused = cluster.check(make_plan({}, wanted, prune=False))
    assert sorted((str(each.entity), str(each.key)) for each in refused) == [
        ("user=one", "bad"),
        ("user=one", "worse"),
        ("user=three", "worse"),
    ]


def test_errors_are_sentences() -> None:
    unknown = InvalidRequestError("Invalid configuration key producer_byte_rat", explanation="too old")
    assert error_text(unknown, types=["user"], keys=["producer_byte_rat"]) == (
        "Invalid configuration key producer_byte_rat (did you mean producer_byte_rate?)"
    )
    assert error_text(unknown, types=["user"], keys=["speed"]) == (
        "Invalid configuration key producer_byte_rat (too old)"
    )
    assert error_text(unknown, types=["topic"], keys=["speed"]) == (
        "Invalid configuration key producer_byte_rat (too old)"
    )
    in_file = InvalidRequestError("request_rate of user=a is set in the proxy's configuration file")
    assert error_text(in_file, types=["tem"], keys=["request_rate"]) == in_file.message
    no_type = InvalidRequestError("Unhandled client quota entity type: OU", explanation="too old")
    assert error_text(no_type, types=["OU"]) == "Unhandled client quota entity type: OU (too old)"
    assert error_text(no_type, types=["user", "OU"]) == (
        "Unhandled client quota entity type: OU (a comma that belongs to a name is written \\,)"
    )
    no_type = InvalidRequestError("Unhandled client quota entity type: usr", explanation="too old")
    assert error_text(no_type, types=["usr"]) == "Unhandled client quota entity type: usr (did you mean user?)"
    assert error_text(unknown, keys=["speed"], rule="speed is for cars only") == (
        "Invalid configuration key producer_byte_rat (speed is for cars only)"
    )
    denied = error_text(BrokerError(31))
    assert denied.startswith("Cluster authorization failed (CLUSTER_AUTHORIZATION_FAILED): at a proxy the user must be")
    assert error_text(BrokerError(7)) == "The request timed out. (REQUEST_TIMED_OUT)"
    assert error_text(ApiTimeoutError("no answer")) == "no answer"
