"""Alterations beyond what `test_against_kafka` compares: definitions of plugins, further checks, and what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.quotas.rules.refusals import Refusal
from headrace.proxy.quotas.rules.validation import MAX_CHANGES, refused_in_steps
from headrace.proxy.quotas.store import Alteration
from headrace.proxy.wire.client_quotas import AlterEntry, AlterRequest, AlterResult, QuotaOp
from headrace.proxy.wire.messages.stepwise import finish
from headrace.quota_callbacks.definitions import (
    BUILTIN_SCHEMA,
    USER_AND_CLIENT_ID,
    EntityTypeDefinition,
    QuotaKeyDefinition,
    ValueType,
)
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from headrace.quota_callbacks.error_codes import ErrorCode
from tests.proxy.quotas.in_one_step import alter_response, validate_entry, validate_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.proxy.wire.client_quotas import EntityPart

PRODUCE = "producer_byte_rate"


def check_team(name: str) -> None:
    if not name.islower():
        raise ValueError(f"{name} is not the name of a team")


def check_monthly(entity: QuotaEntity, value: float) -> None:
    if entity.user is DEFAULT and value > 100:
        raise ValueError(f"monthly_bytes of {entity} must be at most 100")


SCHEMA = BUILTIN_SCHEMA.extended(
    [
        QuotaKeyDefinition(
            name="monthly_bytes",
            value_type=ValueType.LONG,
            entity_types=USER_AND_CLIENT_ID | {frozenset({"team"}), frozenset({"team", "user"})},
            help="Bytes a month.",
            check=check_monthly,
        ),
        EntityTypeDefinition(name="team", help="A team.", check=check_team),
    ]
)


def entry(*parts: EntityPart, **values: float | None) -> AlterEntry:
    ops = (QuotaOp(key=key, value=value or 0.0, remove=value is None) for key, value in values.items())
    return AlterEntry(entity=parts, ops=tuple(ops))


def request(*entries: AlterEntry, validate_only: bool = False) -> AlterRequest:
    return AlterRequest(entries=entries, validate_only=validate_only)


def nothing(_entity: QuotaEntity) -> Mapping[str, float]:
    return {}


def test_an_entity_type_of_a_plugin() -> None:
    assert validate_entry(entry(("team", "blue"), monthly_bytes=5.0), SCHEMA) == Alteration(
        entity=QuotaEntity(other=(("team", "blue"),)), values={"monthly_bytes": 5.0}
    )
    beside_a_user = validate_entry(entry(("team", None), ("user", "u"), monthly_bytes=5.0), SCHEMA)
    assert beside_a_user == Alteration(
        entity=QuotaEntity(user="u", other=(("team", DEFAULT),)), values={"monthly_bytes": 5.0}
    )


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (entry(("team", "Blue"), monthly_bytes=5.0), "Blue is not the name of a team"),
        (entry(("team", ""), monthly_bytes=5.0), "Empty team not supported"),
        (entry(("team", "blue"), producer_byte_rate=5.0), "Invalid configuration key producer_byte_rate"),
        (entry(("team", "blue"), ("client-id", "c")), "Invalid quota entity combination: client-id, team"),
        (entry(("team", "blue"), ("ip", "::1")), "Invalid quota entity combination: ip, team"),
        (entry(("user", None), monthly_bytes=101.0), "monthly_bytes of user=<default> must be at most 100"),
        (entry(("user", None), monthly_bytes=101.5), "monthly_bytes cannot be a fractional value."),
        (entry(("ip", "::1"), monthly_bytes=5.0), "Invalid configuration key monthly_bytes"),
    ],
)
def test_refusals_by_the_rules_of_plugins(refused: AlterEntry, message: str) -> None:
    refusal = validate_entry(refused, SCHEMA)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.INVALID_REQUEST
    assert sorted(refusal.error_message) == sorted(message) or refusal.error_message == message


def test_a_default_name_is_not_checked() -> None:
    assert isinstance(validate_entry(entry(("team", None), monthly_bytes=5.0), SCHEMA), Alteration)


def test_a_user_called_default_is_not_the_default() -> None:
    named = validate_entry(entry(("user", "<default>"), producer_byte_rate=5.0), SCHEMA)
    default = validate_entry(entry(("user", None), producer_byte_rate=5.0), SCHEMA)
    assert isinstance(named, Alteration)
    assert isinstance(default, Alteration)
    assert named.entity == QuotaEntity(user="<default>") != default.entity == QuotaEntity(user=DEFAULT)


def test_the_store_decides_what_has_an_effect() -> None:
    """Another process may have changed a quota since this one has read it."""
    current = {QuotaEntity(user="a"): {PRODUCE: 5.0}}
    validated = validate_request(
        request(
            entry(("user", "a"), producer_byte_rate=5.0, consumer_byte_rate=6.0, unknown=None),
            entry(("user", "b"), producer_byte_rate=None),
        ),
        SCHEMA,
        lambda entity: current.get(entity, {}),
    )
    assert validated.alterations == (
        Alteration(entity=QuotaEntity(user="a"), values={PRODUCE: 5.0, "consumer_byte_rate": 6.0, "unknown": None}),
        Alteration(entity=QuotaEntity(user="b"), values={PRODUCE: None}),
    )
    assert [result.error_code for result in validated.results] == [0, 0]


def test_a_further_check() -> None:
    """A rule of the caller refuses one entry, and the others are made."""
    refusal = Refusal(error_code=ErrorCode.INVALID_REQUEST, error_message="the quota is in headrace.toml")

    def further(alteration: Alteration) -> Refusal | None:
        return refusal if alteration.entity.user == "a" else None

    asked = request(
        entry(("user", "a"), producer_byte_rate=5.0),
        entry(("user", "b"), producer_byte_rate=5.0),
        entry(("user", ""), producer_byte_rate=5.0),
    )
    validated = validate_request(asked, SCHEMA, nothing, further)
    assert [alteration.entity.user for alteration in validated.alterations] == ["b"]
    assert [result.error_message for result in validated.results] == [
        refusal.error_message,
        None,
        "Empty user not supported",
    ]


def test_a_request_that_only_validates_changes_nothing() -> None:
    validated = validate_request(
        request(entry(("user", "a"), producer_byte_rate=5.0), validate_only=True), SCHEMA, nothing
    )
    assert validated.alterations == ()
    assert [result.error_code for result in validated.results] == [0]


def test_too_many_changes_are_refused_as_a_whole() -> None:
    entries = [entry(("user", f"u{number}"), producer_byte_rate=1.0) for number in range(MAX_CHANGES + 1)]
    assert len(validate_request(request(*entries[1:]), SCHEMA, nothing).alterations) == MAX_CHANGES
    refused = validate_request(request(*entries), SCHEMA, nothing)
    assert refused.alterations == ()
    assert {result.error_code for result in refused.results} == {ErrorCode.POLICY_VIOLATION}
    assert [result.entity for result in refused.results] == [each.entity for each in entries]


def test_a_request_that_is_refused_as_a_whole() -> None:
    """Each entry is answered, with its parts as they were sent."""
    refusal = Refusal(error_code=7, error_message="The request timed out.")
    asked = request(entry(("user", "a"), ("user", "b")), entry(("user", "a"), ("user", "b")), entry())
    assert any(True for _ in refused_in_steps(asked, refusal))
    assert finish(refused_in_steps(asked, refusal)) == tuple(
        AlterResult(entity=each.entity, error_code=7, error_message="The request timed out.") for each in asked.entries
    )


TEXTS = st.text(max_size=5) | st.sampled_from(["user", "client-id", "ip", "team", "", PRODUCE, "monthly_bytes", "::1"])
ENTRIES = st.builds(
    AlterEntry,
    entity=st.lists(st.tuples(TEXTS, st.none() | TEXTS), max_size=4).map(tuple),
    ops=st.lists(st.builds(QuotaOp, key=TEXTS, value=st.floats(), remove=st.booleans()), max_size=4).map(tuple),
)


@given(st.builds(AlterRequest, entries=st.lists(ENTRIES, max_size=5).map(tuple), validate_only=st.booleans()))
def test_every_request_has_an_answer(asked: AlterRequest) -> None:
    """One row for each entity; what is altered was answered without an error, or is in the request twice."""
    validated = validate_request(asked, SCHEMA, nothing)
    alter_response(1, validated.results)
    identities = [frozenset(dict(each.entity).items()) for each in asked.entries]
    assert [frozenset(result.entity) for result in validated.results] == list(dict.fromkeys(identities))
    answered = {frozenset(result.entity): result for result in validated.results}
    for alteration in validated.alterations:
        identity = frozenset((each, None if name is DEFAULT else name) for each, name in alteration.entity.parts())
        assert answered[identity].error_code == 0 or identities.count(identity) > 1
