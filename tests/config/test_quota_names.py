"""Names of quota keys and entity types in the file, which plugins may define."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft202012Validator

from headrace.config import ConfigValueError, check_quota_names, diff, json_schema, loads
from headrace.config.loading import load_quotas
from headrace.quota_callbacks.definitions import (
    BUILTIN_SCHEMA,
    USER_AND_CLIENT_ID,
    EntityTypeDefinition,
    QuotaKeyDefinition,
    ValueType,
)
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from tests.config.documents import MINIMAL

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config import Config

BEFORE = MINIMAL.count("\n")


def check_team(name: str) -> None:
    if name != name.lower():
        raise ValueError(f"{name} is not in lower case")


def check_even(_entity: QuotaEntity, value: float) -> None:
    if value % 2:
        raise ValueError(f"{value:g} is not even")


SCHEMA = BUILTIN_SCHEMA.extended(
    [
        EntityTypeDefinition(name="team", help="A team.", keys=frozenset({"producer_byte_rate"}), check=check_team),
        QuotaKeyDefinition(
            name="request_rate",
            value_type=ValueType.LONG,
            entity_types=USER_AND_CLIENT_ID,
            help="Requests a second.",
            check=check_even,
        ),
    ]
)
BLUE = QuotaEntity(other=(("team", "blue"),))
VALID = """[[quotas]]
entity = { team = "blue" }
producer_byte_rate = "1MiB"
enforcement = "paced"

[[quotas]]
entity = { user = "alice" }
request_rate = 10
consumer_byte_rate = 5

[[quotas]]
entity = { team = "<default>" }
producer_byte_rate = 3
"""


def later(text: str) -> Config:
    """Load as the proxy does: first without the plugins, which are known only then."""
    config = loads(MINIMAL + text, "headrace.toml", schema=None)
    check_quota_names(config, SCHEMA)
    return config


def refused(text: str) -> str:
    config = loads(MINIMAL + text, "headrace.toml", schema=None)
    with pytest.raises(ConfigValueError) as caught:
        check_quota_names(config, SCHEMA)
    with pytest.raises(ConfigValueError) as at_once:
        loads(MINIMAL + text, "headrace.toml", schema=SCHEMA)
    assert str(at_once.value) == str(caught.value)
    return str(caught.value)


def test_quotas_with_names_of_plugins() -> None:
    config = later(VALID)
    assert config == loads(MINIMAL + VALID, schema=SCHEMA)
    assert config.tables_with_other_names == {}
    assert config.entity_quotas() == {
        BLUE: {"producer_byte_rate": Quota(value=2**20, policy=QuotaPolicy(mode=EnforcementMode.PACED))},
        QuotaEntity(user="alice"): {"request_rate": Quota(value=10), "consumer_byte_rate": Quota(value=5)},
        QuotaEntity(other=(("team", DEFAULT),)): {"producer_byte_rate": Quota(value=3)},
    }


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        (
            'entity = { taem = "blue" }\nproducer_byte_rate = 1',
            2,
            ".entity.taem: unknown entity type; did you mean team?",
        ),
        (
            'entity = { group = "x" }\nproducer_byte_rate = 1',
            2,
            ".entity.group: unknown entity type; known: user, client-id, ip, team",
        ),
        ('entity = { user = "a" }\nrequest_rat = 1', 3, ".request_rat: unknown key; did you mean request_rate?"),
        (
            'entity = { user = "a" }\nenforcment = "paced"\nrequest_rate = 2',
            3,
            ".enforcment: unknown key; did you mean enf",
        ),
        ('entity = { user = "a" }\nrequest_rate = 3', 3, ".request_rate = 3: 3 is not even"),
        ('entity = { user = "a" }\nrequest_rate = 2.5', 3, ".request_rate = 2.5: request_rate cannot be a fractional"),
        ('entity = { user = "a" }\nrequest_rate = true', 3, ".request_rate = true: expected a finite number above 0"),
        ('entity = { user = "a" }\nrequest_rate = "fast"', 3, '.request_rate = "fast": expected a finite number above'),
        (
            'entity = { ip = "192.0.2.1" }\nrequest_rate = 2',
            3,
            ".request_rate = 2: request_rate is for client-id or user",
        ),
        (
            'entity = { team = "blue" }\nrequest_rate = 2',
            3,
            ".request_rate = 2: request_rate is for client-id or user or",
        ),
        (
            'entity = { team = "blue", user = "a" }\nproducer_byte_rate = 2',
            3,
            ".producer_byte_rate = 2: producer_byte_rate is for client-id or team or user or user with client-id only",
        ),
        ('entity = { team = "Blue" }\nproducer_byte_rate = 2', 2, '.entity.team = "Blue": Blue is not in lower case'),
    ],
)
def test_errors_have_the_line_and_a_suggestion(lines: str, line: int, message: str) -> None:
    found = refused(f"[[quotas]]\n{lines}\n")
    assert found.startswith(f"headrace.toml:{BEFORE + line}: quotas[0]{message}")


def test_all_errors_are_reported_at_once() -> None:
    found = refused(
        '[[quotas]]\nentity = { taem = "a" }\nproducer_byte_rate = 1\n'
        '[[quotas]]\nentity = { user = "b" }\nrequest_rat = 1\nrequest_rate = 1\n'
    )
    assert [line.partition(": ")[2].partition(":")[0] for line in found.splitlines()] == [
        "quotas[0].entity.taem",
        "quotas[1].request_rat",
    ]


def test_a_quota_of_a_plugin_cannot_be_set_twice() -> None:
    table = '[[quotas]]\nentity = { user = "a" }\nrequest_rate = 2\n'
    with pytest.raises(ConfigValueError, match=r"quotas\[1\].request_rate: set twice for user=a; the first is quotas"):
        later(table * 2)


def test_probable_misspellings_are_reported_with_the_other_errors() -> None:
    """The plugins of a file with errors cannot be loaded."""
    text = (
        'log.level = "loud"\n[[quotas]]\nentity = { team = "blue" }\nproducer_byte_rat = 1\n'
        '[[quotas]]\nentity = { user = "a" }\nrequests = 1\n'
    )
    with pytest.raises(ConfigValueError) as caught:
        loads(MINIMAL + text, schema=None)
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["log.level", "quotas[0].producer_byte_rat"]


def test_a_variable_is_named_where_it_sets_the_quotas() -> None:
    variables = {"HEADRACE_QUOTAS": '[{ entity = { taem = "a" }, producer_byte_rate = 1 }]'}
    config = loads(MINIMAL, environment=variables, schema=None)
    with pytest.raises(ConfigValueError, match=r"^HEADRACE_QUOTAS.*unknown entity type; did you mean team"):
        check_quota_names(config, SCHEMA)


def test_a_reload_finds_what_changed() -> None:
    changed = VALID.replace("request_rate = 10", "request_rate = 12").replace('"1MiB"', '"2MiB"')
    changes = [str(change) for change in diff(later(VALID), later(changed)).quotas]
    assert changes == [
        "quota producer_byte_rate of team=blue: 1048576, paced -> 2097152, paced",
        "quota request_rate of user=alice: 10 -> 12",
    ]


def test_other_readers_leave_out_what_belongs_to_plugins(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(MINIMAL + VALID, encoding="utf-8")
    quotas, _ = load_quotas(file)
    assert quotas == {QuotaEntity(user="alice"): {QuotaKey.CONSUMER_BYTE_RATE: Quota(value=5)}}


def test_the_json_schema_has_the_names_of_plugins_if_they_are_known() -> None:
    assert not Draft202012Validator(json_schema()).is_valid(tomllib.loads(MINIMAL + VALID))
    validator = Draft202012Validator(json_schema(SCHEMA))
    assert validator.is_valid(tomllib.loads(MINIMAL + VALID))
    for wrong in ('request_rate = "fast"', "request_rate = 0", "request_rate = true"):
        assert not validator.is_valid(tomllib.loads(MINIMAL + VALID.replace("request_rate = 10", wrong)))
    assert not validator.is_valid(tomllib.loads(MINIMAL + VALID.replace('team = "blue"', 'team = ""')))
