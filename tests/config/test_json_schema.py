"""The JSON Schema accepts what the loader accepts, and refuses what it refuses as far as JSON Schema can express it."""

import json
import tomllib
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ConfigDict

from headrace.config import json_schema, json_schema_text, loads
from headrace.config.keys import keys
from headrace.config.schema import Config
from headrace.quota_callbacks.options import Table
from tests.config.cases import BAD, GOOD
from tests.config.documents import MINIMAL, with_key
from tests.config.quota_cases import BAD_QUOTAS, GOOD_ENTITIES, GOOD_LIMITS

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def valid(text: str) -> bool:
    return VALIDATOR.is_valid(tomllib.loads(text))


def node(path: tuple[str, ...]) -> Any:
    """Return the schema of a key or section, with references resolved."""
    found: Any = SCHEMA
    for step in path:
        found = found["properties"][step]
        if "$ref" in found:
            found = SCHEMA["$defs"][found["$ref"].removeprefix("#/$defs/")] | found
    return found


def test_it_is_a_schema_of_the_draft_it_names() -> None:
    schema = json.loads(json_schema_text())
    Draft202012Validator.check_schema(schema)
    assert schema == json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["upstream", "listen"]
    assert valid(MINIMAL)


def test_it_takes_what_fits() -> None:
    assert [case for case in GOOD if not valid(with_key(case.key, case.toml))] == []


def test_it_refuses_what_does_not_fit() -> None:
    assert [case for case in BAD if valid(with_key(case.key, case.toml)) is case.schema_sees] == []


def test_it_refuses_bad_quotas() -> None:
    quotas = f"{MINIMAL}[[quotas]]\n"
    assert [case for case in BAD_QUOTAS if valid(f"{quotas}{case.lines}\n") is case.schema_sees] == []


def test_it_takes_good_quotas() -> None:
    for entity, _ in GOOD_ENTITIES:
        assert valid(f"{MINIMAL}[[quotas]]\nentity = {entity}\nrequest_percentage = 1\n")
    for key, limit, _ in GOOD_LIMITS:
        assert valid(f'{MINIMAL}[[quotas]]\nentity = {{ user = "alice" }}\n{key} = {limit}\n')


@pytest.mark.parametrize(
    "text",
    [
        *("limit.x = 1", "limits.x = 1", "quota.window.size.second = 1", "drain_timeout = 1", "limits = 1"),
        *("[[limits]]", "[quotas]\nx = 1", "quotas = 1", "quotas = [1]", "[plugins.options]\nx = 1", '"" = 1'),
    ],
)
def test_it_refuses_unknown_keys_and_misshapen_sections(text: str) -> None:
    assert not valid(f"{MINIMAL}{text}\n")


@pytest.mark.parametrize("missing", range(2))
def test_it_refuses_files_that_lack_a_required_key(missing: int) -> None:
    lines = MINIMAL.splitlines(keepends=True)
    del lines[missing]
    assert not valid("".join(lines))


def test_every_key_has_its_words_and_its_default() -> None:
    defaults = loads(MINIMAL)
    for leaf in keys(Config):
        schema = node(leaf.path)
        assert schema["description"] == leaf.about.doc
        assert leaf.about.doc.endswith("."), leaf.key
        if leaf.required or leaf.default is None:
            assert "default" not in schema, leaf.key
        else:
            assert schema["default"] == leaf.file_value_in(defaults), leaf.key
            assert Draft202012Validator({"$defs": SCHEMA["$defs"]} | schema).is_valid(schema["default"]), leaf.key


def test_every_section_has_its_words() -> None:
    sections = {leaf.path[:length] for leaf in keys(Config) for length in range(1, len(leaf.path))}
    assert len(sections) > 10
    for path in sections:
        assert node(path)["description"].endswith("."), path
    assert (
        node(("controller", "quota", "window"))["description"]
        == "The window of controller_mutation_rate, which determines its burst."
    )


def test_defaults_are_written_as_in_a_file() -> None:
    assert node(("shutdown", "drain_timeout"))["default"] == "30s"
    assert node(("limits", "max_frame_bytes"))["default"] == "100MiB"
    assert node(("listen", "node_ids"))["default"] == "0-31"
    assert node(("quota", "window", "size", "seconds"))["default"] == 1


def test_the_classes_of_options_may_have_any_name_and_type() -> None:
    class Config(Table):  # as the class of the whole configuration
        x: int = 0

    class Odd(Table):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        x: object = object()

    schema = json_schema(options={"named": Config, "odd": Odd})
    validator = Draft202012Validator(schema)

    def is_valid(options: str) -> bool:
        return validator.is_valid(tomllib.loads(f"{MINIMAL}[plugins.options.{options}\n"))

    assert is_valid("named]\nx = 1")
    assert not is_valid("named]\ny = 1")
    assert is_valid("odd]\ny = 1")
