"""Reading a few fields of a message gives what decoding all of it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.proxy.wire.errors import MalformedFrame, MalformedMessage
from headrace.proxy.wire.messages.codec import TAGS, decode, encode
from headrace.proxy.wire.messages.projection import project
from headrace.proxy.wire.messages.schemas import Field, schema
from tests.proxy.wire.samples import EVERY, sample

if TYPE_CHECKING:
    from random import Random


def some_paths(rng: Random, fields: tuple[Field, ...]) -> set[str]:
    """Return the paths of some fields, at any depth."""
    found: set[str] = set()
    for field in fields:
        if field.kind == "struct" and field.tag is None and not (field.nullable and not field.is_array):
            found |= {f"{field.name}.{path}" for path in some_paths(rng, field.fields)}
        elif rng.randrange(2):
            found.add(field.name)
    return found


def only(value: Any, paths: frozenset[str]) -> Any:
    """Return what is left of a decoded value with these paths."""
    if isinstance(value, list):
        return [only(each, paths) for each in value]
    if not isinstance(value, dict):
        return value
    parts: dict[str, set[str]] = {}
    for path in paths:
        first, _, rest = path.partition(".")
        parts.setdefault(first, set()).add(rest)
    return {
        name: value[name] if rests == {""} else only(value[name], frozenset(rests))
        for name, rests in parts.items()
        if name in value
    }


def without_tags(value: Any) -> Any:
    if isinstance(value, list):
        return [without_tags(each) for each in value]
    if isinstance(value, dict):
        return {name: without_tags(each) for name, each in value.items() if name != TAGS}
    return value


def test_a_projection_is_a_part_of_the_whole_message(rng: Random) -> None:
    for name, version in EVERY:
        if not name.endswith(("Request", "Response")):
            continue
        body = encode(name, version, sample(rng, name, version))
        wanted = frozenset(some_paths(rng, schema(name, version).fields))
        found = without_tags(project(name, version, body, wanted))
        assert found == without_tags(only(decode(name, version, body), wanted)), (name, version, wanted)


def test_only_rows_that_are_read_are_limited() -> None:
    name, version = "DescribeDelegationTokenResponse", 3
    renewers = [{"principal_type": "User", "principal_name": "r"}] * 10
    body = encode(name, version, {"tokens": [{"token_id": each, "renewers": renewers} for each in "ab"]})
    rows = {"tokens": [{"token_id": "a"}, {"token_id": "b"}]}
    assert project(name, version, body, frozenset({"tokens.token_id"}), max_rows=2) == rows
    with pytest.raises(MalformedFrame, match=f"a {name} has more than 1 rows"):
        project(name, version, body, frozenset({"tokens.token_id"}), max_rows=1)
    with pytest.raises(MalformedFrame, match=f"a {name} has more than 2 rows"):
        project(name, version, body, frozenset({"tokens.renewers.principal_name"}), max_rows=2)


def test_an_incomplete_message_is_malformed() -> None:
    body = encode("FetchRequest", 12, {"topics": [{"topic": "orders", "partitions": [{"partition": 1}]}]})
    for length in range(len(body)):
        with pytest.raises(MalformedMessage):
            project("FetchRequest", 12, body[:length], frozenset({"topics.topic", "replica_id"}))
