"""Definitions of quota keys and entity types: the built-in ones, those of plugins, and their values."""

from __future__ import annotations

import ipaddress
import math

import pytest

from headrace.quota_callbacks.definitions import (
    BUILTIN_SCHEMA,
    CONNECTION_CREATION_RATE,
    USER_AND_CLIENT_ID,
    EntityTypeDefinition,
    QuotaKeyDefinition,
    QuotaSchema,
    ValueType,
    ip_address,
)
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
LARGE = 10**400


def key_of(*combinations: frozenset[str], name: str = "a_key", unit: str = "") -> QuotaKeyDefinition:
    return QuotaKeyDefinition(
        name=name, value_type=ValueType.DOUBLE, entity_types=frozenset(combinations), help="A key.", unit=unit
    )


def test_every_quota_key_is_defined() -> None:
    assert [*BUILTIN_SCHEMA.keys] == [*(key.value for key in QuotaKey), CONNECTION_CREATION_RATE]
    assert [name for name, key in BUILTIN_SCHEMA.keys.items() if key.integral] == [
        "producer_byte_rate",
        "consumer_byte_rate",
        CONNECTION_CREATION_RATE,
    ]


def test_keys_by_entity() -> None:
    user, client, ip = frozenset({"user"}), frozenset({"client-id"}), frozenset({"ip"})
    assert [*BUILTIN_SCHEMA.keys_of(user)] == [key.value for key in QuotaKey]
    assert {*BUILTIN_SCHEMA.keys_of(user)} - {*BUILTIN_SCHEMA.keys_of(client)} == {QuotaKey.PRODUCER_IDS_RATE.value}
    assert BUILTIN_SCHEMA.keys_of(client) == BUILTIN_SCHEMA.keys_of(user | client)
    assert [*BUILTIN_SCHEMA.keys_of(ip)] == [CONNECTION_CREATION_RATE]
    for impossible in (frozenset[str](), ip | user, frozenset({"team"})):
        assert not BUILTIN_SCHEMA.keys_of(impossible)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (PRODUCE, 0, "Quota producer_byte_rate must be greater than 0"),
        (PRODUCE, -math.inf, "Quota producer_byte_rate must be greater than 0"),
        (PRODUCE, math.nan, "Quota producer_byte_rate must be a finite number"),
        (PRODUCE, 2.245, "producer_byte_rate cannot be a fractional value."),
        (PRODUCE, 1.9999999, "producer_byte_rate cannot be a fractional value."),
        (PRODUCE, 3.7e19, "Proposed value for producer_byte_rate is too large for a LONG."),
        (PRODUCE, math.inf, "Proposed value for producer_byte_rate is too large for a LONG."),
        (PRODUCE, 2**63, "Proposed value for producer_byte_rate is too large for a LONG."),
        (PRODUCE, LARGE, "Proposed value for producer_byte_rate is too large for a LONG."),
        (QuotaKey.REQUEST_PERCENTAGE, math.inf, "Quota request_percentage must be a finite number"),
        (CONNECTION_CREATION_RATE, 2**31, "Proposed value for connection_creation_rate is too large for an INT."),
        (CONNECTION_CREATION_RATE, 0.5, "connection_creation_rate cannot be a fractional value."),
    ],
)
def test_values_that_are_refused(key: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        BUILTIN_SCHEMA.check(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (PRODUCE, 1),
        (PRODUCE, 2.0000001),
        (PRODUCE, 2**63 - 1),
        (PRODUCE, 2.0**63),
        (QuotaKey.REQUEST_PERCENTAGE, 5e-324),
        (QuotaKey.CONTROLLER_MUTATION_RATE, 1e300),
        (CONNECTION_CREATION_RATE, 2**31 - 1),
    ],
)
def test_values_that_are_valid(key: str, value: float) -> None:
    BUILTIN_SCHEMA.check(key, value)


def test_an_int_that_no_double_can_hold() -> None:
    with pytest.raises(OverflowError):
        BUILTIN_SCHEMA.check(QuotaKey.REQUEST_PERCENTAGE, LARGE)


def test_an_entity_that_cannot_have_the_key() -> None:
    BUILTIN_SCHEMA.check(QuotaKey.PRODUCER_IDS_RATE, 1, QuotaEntity(user=DEFAULT))
    for entity in (QuotaEntity(client_id="c"), QuotaEntity(user="u", client_id="c")):
        with pytest.raises(ValueError, match=f"^producer_ids_rate is for user only, not for {entity}$"):
            BUILTIN_SCHEMA.check(QuotaKey.PRODUCER_IDS_RATE, 1, entity)
    rule = "^producer_byte_rate is for client-id or user or user with client-id only, not for ip=::1$"
    with pytest.raises(ValueError, match=rule):
        BUILTIN_SCHEMA.check(PRODUCE, 1, QuotaEntity(ip="::1"))


def test_a_plugin_adds_definitions() -> None:
    team = EntityTypeDefinition(name="team", help="A team.")
    key = key_of(frozenset({"team"}), frozenset({"team", "user"}))
    schema = BUILTIN_SCHEMA.extended([key, team])
    assert schema.keys["a_key"] is key
    assert schema.entity_types["team"] is team
    assert [*schema.keys_of(frozenset({"user", "team"}))] == ["a_key"]
    assert "team" not in BUILTIN_SCHEMA.entity_types, "a schema does not change"
    with pytest.raises(ValueError, match=r"^a_key is for team or user with team only, not for user=u$"):
        schema.check("a_key", 1.0, QuotaEntity(user="u"))


def test_a_check_of_a_plugin() -> None:
    def check(entity: QuotaEntity, value: float) -> None:
        if value > 10:
            raise ValueError(f"too much for {entity}")

    key = QuotaKeyDefinition(
        name="a_key", value_type=ValueType.DOUBLE, entity_types=USER_AND_CLIENT_ID, help="A key.", check=check
    )
    schema = BUILTIN_SCHEMA.extended([key])
    schema.check("a_key", 10.0, QuotaEntity(user="u"))
    with pytest.raises(ValueError, match=r"^too much for user=u$"):
        schema.check("a_key", 10.5, QuotaEntity(user="u"))


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (key_of(frozenset({"user"}), name="producer_byte_rate"), "the quota key producer_byte_rate is defined twice"),
        (EntityTypeDefinition(name="ip", help="."), "the entity type ip is defined twice"),
        (EntityTypeDefinition(name="", help="."), "the entity type '' must be a letter and up to 63"),
        (EntityTypeDefinition(name="a\nb", help="."), r"the entity type 'a\\nb' must be a letter and up to 63"),
        (
            key_of(frozenset({"user"}), unit="a\nb"),
            "the unit of the quota key .* must have at most 32 printable characters",
        ),
        (key_of(frozenset({"user"}), unit="u" * 33), "the unit of the quota key .* must have at most 32"),
        (key_of(frozenset({"user"}), name="k" * 65), "the quota key 'k+' must be a letter and up to 63"),
        (key_of(), "the quota key a_key must apply to at least one entity type"),
        (key_of(frozenset()), "the quota key a_key must apply to at least one entity type"),
        (key_of(frozenset({"topic"})), "the quota key a_key applies to an unknown entity type 'topic'"),
        (key_of(frozenset({"ip", "user"})), "the quota key a_key applies to an ip with another part"),
    ],
)
def test_definitions_that_are_refused(definition: QuotaKeyDefinition | EntityTypeDefinition, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        BUILTIN_SCHEMA.extended([definition])


def test_an_empty_schema() -> None:
    assert not QuotaSchema().keys
    assert not QuotaSchema().entity_types


def test_names_of_the_same_address() -> None:
    assert ip_address("192.0.2.1") == ip_address("::ffff:192.0.2.1") == ipaddress.IPv4Address("192.0.2.1")
    assert ip_address("2001:db8::1") == ip_address("2001:0DB8:0:0:0:0:0:1")


@pytest.mark.parametrize("name", ["localhost", "127.1", "010.0.0.1", "[::1]", "fe80::1%1", "::1/64", "", "1" * 40_000])
def test_names_that_are_no_addresses(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not a valid IP or resolvable host\.$"):
        ip_address(name)
