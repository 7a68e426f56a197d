"""``headrace users``: what it changes, prints and refuses."""

from __future__ import annotations

import json
import os
import sqlite3
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headrace.plugins.sasl_users import command
from headrace.plugins.sasl_users.command import MAX_PASSWORD_BYTES, users
from headrace.plugins.sasl_users.exchanges import PlainServerExchange
from headrace.plugins.sasl_users.user_file import UserFile
from headrace.proxy.sasl.plain import plain_message
from headrace.quota_callbacks.sasl import SaslRefused

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


SECRET = "secret"


class Users:
    """The command with one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, name: str, *arguments: object, stdin: str | bytes = "") -> Result:
        given = [name, *map(str, arguments), "--file", str(self.path)]
        return CliRunner().invoke(users, given, input=stdin, catch_exceptions=False)

    def add(self, name: str, *arguments: object, password: str = SECRET) -> None:
        ran = self("add", name, "--password-file", "-", *arguments, stdin=f"{password}\n")
        assert ran.exit_code == 0, ran.stderr

    def accepts(self, name: str, password: str) -> bool:
        with UserFile.open(str(self.path)) as file:
            known = file.known_users()
        try:
            return PlainServerExchange(lambda: known).respond(plain_message(name, password)).principal == name
        except SaslRefused:
            return False


@pytest.fixture
def headrace_users(tmp_path: Path) -> Users:
    return Users(tmp_path / "users.db")


def failed(ran: Result, message: str, status: int = 1) -> None:
    assert ran.exit_code == status
    assert message in ran.stderr
    assert ran.stdout == ""


def test_users_are_added_replaced_listed_and_removed(headrace_users: Users) -> None:
    ran = headrace_users("add", "alice", "--password-file", "-", stdin="first\r\n")
    assert (ran.stdout, ran.stderr) == ("added alice\n", "")
    assert headrace_users.accepts("alice", "first")
    ran = headrace_users("add", "alice", "--password-file", "-", stdin="second")
    assert ran.stdout == "replaced alice\n"
    assert not headrace_users.accepts("alice", "first")
    assert headrace_users.accepts("alice", "second")
    headrace_users.add("bob", "--mechanism", "SCRAM-SHA-512", "--iterations", 8192)
    ran = headrace_users("list")
    assert ran.stdout.splitlines() == [
        "alice: SCRAM-SHA-256 (4096 iterations), SCRAM-SHA-512 (4096 iterations)",
        "bob: SCRAM-SHA-512 (8192 iterations)",
    ]
    ran = headrace_users("remove", "alice", "bob", "alice")
    assert (ran.stdout, ran.stderr) == ("removed alice\nremoved bob\n", "")
    ran = headrace_users("list")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "headrace: the file has no users\n")
    assert headrace_users("list", "--json").stdout == "[]\n"


def test_replacing_a_user_leaves_no_mechanism_with_the_old_password(headrace_users: Users) -> None:
    headrace_users.add("alice", password="first")
    headrace_users.add("alice", "--mechanism", "SCRAM-SHA-512", password="second")
    assert "SCRAM-SHA-256" not in headrace_users("list").stdout
    assert not headrace_users.accepts("alice", "first")


def test_the_list_as_json_has_no_keys(headrace_users: Users) -> None:
    headrace_users.add("älice, the 1st")
    both = {"SCRAM-SHA-256": {"iterations": 4096}, "SCRAM-SHA-512": {"iterations": 4096}}
    assert json.loads(headrace_users("list", "--json").stdout) == [{"name": "älice, the 1st", "mechanisms": both}]


def test_two_users_with_the_same_password_have_different_salts(headrace_users: Users) -> None:
    headrace_users.add("alice")
    headrace_users.add("bob")
    with UserFile.open(str(headrace_users.path)) as file:
        found = file.verifiers()
    salts = {verifier.salt for kinds in found.values() for verifier in kinds.values()}
    assert len(salts) == 4


def test_a_password_is_read_from_a_file(headrace_users: Users, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("of a file\n")
    ran = headrace_users("add", "alice", "--password-file", tmp_path / "password")
    assert ran.stdout == "added alice\n"
    assert headrace_users.accepts("alice", "of a file")


def test_the_terminal_asks_twice_and_shows_nothing(headrace_users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "has_terminal", lambda: True)
    ran = headrace_users("add", "alice", stdin="hidden-word\nhidden-word\n")
    assert ran.stdout == "added alice\n"
    assert "Password of alice" in ran.stderr
    assert "hidden-word" not in ran.output
    assert headrace_users.accepts("alice", "hidden-word")
    ran = headrace_users("add", "bob", stdin="one\nother\n")
    assert ran.exit_code == 1
    assert "do not match" in ran.stderr
    assert not headrace_users.accepts("bob", "one")


def test_a_password_is_never_an_argument_and_without_a_terminal_nothing_is_asked(headrace_users: Users) -> None:
    failed(headrace_users("add", "alice", stdin="secret\n"), "headrace: there is no terminal to ask for the password")
    failed(headrace_users("add", "alice", "secret"), "Got unexpected extra argument", 2)
    failed(headrace_users("add", "alice", "--password", "secret"), "No such option", 2)
    assert not headrace_users.path.exists()


@pytest.mark.parametrize(
    ("password", "message"),
    [
        (b"", "the password is empty"),
        (b"\n", "the password is empty"),
        (b"a\0b", "the password contains a zero character"),
        (b"\xff", "the password on standard input is not UTF-8"),
        (b"x" * (MAX_PASSWORD_BYTES + 1) + b"\n", f"the password has more than {MAX_PASSWORD_BYTES} bytes"),
    ],
)
def test_passwords_that_are_refused(headrace_users: Users, password: bytes, message: str) -> None:
    failed(headrace_users("add", "alice", "--password-file", "-", stdin=password), message)
    assert not headrace_users.path.exists()


def test_arguments_that_are_refused(headrace_users: Users, tmp_path: Path) -> None:
    failed(headrace_users("add", "a", "--iterations", 4095), "4096<=x<=16384", 2)
    failed(headrace_users("add", "a", "--iterations", 16385), "4096<=x<=16384", 2)
    failed(headrace_users("add", "a", "--mechanism", "SCRAM-SHA-1"), "SCRAM-SHA-512", 2)
    failed(headrace_users("add", "a\nb"), "headrace: a user name has printable characters only\n")
    failed(headrace_users("add", ""), "a user name has 1 to 1024 characters, not 0")
    failed(headrace_users("add", "a", "--password-file", tmp_path / "none"), "the password file")
    failed(headrace_users("remove"), "Missing argument 'NAME...'", 2)
    assert CliRunner().invoke(users, ["list"]).exit_code == 2


def test_a_file_that_is_missing_or_something_else(headrace_users: Users) -> None:
    for arguments in (("list",), ("remove", "alice")):
        failed(headrace_users(*arguments), f"headrace: cannot use the file of users {headrace_users.path}: there is no")
    headrace_users.path.write_bytes(b"something else " * 100)
    failed(headrace_users("add", "a", "--password-file", "-", stdin="x"), "it is not a file of users")


def test_nobody_is_removed_if_one_is_unknown(headrace_users: Users) -> None:
    headrace_users.add("alice")
    failed(headrace_users("remove", "alice", "bob\x1b[2J"), r"there is no user 'bob\x1b[2J'; no user was removed")
    assert headrace_users.accepts("alice", "secret")


def test_names_with_control_characters_are_escaped(headrace_users: Users) -> None:
    """Such a name cannot be added, but the file could come from elsewhere."""
    headrace_users.add("alice")
    database = sqlite3.connect(headrace_users.path)
    database.execute("UPDATE verifiers SET name = ?", ("evil\x1b[2J",))
    database.commit()
    database.close()
    assert "\x1b" not in headrace_users("list").stdout
    assert headrace_users("list").stdout.startswith(r"evil\x1b[2J: ")


def test_the_file_is_private_whatever_the_umask_is(headrace_users: Users) -> None:
    before = os.umask(0)
    try:
        headrace_users.add("alice")
    finally:
        os.umask(before)
    assert headrace_users.path.stat().st_mode & 0o777 == 0o600
