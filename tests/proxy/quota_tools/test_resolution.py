"""Effective quotas: Kafka's precedence, compared with the table that enforces it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.quota_tools.resolution import (
    Client,
    ResolvedQuota,
    more_specific,
    resolution_warnings,
    resolve,
    unknown_types,
)
from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.store import Snapshot
from headrace.quota_callbacks.builtin.precedence import QuotaLevels, named
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, EntityTypeDefinition, canonical_ip, entity_in_force
from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, IP, USER, EntityName, QuotaEntity, bounded_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.quota_callbacks.policies import Quota

KEY, CONNECTIONS = "producer_byte_rate", "connection_creation_rate"
LONG = "x" * 300
FEW = st.sampled_from(["a", "b b", "<default>", LONG, bounded_name(LONG), DEFAULT])
SEEN = ("a", "b b", "<default>", LONG, bounded_name(LONG), "c")
ENTITIES = st.dictionaries(st.sampled_from([USER, CLIENT_ID]), FEW, min_size=1).map(QuotaEntity.of)
DEFINITIONS = st.dictionaries(ENTITIES, st.integers(1, 10**6).map(float), max_size=8)
FORMS = ("2001:db8::1", "2001:DB8:0::1", "192.0.2.1", "::ffff:192.0.2.1", "kafka.example.com")
ADDRESSES = st.sampled_from([*FORMS, DEFAULT]).map(lambda name: QuotaEntity(ip=name))
UNSEEN = "a name that no quota has"


def put_into_force(quotas: Mapping[QuotaEntity, float], key: str) -> dict[QuotaEntity, float]:
    """What the proxy puts into force of quotas that were set while it runs."""
    in_force: dict[QuotaEntity, float] = {}

    def note(entity: QuotaEntity, _key: str, quota: Quota | None) -> None:
        assert quota is not None
        in_force[entity] = quota.value

    definitions = QuotaDefinitions(note, lambda: None)
    snapshot = Snapshot(sequence=1, quotas={entity: {key: value} for entity, value in quotas.items()})
    for _ in definitions.replace(snapshot):
        pass
    return in_force


def enforced(quotas: dict[QuotaEntity, float], user: str, client_id: str) -> tuple[float, QuotaEntity] | None:
    """The limit that the proxy enforces, with the entity as the table of precedence has it."""
    levels = QuotaLevels()
    for entity, value in put_into_force(quotas, KEY).items():
        levels.update(entity, value)
    tags = levels.tags(bounded_name(user), bounded_name(client_id))
    return None if tags is None else levels.limit(tags)


def effective(quotas: dict[QuotaEntity, float], client: Client) -> tuple[float, QuotaEntity] | None:
    found = resolve({entity: {KEY: value} for entity, value in quotas.items()}, client)
    assert all(quotas[entity] == value for quota in found for entity, value in quota.overridden)
    assert all(quotas[quota.source] == quota.value for quota in found)
    return (found[0].value, named(entity_in_force(found[0].source))) if found else None


def of_client(user: EntityName, client_id: EntityName) -> Client:
    return Client.of({USER: user, CLIENT_ID: client_id})


@given(DEFINITIONS, st.sampled_from(SEEN), st.sampled_from([*SEEN, ""]))
def test_it_is_what_is_enforced(quotas: dict[QuotaEntity, float], user: str, client_id: str) -> None:
    assert effective(quotas, of_client(user, client_id)) == enforced(quotas, user, client_id)


@given(st.dictionaries(ADDRESSES, st.integers(1, 10**6).map(float)), st.sampled_from(FORMS))
def test_addresses_in_any_form(quotas: dict[QuotaEntity, float], name: str) -> None:
    """The quota of an address is what is in force for it: the lowest of its forms, or else the default."""
    found = resolve({entity: {CONNECTIONS: value} for entity, value in quotas.items()}, Client.of({IP: name}))
    in_force = put_into_force(quotas, CONNECTIONS)
    expected = [
        in_force[each] for each in (QuotaEntity(ip=canonical_ip(name)), QuotaEntity(ip=DEFAULT)) if each in in_force
    ]
    assert [each.value for each in found] == expected[:1]
    for each in found:
        values = [each.value, *(value for _, value in each.overridden)]
        assert {entity: quotas[entity] for entity, _ in each.overridden}.items() == set(each.overridden)
        names = {each.source, *(entity for entity, _ in each.overridden)}
        assert names == {q for q in quotas if q.ip is DEFAULT or canonical_ip(str(q.ip)) == canonical_ip(name)}
        assert len(names) == len(values)


@given(DEFINITIONS, FEW, FEW)
def test_a_default_is_a_name_without_quotas_of_its_own(
    quotas: dict[QuotaEntity, float], user: EntityName, client_id: EntityName
) -> None:
    expected = enforced(
        quotas,
        UNSEEN if user is DEFAULT else str(user),
        UNSEEN if client_id is DEFAULT else str(client_id),
    )
    assert effective(quotas, of_client(user, client_id)) == expected


@given(DEFINITIONS, FEW)
def test_what_is_left_out_is_named(quotas: dict[QuotaEntity, float], user: EntityName) -> None:
    """Quotas that some client of a user has instead are those of entities that `more_specific` names."""
    client = Client.of({USER: user})
    others = more_specific({entity: {KEY: value} for entity, value in quotas.items()}, client)
    without = {entity: value for entity, value in quotas.items() if entity not in others}
    user_name = UNSEEN if user is DEFAULT else str(user)
    assert {enforced(without, user_name, each) for each in (*SEEN, UNSEEN)} == {effective(quotas, client)}


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


def test_the_lowest_of_several_forms() -> None:
    """As docs/changing-quotas.md has it; the others are overridden."""
    one, two, default = (QuotaEntity(ip=each) for each in ("2001:db8::1", "2001:DB8:0::1", DEFAULT))
    quotas = {one: {CONNECTIONS: 10.0}, default: {CONNECTIONS: 1.0}, two: {CONNECTIONS: 5.0}}
    for name in ("2001:db8::1", "2001:DB8:0::1", "2001:db8:0:0::1"):
        (found,) = resolve(quotas, Client.of({IP: name}))
        assert (found.value, found.source) == (5.0, two)
        assert found.overridden == ((one, 10.0), (default, 1.0))
    long, short = QuotaEntity(user=LONG), QuotaEntity(user=bounded_name(LONG))
    for name in (LONG, bounded_name(LONG)):
        (of_user,) = resolve({long: {KEY: 3.0}, short: {KEY: 4.0}}, Client.of({USER: name}))
        assert (of_user.source, of_user.overridden) == (long, ((short, 4.0),))
    assert more_specific(quotas, Client.of({IP: DEFAULT})) == []


def test_entities_that_would_change_nothing_are_not_named() -> None:
    """Of the many client ids that have quotas, those with keys that the user has not."""
    user, pair = QuotaEntity(user="u"), QuotaEntity(user="u", client_id="c")
    same, other = QuotaEntity(client_id="same"), QuotaEntity(client_id="other")
    quotas = {user: {KEY: 1.0}, pair: {KEY: 2.0}, same: {KEY: 3.0}, other: {"request_percentage": 4.0}}
    assert more_specific(quotas, Client(user="u")) == [pair, other]
    assert more_specific(quotas, Client(user="u", client_id="same")) == []
    assert more_specific(quotas, Client(user="v")) == [same, other]


# --- entity types of plugins ---


def matching(names: Mapping[str, str]) -> tuple[str, ...]:
    """The team of a client, by its user."""
    named = names.get("team")
    return ("blue",) if named is None and names.get(USER) == "alice" else () if named is None else (named,)


SCHEMA = BUILTIN_SCHEMA.extended(
    [
        EntityTypeDefinition(name="team", help="A team.", keys=frozenset({KEY}), matching=matching),
        EntityTypeDefinition(name="zone", help="A zone.", keys=frozenset({KEY})),
    ]
)
EXACTLY = "of {}, only quotas of exactly this name and of the default are found"
OF_PLUGINS = {
    QuotaEntity(user="alice"): {KEY: 1.0},
    QuotaEntity.of({"team": "blue"}): {KEY: 2.0},
    QuotaEntity.of({"team": DEFAULT}): {KEY: 3.0},
    QuotaEntity.of({"zone": DEFAULT}): {KEY: 4.0},
}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({USER: "alice"}, [(1.0, []), (2.0, [3.0])]),  # both are enforced
        ({USER: "bob"}, []),
        ({"team": "blue"}, [(2.0, [3.0])]),
        ({"team": "green"}, [(3.0, [])]),
        ({"team": DEFAULT}, [(3.0, [])]),
        ({"zone": "a"}, [(4.0, [])]),
        ({USER: "alice", "zone": "a"}, [(1.0, []), (2.0, [3.0]), (4.0, [])]),
    ],
)
def test_entity_types_of_plugins(parts: dict[str, EntityName], expected: list[tuple[float, list[float]]]) -> None:
    found = resolve(OF_PLUGINS, Client.of(parts), SCHEMA)
    assert [(quota.value, [value for _, value in quota.overridden]) for quota in found] == expected


@pytest.mark.parametrize(
    ("parts", "expected", "doubtful"),
    [
        ({USER: "alice"}, [1.0], ["the cluster has quotas of team, zone, which may apply, too"]),
        (
            {USER: "alice", "team": "blue"},
            [1.0, 2.0],
            [
                EXACTLY.format("team"),
                "the cluster has quotas of zone, which may apply, too",
            ],
        ),
        ({"team": DEFAULT, "zone": "a"}, [3.0, 4.0], [EXACTLY.format("team, zone")]),
        ({"tram": "blue"}, [], [EXACTLY.format("tram"), "the cluster has quotas of team, zone, which may apply, too"]),
    ],
)
def test_of_an_entity_type_that_is_not_known_the_name_and_the_default_apply(
    parts: dict[str, EntityName], expected: list[float], doubtful: list[str]
) -> None:
    client = Client.of(parts)
    assert [quota.value for quota in resolve(OF_PLUGINS, client)] == expected
    assert list(resolution_warnings(OF_PLUGINS, client)) == doubtful
    assert unknown_types(client) == sorted(parts.keys() - {USER})
    assert (unknown_types(client, SCHEMA), list(resolution_warnings(OF_PLUGINS, client, SCHEMA))) == (
        (["tram"], [EXACTLY.format("tram")]) if "tram" in parts else ([], [])
    )


def test_entities_of_plugins_are_not_more_specific() -> None:
    """They are enforced beside those of users and client ids."""
    pair = QuotaEntity(user="alice", client_id="app")
    quotas = {**OF_PLUGINS, pair: {KEY: 5.0}}
    assert more_specific(quotas, Client.of({USER: "alice", "team": "blue"})) == [pair]
