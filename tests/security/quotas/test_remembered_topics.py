"""Attacks by way of the topics that the proxy remembers or asks for, on a real proxy in front of a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.clients.quotas.quota_client import (
    THROTTLING_QUOTA_EXCEEDED,
    UNKNOWN_TOPIC_OR_PARTITION,
    Behind,
    QuotaClient,
    quota_front,
)
from tests.clients.quotas.quota_mutations import SLOW, SLOW_BURST, names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clients.fronts import Front
    from tests.shared_cluster import FirstBroker


@pytest.fixture(scope="module")
def front(kafka: FirstBroker) -> Iterator[Front]:
    with quota_front(kafka, SLOW) as made:
        yield made


def test_a_refused_creation_does_not_raise_the_cost_of_another_clients_deletion(front: Front) -> None:
    """The proxy remembers for ten seconds how many partitions a new topic has, as Metadata may not show them yet."""
    admitted, missing, existing = names(3)
    Behind(front.cluster).makes((existing, 1))
    with QuotaClient(front) as attacker, QuotaClient(front) as victim:
        assert attacker.creates(7, (admitted, SLOW_BURST + 1)).errors == {admitted: 0}
        assert attacker.creates(7, (missing, 1000)).errors == {missing: THROTTLING_QUOTA_EXCEEDED}
        assert victim.deletes(5, missing, existing).errors == {missing: UNKNOWN_TOPIC_OR_PARTITION, existing: 0}


def test_a_creation_that_is_refused_in_part(front: Front) -> None:
    admitted, missing, existing = names(3)
    Behind(front.cluster).makes((existing, 1))
    with QuotaClient(front) as attacker, QuotaClient(front) as victim:
        errors = attacker.creates(7, (admitted, SLOW_BURST + 1), (missing, 1000)).errors
        assert errors == {admitted: 0, missing: THROTTLING_QUOTA_EXCEEDED}
        assert victim.deletes(5, missing, existing).errors == {missing: UNKNOWN_TOPIC_OR_PARTITION, existing: 0}


def test_a_deletion_that_deletes_nothing_has_no_one_pay_again(front: Front) -> None:
    """A client that asks for a topic which does not come to be is charged once in ten minutes."""
    missing, own = names(2)
    with QuotaClient(front) as attacker, QuotaClient(front) as victim:
        for _ in range(SLOW_BURST + 2):
            assert victim.wants(9, missing).errors == {missing: UNKNOWN_TOPIC_OR_PARTITION}
            assert attacker.deletes(5, missing).errors == {missing: UNKNOWN_TOPIC_OR_PARTITION}
        assert victim.creates(7, (own, 1)).errors == {own: 0}


def test_a_deletion_by_name_costs_as_much_beside_one_by_id(front: Front) -> None:
    """A broker that is asked for an id ignores the names in the same request."""
    large, other = names(2)
    Behind(front.cluster).makes((large, SLOW_BURST + 1), (other, 1))
    with QuotaClient(front) as attacker:
        assert attacker.deletes(6, large, uuid4().bytes).errors[large] == 0
        assert attacker.deletes(6, other).errors == {other: THROTTLING_QUOTA_EXCEEDED}
