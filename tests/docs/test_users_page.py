"""The page about users, where it compares who authenticates clients: its examples are whole, its tables the code's.

The sections of the plugins are tested beside the plugins.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.config.keys import keys
from headrace.config.loading import loads
from headrace.config.tables.sasl import ListenSasl, SaslMode, UpstreamIdentity, UpstreamSasl
from headrace.plugins.sasl_oauth.client_exchange import credentials_of
from headrace.plugins.sasl_oauth.options import OAuthOptions
from headrace.plugins.sasl_users.options import UsersOptions
from headrace.proxy.server.listeners import broker_identities, upstream_sasl
from headrace.proxy.server.preflight import warnings_of
from headrace.quota_callbacks.identities import UserSource
from headrace.quota_callbacks.options import read_options
from headrace.quota_callbacks.testing import make_connection
from tests.config.documents import MINIMAL

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "users.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## Who authenticates clients\n", 1)[1].split("\n## ", 1)[0]
BY_USERS, BY_TOKENS, WITH_IDENTITIES = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)


@pytest.mark.parametrize("text", [BY_USERS, BY_TOKENS, WITH_IDENTITIES], ids=["users", "tokens", "identities"])
def test_the_examples_are_complete(text: str) -> None:
    config = loads(text)
    assert config.listen.sasl.mode is SaslMode.TERMINATE
    assert config.upstream.sasl.mechanism is not None
    assert config.upstream.sasl.password is not None
    assert [*warnings_of(config)] == []


def test_the_example_of_delegation_tokens_is_complete() -> None:
    [example] = re.findall(
        r"```toml\n(.*?)```", PAGE.split("\n## Delegation tokens\n", 1)[1].split("\n## ", 1)[0], re.DOTALL
    )
    config = loads(f"{MINIMAL}{example}")
    assert config.upstream.owner_lookup.user == "headrace-tokens"
    assert [*warnings_of(config)] == []


def test_the_plugins_take_their_options() -> None:
    users = loads(BY_USERS)
    assert read_options(UsersOptions, users.plugins.options["sasl_users"], "sasl_users").file
    assert set(users.listen.sasl.mechanisms) <= {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
    tokens = loads(BY_TOKENS)
    assert read_options(OAuthOptions, tokens.plugins.options["sasl_oauth"], "sasl_oauth").enabled
    login = upstream_sasl(tokens.all_listeners()[0])
    assert login is not None
    assert credentials_of(login).scope == "kafka"


def test_users_have_identities() -> None:
    identities = broker_identities(loads(WITH_IDENTITIES).all_listeners()[0])
    assert identities is not None
    found = [identities.of(user) for user in ("alice", "etl-1", "headrace")]
    assert [None if each is None else each.user for each in found] == ["alice", "svc-etl", None]


def test_the_example_rewrites_users() -> None:
    [example] = re.findall(
        r"```python\n(.*?)```", PAGE.split("\n## Other names for users\n", 1)[1].split("\n## ")[0], re.DOTALL
    )
    found: dict[str, Any] = {}
    exec(example, found)  # noqa: S102
    plugin, connection = found["ServiceNames"](), make_connection()
    assert plugin.rewrite_user(connection, "a", UserSource.CERTIFICATE) == "svc:a"
    assert plugin.rewrite_user(connection, "a", UserSource.BROKER) is None


@pytest.mark.parametrize(
    ("table", "model"),
    [
        ("listen.sasl", ListenSasl),
        ("upstream.sasl", UpstreamSasl),
        ("[upstream.sasl.identities]", UpstreamIdentity),
    ],
)
def test_every_key_is_in_its_table(table: str, model: type[ListenSasl | UpstreamSasl | UpstreamIdentity]) -> None:
    rows = SECTION.split(f"| key of `[{table}]` |", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == [leaf.key for leaf in keys(model)]


def test_the_modes_are_those_of_the_code() -> None:
    assert re.findall(r"^\|[^|]*\| `listen\.sasl\.mode = \"(\w+)\"` \|", SECTION, re.MULTILINE) == [*SaslMode]


def test_every_log_line_is_logged() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "proxy").rglob("*.py"))
    named = ("login refused", "connection closed", "the cluster cannot be reached", "has no identity at the brokers")
    for line in (*named, "a request before the authentication"):
        assert f"`{line}`" in SECTION
        assert line in source
