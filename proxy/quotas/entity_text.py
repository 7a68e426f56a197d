"""Entities as text, the form in which stores keep them and compare them.

The text is a JSON object with the names by entity type, sorted by type, and ``null`` for the default entity, so that a
user who is called ``<default>`` is not the default. An entity has exactly one text. Characters beyond ASCII are
escaped, so that every name that Python can represent can be kept.
"""

from __future__ import annotations

import json

from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity

_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def entity_text(entity: QuotaEntity) -> str:
    """Return the text of an entity, such as ``{"client-id":null,"user":"alice"}``."""
    return _encode({each: None if name is DEFAULT else name for each, name in entity.parts()})


def parse_entity_text(text: str) -> QuotaEntity:
    """Return the entity whose text this is. Raises `ValueError` if it is not the text of an entity."""
    try:
        parts = json.loads(text)
    except RecursionError as error:
        raise ValueError("the text of an entity is nested too deeply") from error
    if not isinstance(parts, dict) or not all(name is None or isinstance(name, str) for name in parts.values()):
        raise ValueError(f"{text!r} is not a JSON object with a name or null for each entity type")
    return QuotaEntity.of({each: DEFAULT if name is None else name for each, name in parts.items()})
