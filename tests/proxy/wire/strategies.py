"""Hypothesis strategies made from Kafka's schemas: any message in any version, unknown tagged fields at each level."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from proxy.wire.schemas import Field, schema
from proxy.wire.walker import TAGS

INTEGERS = {"int8": (True, 8), "int16": (True, 16), "uint16": (False, 16), "int32": (True, 32), "int64": (True, 64)}

# 200 characters of several bytes each take more than 127 bytes: a compact length of two bytes.
STRINGS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ["", "topic-1", "häufig", "\N{SNOWMAN}" * 60]
)
BYTES = st.binary(max_size=8) | st.just(bytes(200))


def integers(kind: str) -> st.SearchStrategy[int]:
    signed, bits = INTEGERS[kind]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.integers(max(low, -1), 3)


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "bytes": BYTES,
    "records": BYTES,
    "float64": st.floats(allow_nan=False),
    "string": STRINGS,
    "uuid": st.binary(min_size=16, max_size=16),
    **{kind: integers(kind) for kind in INTEGERS},
}


@cache
def values(field: Field, *, unknown_tags: bool) -> st.SearchStrategy[Any]:
    """What a field may hold."""
    if field.kind == "struct":
        one = structs(field.fields, flexible=field.flexible, unknown_tags=unknown_tags)
    else:
        one = SCALARS[field.kind]
    strategy: st.SearchStrategy[Any] = st.lists(one, max_size=2) if field.is_array else one
    return st.none() | strategy if field.nullable else strategy


@cache
def structs(fields: tuple[Field, ...], *, flexible: bool, unknown_tags: bool) -> st.SearchStrategy[dict[str, Any]]:
    """A struct's values, all fields given."""
    given = st.fixed_dictionaries({field.name: values(field, unknown_tags=unknown_tags) for field in fields})
    if not (flexible and unknown_tags):
        return given
    # Kafka refuses a tag that it knows from another version of the message; none has as many as ten.
    unknown = st.dictionaries(st.integers(10, 300), st.binary(max_size=3), min_size=1, max_size=2)
    return st.tuples(given, st.none() | unknown).map(lambda pair: pair[0] | ({TAGS: pair[1]} if pair[1] else {}))


def messages(name: str, version: int, *, unknown_tags: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Any message of this name and version."""
    found = schema(name, version)
    return structs(found.fields, flexible=found.flexible, unknown_tags=unknown_tags)
