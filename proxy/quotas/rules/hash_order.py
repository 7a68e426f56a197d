"""The order in which Java's ``HashMap`` has strings.

A broker reads the parts of an entity, and its operations, into hash maps. Their order decides which of several errors
is reported, and is visible in responses and messages. It depends only on the strings and on the size of the map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

LOAD_FACTOR: Final = 0.75
LONGEST_KEY: Final = 249
"""Far more than any entity type and quota key has."""
_DOUBLES_THRESHOLD_FROM: Final = 16


def hash_order(keys: Collection[str], capacity: int, among: int | None = None) -> list[str]:
    """Return the distinct ``keys`` in the order of a ``HashMap`` that was created for ``capacity`` elements.

    ``keys`` are in the order in which they were put into the map. ``among`` is the number of all keys in the map, if it
    has more than these. The order is exact with two exceptions: a bucket of eight or more keys, of which ``HashMap``
    makes a tree, and keys of more than `LONGEST_KEY` characters, of which only the first are hashed to bound the time.
    """
    if len(keys) < 2:
        return list(keys)
    mask = _table_size(len(keys) if among is None else among, capacity) - 1
    return sorted(keys, key=lambda key: _spread_hash(key) & mask)  # stable, as a bucket's list


def _table_size(count: int, capacity: int) -> int:
    """Return the size of the table with ``count`` keys (``HashMap.tableSizeFor`` and ``HashMap.resize``)."""
    size = 1 << max(capacity - 1, 0).bit_length()
    threshold = int(size * LOAD_FACTOR)
    while count > threshold:
        threshold = threshold * 2 if size >= _DOUBLES_THRESHOLD_FROM else int(size * 2 * LOAD_FACTOR)
        size *= 2
    return size


def _spread_hash(text: str) -> int:
    """Return ``String.hashCode``, with its upper half mixed into the lower one, as ``HashMap.hash`` does."""
    code = 0
    for unit in memoryview(text[:LONGEST_KEY].encode("utf-16-le", "surrogatepass")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code ^ code >> 16
