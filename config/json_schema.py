"""The JSON Schema of the configuration, for editors that check and complete TOML.

Called by the command line. Made from `schema`, so it has every key; what it cannot say (that ports must not clash,
that no limit is set twice) the loader says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from config.keys import Leaf, Tree, key_tree, section_docs
from config.schema import Config

if TYPE_CHECKING:
    from config.kinds import JsonSchema

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> JsonSchema:
    """The schema, as the values that `json` writes."""
    head: JsonSchema = {
        "$schema": DIALECT,
        "title": "headrace",
        "description": "The configuration of Headrace, a quota-enforcing proxy for Apache Kafka.",
    }
    return head | _table(key_tree(Config), ())


def json_schema_text() -> str:
    """The schema as JSON text, ending in a newline."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _table(tree: Tree, path: tuple[str, ...]) -> JsonSchema:
    properties = {
        name: _key(member) if isinstance(member, Leaf) else _section(member, (*path, name))
        for name, member in tree.items()
    }
    schema: JsonSchema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required := [name for name, member in tree.items() if _required(member)]:
        schema["required"] = required
    return schema


def _section(tree: Tree, path: tuple[str, ...]) -> JsonSchema:
    doc = section_docs(Config).get(path)
    described: JsonSchema = {} if doc is None else {"description": doc}
    return described | _table(tree, path)


def _key(leaf: Leaf) -> JsonSchema:
    kind = leaf.setting.kind
    schema = {"description": leaf.setting.doc} | kind.json_schema()
    if not leaf.required and leaf.default is not None:
        schema["default"] = kind.to_toml(leaf.default)
    return schema


def _required(member: Tree | Leaf) -> bool:
    return member.required if isinstance(member, Leaf) else any(_required(inner) for inner in member.values())
