"""The page about users: its options are those of the plugin, its numbers those of the code, and its example works."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace.config.tables.limits import Limits
from headrace.plugins.sasl_identity.names import MAX_JWT_CHARACTERS
from headrace.plugins.sasl_identity.options import IdentityOptions
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from headrace.quota_callbacks.options import read_options
from headrace.quota_callbacks.requests import Address, Connection

PAGE = (Path(__file__).parents[3] / "docs" / "users.md").read_text(encoding="utf-8")


def block(language: str, heading: str = "") -> str:
    """The first block of a language below a heading."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE[PAGE.index(heading) :], re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_options_on_the_page_are_the_plugins() -> None:
    table = tomllib.loads(block("toml"))["plugins"]["options"]["sasl_identity"]
    assert read_options(IdentityOptions, table, "sasl_identity") == IdentityOptions(**table)
    section = PAGE.split("\n## Options\n", 1)[1].split("\n## ", 1)[0]
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE))
    assert documented == set(table) == set(IdentityOptions.model_fields)


def test_the_numbers_on_the_page_are_the_codes() -> None:
    assert f"1 to {MAX_PRINCIPAL_CHARACTERS:,} characters" in PAGE
    assert f"up to {MAX_JWT_CHARACTERS // 1024} KiB" in PAGE
    assert f"`limits.max_handshake_bytes`, {Limits().max_handshake_bytes // 1024} KiB" in PAGE


@pytest.mark.parametrize(("host", "team"), [("192.0.2.7", "blue"), ("198.51.100.7", "red")])
def test_the_example_is_a_source_of_identities(host: str, team: str) -> None:
    namespace: dict[str, Any] = {}
    exec(block("python", "## Your own source of users"), namespace)  # noqa: S102 -- our own page
    plugin = namespace["TeamByAddress"]()
    register(new_plugin_manager(), "example", plugin)
    connection = Connection(connection_id=1, peer=Address(host=host, port=1))
    assert plugin.authentication_started(connection, "PLAIN") is None
    observer = plugin.authentication_started(connection, "GSSAPI")
    observer.exchanged(b"ticket", b"challenge")
    assert observer.principal is None
    observer.exchanged(b"answer", b"")
    assert observer.principal == team
