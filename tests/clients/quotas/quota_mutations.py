"""What the tests of ``controller_mutation_rate`` share: a broker that creates topics by itself, and two sets of quotas.

Each client id has a bucket of its own, which is full at first.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from testbed.kafka.cluster import KafkaCluster
from tests.clients.fronts import unique
from tests.clients.quotas.quota_client import THROTTLING_QUOTA_EXCEEDED, QuotaClient, has_throttle_time, is_muted_for
from tests.shared_cluster import NOT_FENCED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clients.quotas.quota_client import Answer

DEFAULT_PARTITIONS: Final = 3

QUICK: Final = """
[controller.quota.window]
num = 2
[[quotas]]
entity = { client-id = "<default>" }
controller_mutation_rate = 10
"""
"""A burst of 20; a debt is refilled at one partition per 100 ms, so that a test can wait for it."""
QUICK_BURST: Final = 20
QUICK_MS: Final = 100

SLOW: Final = """
[controller.quota.window]
num = 1000
[[quotas]]
entity = { client-id = "<default>" }
controller_mutation_rate = 0.005
"""
"""A burst of 5; refilling one partition takes 200 s, longer than a test."""
SLOW_BURST: Final = 5
SLOW_MS: Final = 200_000


@contextlib.contextmanager
def creating_cluster() -> Iterator[KafkaCluster]:
    """One broker of Kafka 4.3.1 that creates topics when it is asked about them."""
    config = {"auto.create.topics.enable": True, "num.partitions": DEFAULT_PARTITIONS, **NOT_FENCED}
    with KafkaCluster(config=config) as running:
        yield running


def names(count: int) -> list[str]:
    """Topics that no other test uses."""
    return [unique("mutation-quota") for _ in range(count)]


def check_mute(client: QuotaClient, answer: Answer, owed: int) -> None:
    """Quick: ``owed`` partitions beyond the quota give a throttle time, if the version has one, and a wait."""
    if "throttle_time_ms" in answer.message:
        assert has_throttle_time(owed * QUICK_MS, answer, answer)
    assert is_muted_for(owed * QUICK_MS, answer, client.is_read_again())


def is_left_with(client: QuotaClient, tokens: int) -> bool:
    """Slow: whether a client that has overdrawn nothing yet has so many tokens. Otherwise fails.

    The request that takes more than there is is admitted; only the next one is refused.
    """
    spare, last, late = names(3)
    if tokens:
        assert client.creates(7, (spare, tokens)).errors == {spare: 0}
    overdrawn = client.creates(7, (last, 1))
    assert (overdrawn.errors, overdrawn.throttle_ms) == ({last: 0}, 0)
    refused = client.creates(7, (late, 1))
    assert refused.errors == {late: THROTTLING_QUOTA_EXCEEDED}
    since_first = replace(overdrawn, sent_s=client.began_s)  # it is refilled since then
    return has_throttle_time(SLOW_MS, since_first, refused)
