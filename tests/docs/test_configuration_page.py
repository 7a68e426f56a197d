"""The page about configuration: its variables set the keys that it names, and its secret is read."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

from headrace.config import loads
from headrace.config.keys import keys
from headrace.config.overrides import variable_of
from headrace.config.schema import Config
from headrace.plugins.usage_records.options import UsageOptions
from headrace.quota_callbacks.options import read_options

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_variables_are_a_whole_configuration() -> None:
    environment = dict(each.split("=", 1) for each in shlex.split(blocks("sh")[1]))
    config = loads("", environment=environment)
    assert [str(server) for server in config.upstream.bootstrap_servers] == ["kafka-1:9092", "kafka-2:9092"]
    assert str(config.listen.advertised) == "127.0.0.1:9192"
    assert not config.enforcement.enabled
    assert config.quotas[0].producer_byte_rate == 10 * 2**20
    assert config.plugins.options == {"tracing": {"enabled": True}}


def test_the_names_in_its_table_follow_the_rule() -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| `(HEADRACE_\w+)` \|$", PAGE, re.MULTILINE))
    assert len(rows) == 4
    assert rows == {key: variable_of(tuple(key.split("."))) for key in rows}
    assert len(rows.keys() & {leaf.key for leaf in keys(Config)}) == 3


def test_text_that_looks_like_a_number_is_quoted_as_it_says() -> None:
    (quoted,) = re.findall(r"needs quotes inside the variable: `(.*?)`", PAGE)
    variables = {"HEADRACE_PLUGINS__OPTIONS__USAGE_RECORDS__NAME": shlex.split(quoted)[0]}
    head = 'upstream.bootstrap_servers = ["a:1"]\nlisten.address = "h:9"\n'
    assert loads(head, environment=variables).plugins.options["usage_records"] == {"name": "123"}


def test_its_secret_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n", encoding="utf-8")
    (text,) = blocks("toml")
    table = tomllib.loads(text.replace("/run/secrets/headrace-password", str(secret)))["plugins"]["options"]
    client = read_options(UsageOptions, table["usage_records"], "usage_records").client
    assert client["sasl.password"].get_secret_value() == "hunter2"
