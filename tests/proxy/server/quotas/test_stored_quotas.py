"""What a store that others can write to must not put into force."""

import pytest

from headrace.proxy.server.quotas.quotas_in_force import check_stored
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import QuotaEntity

ALICE = QuotaEntity(user="alice")


def test_what_alter_client_quotas_accepts_is_accepted() -> None:
    check_stored(BUILTIN_SCHEMA, ALICE, "producer_byte_rate", 1024.0)
    check_stored(BUILTIN_SCHEMA, QuotaEntity(ip="192.0.2.1"), "connection_creation_rate", 7.0)


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (ALICE, "nonsense", 1.0),
        (QuotaEntity(user="x" * 32_768), "producer_byte_rate", 1.0),
        (QuotaEntity(user="\ud800"), "producer_byte_rate", 1.0),
        (QuotaEntity(ip="kafka.example.com"), "connection_creation_rate", 1.0),
        (QuotaEntity(other=(("team", "a"),)), "producer_byte_rate", 1.0),
        (ALICE, "producer_byte_rate", 0.0),
        (ALICE, "producer_byte_rate", -1.0),
        (ALICE, "producer_byte_rate", float("inf")),
        (ALICE, "producer_byte_rate", 1.5),
        (QuotaEntity(user="a", client_id="b"), "producer_ids_rate", 1.0),
    ],
)
def test_what_it_refuses_is_refused(entity: QuotaEntity, key: str, value: float) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_stored(BUILTIN_SCHEMA, entity, key, value)
