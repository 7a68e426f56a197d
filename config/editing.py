"""What helps to write a configuration file: the commented sample, and the JSON Schema for editors.

Called by the command line. The schema is made from `schema`, so it has every key; what it cannot say (that ports must
not clash, that no limit is set twice) the loader says. The sample is packaged beside this module, and its tests hold it
to `schema`.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from pydantic.json_schema import GenerateJsonSchema

from headrace.config.schema import Config

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

    from headrace.quota_callbacks.options import JsonSchema

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Spells defaults as a file does, and knows that TOML has no null."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        default = schema.get("default")
        if default is None:
            return inner
        spelling = schema["schema"].get("serialization", {})
        spell = spelling["function"] if spelling.get("type") == "function-plain" else self.encode_default
        return inner | {"default": spell(default)}

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 -- the key says it
        return False


def json_schema() -> JsonSchema:
    """Return the schema, as the values that `json` writes."""
    schema = Config.model_json_schema(schema_generator=_Generator)
    head: JsonSchema = {
        "$schema": DIALECT,
        "title": "headrace",
        "description": "The configuration of Headrace, a quota-enforcing proxy for Apache Kafka.",
    }
    return head | {name: value for name, value in schema.items() if name not in head}


def json_schema_text() -> str:
    """Return the schema as JSON text, ending in a newline."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def sample_text() -> str:
    """Return the sample as text: required keys are set, all others stand commented out with their defaults."""
    return (files("headrace.config") / "headrace.sample.toml").read_text(encoding="utf-8")
