"""`hash_order` is the order of Java's own hash maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.quotas.rules.hash_order import hash_order
from testbed.kafka.jvm import start_jvm

if TYPE_CHECKING:
    import random

ALPHABET = "ab-_AZ09 \0é\N{SNOWMAN}\N{GRINNING FACE}"


def java_order(keys: list[str], capacity: int) -> list[str]:
    table = start_jvm().java.util.HashMap(capacity)
    for key in keys:
        table.put(key, None)
    return [str(key) for key in table.keySet()]


def test_random_strings(rng: random.Random) -> None:
    for _ in range(300):
        count = rng.choice((0, 1, 2, 3, 5, 12, 13, 24, 25, 60))
        keys = ["".join(rng.choices(ALPHABET, k=rng.randint(0, 8))) for _ in range(count)]
        capacity = rng.choice((0, 1, 2, len(keys), 3 * len(keys), 16))
        distinct = list(dict.fromkeys(keys))
        assert hash_order(distinct, capacity) == java_order(keys, capacity), (keys, capacity)


def test_equal_hash_codes() -> None:
    """ "Aa" and "BB" have the same hash code: they stay in the order in which they were put."""
    for keys in (["Aa", "BB", "user"], ["BB", "user", "Aa"], ["AaAa", "BBBB", "AaBB", "BBAa"]):
        assert hash_order(keys, len(keys)) == java_order(keys, len(keys))
