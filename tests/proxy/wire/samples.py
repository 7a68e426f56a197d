"""Random messages built from Kafka's schemas: any message in any version, with unknown tagged fields at each level.

A test takes its numbers from the fixture `rng`, or from Hypothesis (``st.randoms(use_true_random=False)``), which then
looks for a small example of a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hypothesis import HealthCheck, settings

from headrace.proxy.wire.messages.codec import TAGS
from headrace.proxy.wire.messages.schemas import Field, message_names, schema, versions

if TYPE_CHECKING:
    from random import Random

EVERY: Final = [(name, version) for name in message_names() for version in versions(name)]
"""Every message in every version."""
LATEST: Final = [(name, versions(name).stop - 1) for name in message_names()]
LONG: Final = settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck), database=None)
"""Number of examples in the exhaustive tests, for each message in each version."""

INTEGERS: Final = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
# 200 characters of several bytes each take more than 127 bytes: a compact length of two bytes.
STRINGS: Final = ("", "topic-1", "häufig", "\N{SNOWMAN}" * 60)
ALPHABET: Final = "aZ09-_. \0ß€\N{SNOWMAN}\N{GRINNING FACE}"
FLOATS: Final = (0.0, -0.0, 0.5, -1.5, 1e300, 5e-324, float("inf"), float("-inf"))


def sample(rng: Random, name: str, version: int, *, unknown_tags: bool = True) -> dict[str, Any]:
    """Return any message of this name and version, with all its fields."""
    found = schema(name, version)
    return _struct(rng, found.fields, flexible=found.flexible, unknown_tags=unknown_tags)


def sample_field(rng: Random, field: Field, *, unknown_tags: bool = True) -> Any:
    """Return a random valid value of a field."""
    if field.nullable and rng.randrange(4) == 0:
        return None
    if not field.is_array:
        return sample_element(rng, field, unknown_tags=unknown_tags)
    return [sample_element(rng, field, unknown_tags=unknown_tags) for _ in range(rng.randrange(3))]


def sample_element(rng: Random, field: Field, *, unknown_tags: bool = True) -> Any:
    """Return a row of an array, or a value of a field that is not an array; not null."""
    if field.kind == "struct":
        return _struct(rng, field.fields, flexible=field.flexible, unknown_tags=unknown_tags)
    return _scalar(rng, field.kind)


def _struct(rng: Random, fields: tuple[Field, ...], *, flexible: bool, unknown_tags: bool) -> dict[str, Any]:
    values = {field.name: sample_field(rng, field, unknown_tags=unknown_tags) for field in fields}
    if flexible and unknown_tags and rng.randrange(2):
        # Kafka rejects a tag that another version of the message defines; no message has tags of 10 or more.
        values[TAGS] = {rng.randint(10, 300): _bytes(rng, 3) for _ in range(rng.randint(1, 2))}
    return values


def _scalar(rng: Random, kind: str) -> Any:
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        return rng.randint(low, high) if rng.randrange(2) else rng.randint(max(low, -1), 3)
    if kind == "bool":
        return bool(rng.randrange(2))
    if kind == "string":
        return rng.choice((*STRINGS, "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(7)))))
    if kind == "uuid":
        return rng.randbytes(16)
    if kind == "float64":
        return rng.choice((*FLOATS, rng.uniform(-1e6, 1e6)))
    assert kind in ("bytes", "records"), kind
    return bytes(200) if rng.randrange(4) == 0 else _bytes(rng, 8)


def _bytes(rng: Random, most: int) -> bytes:
    return bytes(rng.randrange(256) for _ in range(rng.randint(0, most)))
