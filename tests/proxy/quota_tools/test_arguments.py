"""Lists of names, entity types, keys and values, as operators write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.kafka_client.quotas import ANY_NAME, QuotaFilter
from headrace.proxy.quota_tools.arguments import (
    alteration_of,
    client_of,
    filter_of,
    parse_names,
    parse_value,
    split_list,
    suggestion,
)
from headrace.proxy.quota_tools.errors import ArgumentError
from headrace.proxy.quota_tools.resolution import Client
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from tests.proxy.quota_tools.entities import NAMES, list_element


@given(st.lists(NAMES, min_size=1))
def test_every_name_can_be_written(names: list[str]) -> None:
    assert split_list(",".join(map(list_element, names))) == names
    as_options = [f"type-{number}={list_element(name)}" for number, name in enumerate(names)]
    expected = {f"type-{number}": name for number, name in enumerate(names)}
    assert parse_names(as_options) == parse_names([",".join(as_options)]) == expected


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("user=alice,client-id=app", {"user": "alice", "client-id": "app"}),
        ("user=CN=alice", {"user": "CN=alice"}),
        (r"user=CN=alice\,OU=x,client-id=app", {"user": "CN=alice,OU=x", "client-id": "app"}),
        (r"user=DOMAIN\alice", {"user": r"DOMAIN\alice"}),
        (r"user=a\\b", {"user": r"a\b"}),
        (r"user=a\\,client-id=b", {"user": "a\\", "client-id": "b"}),
        ("user=a\\", {"user": "a\\"}),
        (" user=alice", {"user": "alice"}),
        ("user= alice ", {"user": " alice "}),
        ("user=<default>", {"user": "<default>"}),
        ("team=blue", {"team": "blue"}),
        ("client-id=", {"client-id": ""}),
    ],
)
def test_names(text: str, names: dict[str, str]) -> None:
    assert parse_names([text]) == names


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("alice", r"expected TYPE=NAME, not 'alice'; a comma that belongs to a name is written \\,"),
        ("user=a,,b", "an element of 'user=a,,b' is empty"),
        ("", "an element of '' is empty"),
        ("=alice", "an entity type is missing; known: user, client-id, ip"),
        ("user=a,user=b", "user is given twice"),
    ],
)
def test_wrong_names(text: str, error: str) -> None:
    with pytest.raises(ArgumentError, match=f"^--names: {error}"):
        parse_names([text])


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("producer_byte_rate", "2MiB", 2.0 * 2**20),
        ("producer_byte_rate", "1.5 kB", 1500.0),
        ("producer_byte_rate", "1e3", 1000.0),
        ("producer_byte_rate", "9223372036854775807", 2.0**63),
        ("producer_byte_rate", "0", 0.0),
        ("producer_byte_rate", "-1", -1.0),
        ("request_percentage", "12.5", 12.5),
        ("connection_creation_rate", "10", 10.0),
        ("of_a_plugin", "3GiB", 3.0 * 2**30),
    ],
)
def test_values(key: str, text: str, value: float) -> None:
    assert parse_value(key, text) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *(
            ("producer_byte_rate", text)
            for text in ("", "fast", "nan", "inf", "1e999", "0x10", "1_000", "2mib", "0.1B")
        ),
        ("request_percentage", "2MiB"),
        ("connection_creation_rate", "2kB"),
    ],
)
def test_wrong_values(key: str, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{key} = .*: expected a number"):
        parse_value(key, text)


def test_an_alteration() -> None:
    entity, values = alteration_of(
        ["client-id=my-client"], ["user"], ["consumer_byte_rate=2000000, request_percentage=5"], ["producer_byte_rate"]
    )
    assert entity == QuotaEntity(user=DEFAULT, client_id="my-client")
    assert values == {"consumer_byte_rate": 2_000_000, "request_percentage": 5, "producer_byte_rate": None}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([], [], ["producer_byte_rate=1"], []), "no entity is given"),
        ((["user=a"], [], [], []), "nothing to alter"),
        ((["user=a"], ["user"], ["producer_byte_rate=1"], []), "user is in --names and in --defaults"),
        ((["user="], [], ["producer_byte_rate=1"], []), "the name of user is empty"),
        ((["user=a"], ["client-id=b"], ["producer_byte_rate=1"], []), "expected entity types such as user"),
        ((["user=a"], [], ["producer_byte_rate"], []), "expected KEY=VALUE"),
        ((["user=a"], [], ["producer_byte_rate=1,producer_byte_rate=2"], []), "producer_byte_rate is given twice"),
        ((["user=a"], [], [], ["producer_byte_rate=1"]), "expected quota keys"),
        ((["user=a"], [], ["x=1"], ["x"]), "x is in --add and in --delete"),
        ((["user=a,ip=192.0.2.1"], [], ["x=1"], []), "a quota entity with an ip must have no other part"),
    ],
)
def test_wrong_alterations(arguments: tuple[list[str], list[str], list[str], list[str]], error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        alteration_of(*arguments)


def test_filters() -> None:
    assert filter_of([], []) == QuotaFilter()
    assert filter_of(["user=a"], ["client-id"], strict=True) == QuotaFilter.of(
        {"user": "a", "client-id": DEFAULT}, strict=True
    )
    assert filter_of([], [], ["user,client-id"]) == QuotaFilter.of({"user": ANY_NAME, "client-id": ANY_NAME})
    with pytest.raises(ArgumentError, match="--any: user is given by another option, too"):
        filter_of(["user=a"], [], ["user"])
    with pytest.raises(ArgumentError, match="--strict needs"):
        filter_of([], [], strict=True)


def test_clients() -> None:
    assert client_of(["user=a"], []) == Client(user="a") == client_of(["user=a"], ["client-id"])
    assert client_of(["user=a,client-id="], []) == Client(user="a", client_id="")
    assert client_of(["ip=192.0.2.1"], []) == Client(ip="192.0.2.1")
    assert client_of(["team=a"], []) == Client(others={"team": "a"}, others_only=True)
    for names, error in (
        (["user="], "must not be empty"),
        (["user=a,ip=192.0.2.1"], "an ip must have no other part"),
        ([], "no entity is given"),
    ):
        with pytest.raises(ArgumentError, match=error):
            client_of(names, [])


def test_suggestions() -> None:
    assert suggestion("producer_byte_rat", BUILTIN_SCHEMA.keys) == " (did you mean producer_byte_rate?)"
    assert suggestion("producer_byte_rate", BUILTIN_SCHEMA.keys) == ""
    assert suggestion("speed", BUILTIN_SCHEMA.keys) == ""
