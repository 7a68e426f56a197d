"""Files of quotas: what is written is read again, and the configuration takes it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from headrace.config.loading import loads
from headrace.config.problems import ConfigError
from headrace.proxy.quota_tools.files import (
    parse_quotas,
    read_quota_file,
    refused_by_configuration,
    toml_lines,
    writable,
)
from headrace.proxy.quota_tools.json_form import quotas_json
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from tests.proxy.quota_tools.entities import QUOTAS

if TYPE_CHECKING:
    from pathlib import Path

Quotas = dict[QuotaEntity, dict[str, float]]
ALICE = QuotaEntity(user="alice")


@given(QUOTAS)
def test_toml_is_read_again(quotas: Quotas) -> None:
    text = "\n".join(toml_lines(quotas))
    assert parse_quotas(text, "x").quotas == quotas
    assert all(line.isprintable() for line in text.split("\n"))
    required = '[upstream]\nbootstrap_servers = ["127.0.0.1:9092"]\n[listen]\naddress = "127.0.0.1:9192"\n'
    of_configuration = loads(required + text).entity_quotas()
    assert {
        entity: {key: quota.value for key, quota in of.items()} for entity, of in of_configuration.items()
    } == quotas


@given(QUOTAS)
def test_json_is_read_again(quotas: Quotas) -> None:
    assert parse_quotas(json.dumps(quotas_json(quotas)), "x").quotas == quotas


def test_the_tables_are_readable() -> None:
    quotas = {
        QuotaEntity(user="alice", client_id=DEFAULT): {"producer_byte_rate": 2.0**21, "request_percentage": 12.5},
        QuotaEntity(user="<default>"): {"consumer_byte_rate": 2.0**63},
        QuotaEntity(ip="192.0.2.1"): {"connection_creation_rate": 10.0},
        QuotaEntity.of({"team.x": "blue"}): {"team_rate": 1.0},
    }
    assert "\n".join(toml_lines(quotas)) == (
        '[[quotas]]\nentity = { user = "alice", client-id = "<default>" }\n'
        "producer_byte_rate = 2097152\nrequest_percentage = 12.5\n\n"
        '[[quotas]]\nentity = { user = { name = "<default>" } }\nconsumer_byte_rate = 9223372036854775807\n\n'
        '[[quotas]]\nentity = { ip = "192.0.2.1" }\nconnection_creation_rate = 10\n\n'
        '[[quotas]]\nentity = { "team.x" = "blue" }\nteam_rate = 1'
    )
    assert parse_quotas("\n".join(toml_lines(quotas)), "x").quotas == quotas
    assert list(refused_by_configuration(quotas)) == [
        "{team.x=blue}: the configuration accepts team.x, team_rate only with the plugin that defines it"
    ]
    host = QuotaEntity(ip="kafka.example.com")
    assert list(refused_by_configuration({host: {"connection_creation_rate": 1.0}})) == [
        "{ip=kafka.example.com}: the configuration accepts addresses, but no host names"
    ]


def test_values_that_are_no_numbers_are_left_out() -> None:
    quotas = {
        ALICE: {"request_percentage": math.nan, "producer_byte_rate": 1.0},
        QuotaEntity(user="b"): {"x": math.inf},
    }
    kept, left_out = writable(quotas)
    assert kept == {ALICE: {"producer_byte_rate": 1.0}}
    assert left_out == [
        "{user=alice} request_percentage is left out: its value is nan",
        "{user=b} x is left out: its value is inf",
    ]


def test_a_configuration_file_with_sizes_and_policies() -> None:
    text = """
    [listen]
    address = "127.0.0.1:9192"
    [[quotas]]
    entity = { user = "alice" }
    producer_byte_rate = "2MiB"
    enforcement = "paced"
    burst = "1s"
    [[quotas]]
    entity = { user = "alice" }
    consumer_byte_rate = 5
    """
    found = parse_quotas(text, "x")
    assert found.quotas == {ALICE: {"producer_byte_rate": 2**21, "consumer_byte_rate": 5}}
    assert found.policies == ("burst", "enforcement")
    assert parse_quotas("", "x").quotas == {}


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("x = [", "x:1:6: not valid TOML"),
        ("quotas = 1", "x:1: quotas = 1: expected tables, each headed [[quotas]]"),
        ("[[quotas]]\nproducer_byte_rate = 1", "quotas[0].entity"),
        ("[[quotas]]\nentity = {}", "x:2: quotas[0].entity = {}: expected a user, a client-id or both"),
        ('[[quotas]]\nentity = { user = "" }', 'x:2: quotas[0].entity.user = "": expected a name, or "<default>"'),
        ('[[quotas]]\nentity = { user = "<x>" }', 'is written as a table: { name = "<x>" }'),
        ("[[quotas]]\nentity = { user = { name = 1 } }", 'expected a name, or "<default>"'),
        ('[[quotas]]\nentity = { user = "a", ip = "::1" }', "an ip must have no other part"),
        (
            '[[quotas]]\nentity = { user = "a" }\nproducer_byte_rate = "x"',
            'x:3: quotas[0].producer_byte_rate = "x": expected',
        ),
        (
            '[[quotas]]\nentity = { user = "a" }\nproducer_byte_rate = 0',
            "Quota producer_byte_rate must be greater than 0",
        ),
        ('[[quotas]]\nentity = { user = "a" }\nproducer_byte_rate = 1.5', "cannot be a fractional value"),
        ('[[quotas]]\nentity = { user = "a" }\nrequest_percentage = "2MiB"', "expected a number"),
        ('[[quotas]]\nentity = { user = "a" }\nrequest_percentage = nan', "expected a finite number"),
        ('[[quotas]]\nentity = { user = "a" }\nrequest_percentage = true', "expected a finite number"),
        ('[[quotas]]\nentity = { client-id = "a" }\nproducer_ids_rate = 1', "producer_ids_rate is for user only"),
        (
            '[[quotas]]\nentity = { user = "a" }\nx = 1\n[[quotas]]\nentity = { user = "a" }\nx = 1',
            "set twice for user=a",
        ),
        (f'[[quotas]]\nentity = {{ user = "a" }}\nx = 1{"0" * 400}', "too large"),
        ("{", "x: not valid JSON"),
        ("{}", 'x: expected an object with "quotas"'),
        ('{"quotas": [{"entity": {"user": 1}, "values": {}}]}', "quotas[0].entity.user = 1: expected a name, or null"),
        ('{"quotas": [{"entity": {"user": "a"}}]}', "quotas[0].values"),
        ('{"quotas": [{"entity": {"user": "a"}, "values": {"x": NaN}}]}', "expected a number"),
        ('{"quotas": [1]}', "quotas[0] = 1: expected a table"),
    ],
)
def test_errors(lines: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_quotas(lines, "x")
    assert error in str(caught.value)


def test_all_errors_are_reported_at_once() -> None:
    text = '[[quotas]]\nentity = {}\n\n[[quotas]]\nentity = { user = "a" }\nproducer_byte_rate = "x"\nx = "y"\n'
    with pytest.raises(ConfigError) as caught:
        parse_quotas(text, "x")
    assert [problem.line for problem in caught.value.problems] == [2, 6, 7]


def test_a_name_in_brackets_is_a_name_in_json() -> None:
    text = '{"quotas": [{"entity": {"user": "<default>", "client-id": null}, "values": {"x": 1}}]}'
    assert parse_quotas(text, "x").quotas == {QuotaEntity(user="<default>", client_id=DEFAULT): {"x": 1}}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        read_quota_file(str(tmp_path / "x"))
