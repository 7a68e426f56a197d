"""Aids for writing a configuration file: the commented sample, and the JSON Schema for editors.

Called by the command line. The JSON Schema is generated from `schema`. It lacks constraints that JSON Schema cannot
express, such as conflicts between ports and limits that are set twice, which the loader checks. The sample is a file of
this package; tests compare it with `schema`.
"""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from headrace.config.quotas import add_plugin_names
from headrace.config.schema import Config
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaMode, JsonSchemaValue
    from pydantic_core import core_schema

    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.options import JsonSchema, Table

_MODE: Final = "validation"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """A writer of defaults in the form of the file. It omits null, which TOML does not have."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        default = schema.get("default")
        if default is None:
            return inner
        serialization = schema["schema"].get("serialization", {})
        is_function = serialization.get("type") == "function-plain"
        serialize = serialization["function"] if is_function else self.encode_default
        return inner | {"default": serialize(default)}

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 -- pydantic's signature
        return False


def json_schema(
    names: QuotaSchema = BUILTIN_SCHEMA, options: Mapping[str, type[Table]] = MappingProxyType({})
) -> JsonSchema:
    """Return the JSON Schema as a Python object.

    ``names`` has the quota keys and entity types that exist, ``options`` the classes of the options of plugins by name.
    A class with a type of which there is no JSON Schema is left out, so that its table may have any options.
    """
    tables = {name: table for name, table in options.items() if json_schema_problem(table) is None}
    classes: list[type[BaseModel]] = [Config, *tables.values()]
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(each, _MODE) for each in classes]
    references, described = models_json_schema(models, schema_generator=_Generator)
    definitions = copy.deepcopy(described["$defs"])
    schema = definitions.pop(_name_of(references[Config, _MODE]))
    schema["$defs"] = definitions
    add_plugin_names(definitions[_name_of(schema["properties"]["quotas"]["items"])], names)
    of_plugins = definitions[_name_of(schema["properties"]["plugins"])]["properties"]["options"]
    of_plugins["properties"] = {name: references[table, _MODE] for name, table in tables.items()}
    head: JsonSchema = {
        "$schema": DIALECT,
        "title": "headrace",
        "description": "The configuration of Headrace, a quota-enforcing proxy for Apache Kafka.",
    }
    return head | {name: value for name, value in schema.items() if name not in head}


def json_schema_problem(table: type[Table]) -> str | None:
    """Return why there is no JSON Schema of the options of a plugin, which may have any types; ``None`` if there is."""
    try:
        table.model_json_schema(schema_generator=_Generator)
    except Exception as error:  # noqa: BLE001 -- of pydantic, or of a plugin's own class; the command line prints it
        return str(error).partition("\n")[0] or type(error).__name__
    return None


def _name_of(reference: JsonSchemaValue) -> str:
    """Return the name of a definition: classes of the same name get longer ones."""
    name: str = reference["$ref"].rpartition("/")[2]
    return name


def json_schema_text(
    names: QuotaSchema = BUILTIN_SCHEMA, options: Mapping[str, type[Table]] = MappingProxyType({})
) -> str:
    """Return the JSON Schema as text that ends with a newline."""
    return json.dumps(json_schema(names, options), indent=2, ensure_ascii=False) + "\n"


def sample_text() -> str:
    """Return the text of the sample. Required keys are set; all others are commented out with their defaults."""
    return (files("headrace.config") / "headrace.sample.toml").read_text(encoding="utf-8")
