"""Targets: the arguments and files of the quota commands."""

from __future__ import annotations

import json
from typing import Final

from headrace.config.problems import ConfigError
from headrace.proxy.quota_tools.arguments import alteration_of, client_of, filter_of
from headrace.proxy.quota_tools.errors import ArgumentError
from headrace.proxy.quota_tools.files import parse_quotas, toml_lines, writable
from headrace.proxy.quota_tools.json_form import quotas_json
from headrace.proxy.quota_tools.text import described_lines
from headrace.quota_callbacks.entities import CLIENT_ID, ENTITY_TYPES, USER, QuotaKey
from tests.fuzzing.choices import Choices

PIECES: Final = (
    *(f"{each}=" for each in ENTITY_TYPES),
    *(f"{key}=" for key in QuotaKey),
    *(
        USER,
        CLIENT_ID,
        ",",
        "\\",
        "\\,",
        "=",
        "<default>",
        "2MiB",
        "1e400",
        "nan",
        "-1",
        " ",
        "\x1b",
        "team=",
        "192.0.2.1",
    ),
)
LINES: Final = (
    "[[quotas]]", 'entity = { user = "a" }', 'entity = { client-id = "<default>" }', 'entity = { ip = "::1" }',
    'entity = { user = { name = "<default>" } }', 'entity = { team = "a" }', "entity = {}", "entity = 1",
    "producer_byte_rate = 1", 'consumer_byte_rate = "2MiB"', "request_percentage = 0.5", "request_percentage = inf",
    "connection_creation_rate = 1", "team_rate = 1e300", 'enforcement = "paced"', "[listen]", "quotas = 1",
)  # fmt: skip
JSON_PIECES: Final = (
    '{"quotas":[', '{"entity":', '{"user":"a"}', '{"user":null}', ',"values":', '{"x":1}', '{"x":NaN}', "}", "]}", ",",
    "1", "null", '"', "[", "{",
)  # fmt: skip


def quota_arguments(data: bytes) -> None:
    """Read the arguments of describing, resolving and altering: values, or an `ArgumentError` of one line."""
    choices = Choices(data)
    lists = [_list(choices) for _ in range(4)]
    for read in (
        lambda: alteration_of(*lists),
        lambda: filter_of(*lists[:3], strict=choices.flag()),
        lambda: client_of(*lists[:2]),
    ):
        try:
            read()
        except ArgumentError as error:
            assert str(error)  # noqa: PT017


def _list(choices: Choices) -> list[str]:
    if choices.flag():
        return [choices.take(choices.byte() % 24).decode("utf-8", "surrogateescape")]
    return ["".join(choices.pick(PIECES) for _ in range(choices.byte() % 6)) for _ in range(choices.byte() % 3)]


def quota_files(data: bytes) -> None:
    """Read a file of quotas: what is read can be written as TOML and as JSON, and read again."""
    choices = Choices(data)
    text = _file(choices)
    try:
        found = parse_quotas(text, "file").quotas
    except ConfigError as error:
        assert all(str(problem) for problem in error.problems)  # noqa: PT017
        return
    assert writable(found) == (found, [])
    lines = list(toml_lines(found))
    assert all(line.isprintable() for line in (*lines, *described_lines(found)))
    assert parse_quotas("\n".join(lines), "file").quotas == found
    assert parse_quotas(json.dumps(quotas_json(found)), "file").quotas == found


def _file(choices: Choices) -> str:
    match choices.byte() % 3:
        case 0:
            return "\n".join(choices.pick(LINES) for _ in range(choices.byte() % 16))
        case 1:
            return "".join(choices.pick(JSON_PIECES) for _ in range(choices.byte() % 24))
        case _:
            return choices.rest().decode("utf-8", "replace")
