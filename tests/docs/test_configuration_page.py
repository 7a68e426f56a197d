"""The page about configuration: its variables set the keys that it names, and its secret is read."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest

from headrace.config import loads
from headrace.config.keys import keys
from headrace.config.overrides import variable_of
from headrace.config.problems import ConfigError
from headrace.config.schema import Config
from headrace.plugins.sasl_client.exchanges import PASSWORD_KEPT_S
from headrace.plugins.usage_records.options import UsageOptions
from headrace.proxy.network.tls.files import MAX_FILE_BYTES
from headrace.quota_callbacks.options import LONGEST_SECRET_BYTES, read_options
from headrace.quota_callbacks.secret_sources import COMMAND_TIMEOUT_S, SecretSource
from tests.pages import blocks_of

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
blocks = partial(blocks_of, PAGE)


REQUIRED = {"HEADRACE_UPSTREAM__BOOTSTRAP_SERVERS": "a:1", "HEADRACE_LISTEN__ADDRESS": "h:9"}


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
    assert len(rows) == 5
    assert rows == {key: variable_of(tuple(key.split("."))) for key in rows}
    assert len(rows.keys() & {leaf.key for leaf in keys(Config)}) == 3


def test_every_variable_that_is_no_key_of_the_file_is_ignored() -> None:
    text = PAGE.split("are not keys of the file, and the proxy ignores them:", 1)[1].split("\n\n", 2)[1]
    named = re.findall(r"`(HEADRACE_\w+)`", text)
    assert len(named) > 5
    assert loads("", environment=REQUIRED | dict.fromkeys(named, "tcp://10.0.0.1:9192")) == loads(
        "", environment=REQUIRED
    )
    with pytest.raises(ConfigError, match="HEADRACE_XYZ"):
        loads("", environment=REQUIRED | {"HEADRACE_XYZ": "1"})


def test_text_that_looks_like_a_number_is_quoted_as_documented() -> None:
    (quoted,) = re.findall(r"needs quotes inside the variable: `(.*?)`", PAGE)
    variables = {"HEADRACE_PLUGINS__OPTIONS__USAGE_RECORDS__NAME": shlex.split(quoted)[0]}
    head = 'upstream.bootstrap_servers = ["a:1"]\nlisten.address = "h:9"\n'
    assert loads(head, environment=variables).plugins.options["usage_records"] == {"name": "123"}


def test_its_sources_of_secrets_are_taken() -> None:
    head = 'upstream.bootstrap_servers = ["a:1"]\nlisten.address = "h:9"\n'
    upstream = loads(head + blocks("toml")[0]).upstream
    assert upstream.sasl.password == SecretSource(file="/run/secrets/headrace-password")
    assert upstream.tls.key_password is not None
    assert upstream.tls.key_password.command[0] == "vault"
    kinds = re.findall(r"^\| `\{ (\w+) = .* \}` \|", PAGE, re.MULTILINE)
    assert kinds == [each.name for each in fields(SecretSource)]
    assert f"has {COMMAND_TIMEOUT_S:g} seconds" in PAGE
    assert PASSWORD_KEPT_S == 10
    assert "read again after ten seconds" in PAGE
    sizes = (LONGEST_SECRET_BYTES // 1024, MAX_FILE_BYTES // 2**20)
    assert "({} KiB for a secret, {} MiB for certificates".format(*sizes) in " ".join(PAGE.split())


def test_its_secret_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n", encoding="utf-8")
    text = blocks("toml")[1]
    table = tomllib.loads(text.replace("/run/secrets/headrace-password", str(secret)))["plugins"]["options"]
    client = read_options(UsageOptions, table["usage_records"], "usage_records").client
    assert client["sasl.password"].get_secret_value() == "hunter2"
