"""Effective quotas: Kafka's precedence, compared with the table that enforces it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.proxy.quota_tools.resolution import Client, ResolvedQuota, more_specific, resolve
from headrace.quota_callbacks.builtin.precedence import QuotaLevels, named
from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, USER, EntityName, QuotaEntity

KEY = "producer_byte_rate"
FEW = st.sampled_from(["a", "b b", "<default>", DEFAULT])
ENTITIES = st.dictionaries(st.sampled_from([USER, CLIENT_ID]), FEW, min_size=1).map(QuotaEntity.of)
DEFINITIONS = st.dictionaries(ENTITIES, st.integers(1, 10**6).map(float), max_size=8)
UNSEEN = "a name that no quota has"


def enforced(quotas: dict[QuotaEntity, float], user: str, client_id: str) -> tuple[float, QuotaEntity] | None:
    """The limit that the proxy enforces, with the entity as the table of precedence has it."""
    levels = QuotaLevels()
    for entity, value in quotas.items():
        levels.update(entity, value)
    tags = levels.tags(user, client_id)
    return None if tags is None else levels.limit(tags)


def effective(quotas: dict[QuotaEntity, float], client: Client) -> tuple[float, QuotaEntity] | None:
    found = resolve({entity: {KEY: value} for entity, value in quotas.items()}, client)
    assert all(quotas[entity] == value for quota in found for entity, value in quota.overridden)
    return (found[0].value, named(found[0].source)) if found else None


@settings(max_examples=300)  # of small tables, of which most levels must have been there
@given(
    DEFINITIONS, st.sampled_from(["a", "b b", "<default>", "c"]), st.sampled_from(["a", "b b", "<default>", "c", ""])
)
def test_it_is_what_is_enforced(quotas: dict[QuotaEntity, float], user: str, client_id: str) -> None:
    assert effective(quotas, Client(user=user, client_id=client_id)) == enforced(quotas, user, client_id)


@given(DEFINITIONS, FEW, FEW)
def test_a_default_is_a_name_without_quotas_of_its_own(
    quotas: dict[QuotaEntity, float], user: EntityName, client_id: EntityName
) -> None:
    expected = enforced(
        quotas,
        UNSEEN if user is DEFAULT else str(user),
        UNSEEN if client_id is DEFAULT else str(client_id),
    )
    assert effective(quotas, Client(user=user, client_id=client_id)) == expected


@given(DEFINITIONS, FEW)
def test_what_is_left_out_is_named(quotas: dict[QuotaEntity, float], user: EntityName) -> None:
    """Quotas that some client of a user has instead are those of entities that `more_specific` names."""
    client = Client(user=user)
    others = more_specific({entity: {KEY: value} for entity, value in quotas.items()}, client)
    without = {entity: value for entity, value in quotas.items() if entity not in others}
    user_name = UNSEEN if user is DEFAULT else str(user)
    assert {enforced(without, user_name, each) for each in ("a", "b b", "<default>", UNSEEN)} == {
        effective(quotas, client)
    }


def test_the_levels_in_order() -> None:
    entities = [
        QuotaEntity(user=user, client_id=client_id)
        for user, client_id in [
            *(("u", "c"), ("u", DEFAULT), ("u", None), (DEFAULT, "c"), (DEFAULT, DEFAULT), (DEFAULT, None)),
            *((None, "c"), (None, DEFAULT)),
        ]
    ]
    quotas = {entity: {KEY: float(value)} for value, entity in enumerate(entities, start=1)}
    pairs = [(entity, quotas[entity][KEY]) for entity in entities]
    others = {QuotaEntity(user="v"): {KEY: 9.0}, QuotaEntity.of({"team": "u"}): {KEY: 9.0}}
    while pairs:
        (source, value), *overridden = pairs
        expected = ResolvedQuota(key=KEY, value=value, source=source, overridden=tuple(overridden))
        assert resolve({**dict(reversed(quotas.items())), **others}, Client(user="u", client_id="c")) == [expected]
        pairs.pop(0)
        del quotas[source]
    assert resolve(others, Client(user="u", client_id="c")) == []


def test_keys_come_from_different_entities() -> None:
    quotas = {
        QuotaEntity(user="u"): {"request_percentage": 50.0},
        QuotaEntity(client_id="c"): {KEY: 7.0, "request_percentage": 60.0},
    }
    found = resolve(quotas, Client(user="u", client_id="c"))
    assert [(each.key, each.value, each.source) for each in found] == [
        (KEY, 7.0, QuotaEntity(client_id="c")),
        ("request_percentage", 50.0, QuotaEntity(user="u")),
    ]
    assert found[1].overridden == ((QuotaEntity(client_id="c"), 60.0),)


def test_addresses_in_any_spelling() -> None:
    key = "connection_creation_rate"
    mapped, default, host = (QuotaEntity(ip=each) for each in ("::ffff:192.0.2.1", DEFAULT, "kafka.example.com"))
    quotas = {default: {key: 1.0}, mapped: {key: 2.0}, host: {key: 3.0}, QuotaEntity(user="192.0.2.1"): {key: 4.0}}
    for name, source in (
        ("192.0.2.1", mapped),
        ("192.0.2.2", default),
        ("kafka.example.com", host),
        (DEFAULT, default),
    ):
        (found,) = resolve(quotas, Client(ip=name))
        assert found.source == source, name
    assert more_specific(quotas, Client(ip=DEFAULT)) == []


def test_entities_that_would_change_nothing_are_not_named() -> None:
    """Of the many client ids that have quotas, those with keys that the user has not."""
    user, pair = QuotaEntity(user="u"), QuotaEntity(user="u", client_id="c")
    same, other = QuotaEntity(client_id="same"), QuotaEntity(client_id="other")
    quotas = {user: {KEY: 1.0}, pair: {KEY: 2.0}, same: {KEY: 3.0}, other: {"request_percentage": 4.0}}
    assert more_specific(quotas, Client(user="u")) == [pair, other]
    assert more_specific(quotas, Client(user="u", client_id="same")) == []
    assert more_specific(quotas, Client(user="v")) == [same, other]
