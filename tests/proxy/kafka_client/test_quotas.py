"""Alterations that cannot be sent, and what the client adds to the broker's refusals."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.proxy.kafka_client.errors import BrokerError, SettingsError
from headrace.proxy.kafka_client.quotas import QuotaAlteration, alter_call, misplaced_key, read_alterations
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, EntityTypeDefinition
from headrace.quota_callbacks.entities import QuotaEntity

IP, ALICE = QuotaEntity(ip="192.0.2.1"), QuotaEntity(user="alice")
INVALID_REQUEST = 42
NEWER = "it may need a newer version of Kafka, or, if it is a proxy, a plugin"
OURS = "no version of Kafka has this quota key (KIP-936), and a proxy has it for users"
CLIENTS_ONLY = "producer_byte_rate is for client-id or user or user with client-id only"


@pytest.mark.parametrize("value", ["fast", [1], 10**400, object()])
def test_a_value_that_is_no_number(value: Any) -> None:
    alteration = QuotaAlteration(entity=ALICE, values={"request_percentage": 5.0, "producer_byte_rate": value})
    message = r"^producer_byte_rate of user=alice = .*: expected a number, or None to remove the quota$"
    with pytest.raises(SettingsError, match=message):
        alter_call([alteration], validate_only=False)


def test_an_entity_that_is_there_twice() -> None:
    with pytest.raises(SettingsError, match="user=alice are altered 2 times in one call"):
        alter_call([QuotaAlteration(entity=ALICE), QuotaAlteration(entity=ALICE)], validate_only=False)


@pytest.mark.parametrize(
    ("entity", "key", "explanation"),
    [
        (IP, "producer_byte_rate", CLIENTS_ONLY),
        (QuotaEntity(client_id="app"), "producer_ids_rate", "producer_ids_rate is for user only"),
        (ALICE, "producer_ids_rate", OURS),  # the entity can have it, so it is not a proxy
        (ALICE, "speed", NEWER),
        (QuotaEntity.of({"team": "blue"}), "producer_byte_rate", NEWER),  # the client does not know this type
    ],
)
def test_a_key_that_the_entity_cannot_have(entity: QuotaEntity, key: str, explanation: str) -> None:
    entity_row = [{"entity_type": each, "entity_name": name} for each, name in entity.parts()]
    row = {"error_code": INVALID_REQUEST, "error_message": f"Invalid configuration key {key}", "entity": entity_row}
    alteration = QuotaAlteration(entity=entity, values={key: 1.0})
    error = read_alterations([alteration], {"entries": [row]}).errors[entity]
    assert isinstance(error, BrokerError)
    assert error.explanation.endswith(explanation)
    assert (NEWER in error.explanation) == (explanation is NEWER)


def test_only_the_key_that_is_refused_is_explained() -> None:
    keys = ["producer_byte_rate", "speed"]
    assert misplaced_key(BUILTIN_SCHEMA, "Invalid configuration key speed", IP, keys) == ""
    assert misplaced_key(BUILTIN_SCHEMA, "Invalid configuration key producer_byte_rate", IP, keys) == CLIENTS_ONLY
    assert misplaced_key(BUILTIN_SCHEMA, "Quota producer_byte_rate must be greater than 0", IP, keys) == ""
    assert misplaced_key(BUILTIN_SCHEMA, None, IP, keys) == ""


def test_entity_types_of_plugins_are_named() -> None:
    team = EntityTypeDefinition(name="team", help="A team.", keys=frozenset({"producer_byte_rate"}))
    rule = misplaced_key(
        BUILTIN_SCHEMA.extended([team]), "Invalid configuration key producer_byte_rate", IP, ["producer_byte_rate"]
    )
    assert rule == "producer_byte_rate is for client-id or team or user or user with client-id only"
