"""The section about users of the proxy's own: its commands work, its option is the plugin's, its numbers the code's."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from headrace.plugins.sasl_client.exchanges import PASSWORD_KEPT_S
from headrace.plugins.sasl_users.command import MAX_PASSWORD_BYTES, users
from headrace.plugins.sasl_users.directory import FOLLOW_INTERVAL_S
from headrace.plugins.sasl_users.lookups import DEFAULT_ITERATIONS
from headrace.plugins.sasl_users.options import UsersOptions
from headrace.plugins.sasl_users.user_file import MAX_USERS
from headrace.proxy.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS
from headrace.proxy.sasl.scram_client import MAX_ACCEPTED_ITERATIONS
from headrace.quota_callbacks.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

TEXT = (Path(__file__).parents[3] / "docs" / "users.md").read_text(encoding="utf-8")
OWN = TEXT.split("## Users of the proxy's own\n")[1].split("\n## ")[0]
BROKERS = TEXT.split("## PLAIN and SCRAM at the brokers\n")[1].split("\n## ")[0]
FILE = "/var/lib/headrace/users.db"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", OWN, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_option_is_the_plugins() -> None:
    table: Mapping[str, object] = tomllib.loads(block("toml"))["plugins"]["options"]["sasl_users"]
    assert read_options(UsersOptions, table, "sasl_users").file == FILE
    assert set(table) == set(UsersOptions.model_fields)


def test_the_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bob").write_text("of bob\n")
    monkeypatch.setattr("headrace.plugins.sasl_users.command.has_terminal", lambda: True)
    printed = []
    for line in block("sh").splitlines():
        _, _, command = line.rpartition("headrace users ")
        arguments = command.replace(FILE, str(tmp_path / "users.db")).replace("/run/secrets/bob", str(tmp_path / "bob"))
        ran = CliRunner().invoke(
            users, shlex.split(arguments), input="secret\nsecret\n" if "alice" in line else "secret\n"
        )
        assert ran.exit_code == 0, ran.output
        printed += ran.stdout.splitlines()
    assert [each for each in printed if ":" not in each] == [
        *("added alice", "added bob", "added carol", "removed alice", "removed bob")
    ]
    assert [each.partition(":")[0] for each in printed if ":" in each] == ["alice", "bob", "carol"]


def test_the_numbers_are_the_codes() -> None:
    assert f"are {MIN_ITERATIONS:,} to {MAX_ITERATIONS:,}, as at brokers, and {DEFAULT_ITERATIONS:,} unless" in OWN
    assert f"at most {MAX_USERS:,} users, and a password at most {MAX_PASSWORD_BYTES:,} bytes" in OWN
    assert FOLLOW_INTERVAL_S <= 1 / 2
    assert PASSWORD_KEPT_S == 10
    assert f"fewer than {MIN_ITERATIONS:,} iterations or more than {MAX_ACCEPTED_ITERATIONS:,}" in BROKERS
