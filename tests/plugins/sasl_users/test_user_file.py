"""The file of users: permissions, transactions, several processes, and files that are something else."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.plugins.sasl_users import user_file
from headrace.plugins.sasl_users.user_file import UserFile, UserFileError
from headrace.proxy.sasl.scram import ScramMechanism
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from tests.plugins.sasl_users.user_files import verifiers, write_users

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = verifiers("secret")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write_users(tmp_path / "users.db", alice="a", bob="b")


def names(path: str) -> list[str]:
    with UserFile.open(path) as file:
        return list(file.verifiers())


def mode(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_users_are_stored_replaced_and_removed(path: str) -> None:
    with UserFile.open(path) as file:
        assert file.put("älice, the 1st", SECRET)
        only = {ScramMechanism.SHA_512: SECRET[ScramMechanism.SHA_512]}
        assert not file.put("bob", only)
        assert file.verifiers() == {"alice": verifiers("a"), "bob": only, "älice, the 1st": SECRET}
        file.remove(["alice", "bob", "bob"])
    assert names(path) == ["älice, the 1st"]


def test_all_are_removed_or_none(path: str) -> None:
    with UserFile.open(path) as file:
        with pytest.raises(UserFileError, match=r"there is no user 'carol', 'dave'; no user was removed"):
            file.remove(["alice", "carol", "dave"])
        assert list(file.verifiers()) == ["alice", "bob"]


def test_only_the_owner_can_read_it_and_a_wrong_mode_is_corrected(path: str) -> None:
    assert mode(path) == 0o600
    Path(path).chmod(0o644)
    assert names(path) == ["alice", "bob"]
    assert mode(path) == 0o600


def test_a_dry_look_changes_nothing(path: str) -> None:
    Path(path).chmod(0o644)
    with UserFile.open(path, dry=True) as file:
        assert len(file.known_users()) == 2
    assert mode(path) == 0o644


def test_the_file_has_no_password(tmp_path: Path) -> None:
    path = write_users(tmp_path / "users.db", alice="hidden-word")
    content = (tmp_path / "users.db").read_bytes()
    assert b"alice" in content
    assert b"hidden-word" not in content
    with UserFile.open(path) as file:
        assert "stored_key" not in repr(file.verifiers())


def test_unknown_names_keep_their_salt_for_the_life_of_the_file(path: str, tmp_path: Path) -> None:
    def salt(of: str) -> bytes:
        with UserFile.open(of) as file:
            return file.known_users().scram_verifier(ScramMechanism.SHA_256, "unknown").salt

    assert salt(path) == salt(path)
    assert salt(path) != salt(write_users(tmp_path / "other.db"))


def test_a_change_of_another_is_noticed_and_so_is_another_file(path: str, tmp_path: Path) -> None:
    with UserFile.open(path) as file, UserFile.open(path) as other:
        before = file.version()
        assert file.version() == before
        other.put("carol", SECRET)
        assert file.version() != before
        assert not file.is_replaced()
        Path(write_users(tmp_path / "new.db")).replace(path)
        assert file.is_replaced()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", f"1 to {MAX_PRINCIPAL_CHARACTERS} characters, not 0"),
        ("x" * (MAX_PRINCIPAL_CHARACTERS + 1), "characters, not 1025"),
        ("a\0b", "printable characters only"),
        ("a\nb", "printable characters only"),
        ("\ud800", "printable characters only"),
    ],
)
def test_names_that_nobody_can_have(path: str, name: str, reason: str) -> None:
    with UserFile.open(path) as file, pytest.raises(UserFileError, match=reason):
        file.put(name, SECRET)


def test_a_file_has_a_maximum_of_users(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_file, "MAX_USERS", 2)
    with UserFile.open(path) as file:
        assert not file.put("bob", SECRET)
        with pytest.raises(UserFileError, match="has 2 users, which is the maximum"):
            file.put("carol", SECRET)
        assert list(file.verifiers()) == ["alice", "bob"]


def not_sqlite(path: Path) -> None:
    path.write_bytes(b"something else, which is long enough to be looked at as a database" * 20)


def of_another_program(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE theirs (x)")
    database.close()


def of_a_newer_release(path: Path) -> None:
    database = sqlite3.connect(write_users(path))
    database.execute("PRAGMA user_version = 2")
    database.close()


def with_a_row_changed(path: Path) -> None:
    database = sqlite3.connect(write_users(path, alice="a"))
    database.execute("UPDATE verifiers SET iterations = 1")
    database.commit()
    database.close()


def without_a_key(path: Path) -> None:
    database = sqlite3.connect(write_users(path, alice="a"))
    database.execute("DELETE FROM secrets")
    database.commit()
    database.close()


def a_link(path: Path) -> None:
    path.symlink_to(write_users(path.with_suffix(".target")))


BROKEN: dict[Callable[[Path], object], str] = {
    lambda path: None: r"users\.db: there is no such file: create it by headrace users add",
    lambda path: path.mkdir(): "is a directory",
    lambda path: path.touch(): "it is not a file of users",
    not_sqlite: "it is not a file of users",
    of_another_program: "it is not a file of users",
    of_a_newer_release: "its schema has version 2, and this release reads version 1",
    with_a_row_changed: "it is damaged: the row of the user 'alice' is not valid",
    without_a_key: "it is damaged: it has no valid key",
    a_link: "is a symbolic link, which is not followed",
}


@pytest.mark.parametrize("make", BROKEN, ids=range(len(BROKEN)))
def test_files_that_cannot_be_used(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "users.db")
    with pytest.raises(UserFileError, match=BROKEN[make]), UserFile.open(str(tmp_path / "users.db")) as file:
        file.known_users()


def test_another_programs_file_is_not_changed_by_adding(tmp_path: Path) -> None:
    of_another_program(tmp_path / "users.db")
    before = (tmp_path / "users.db").read_bytes()
    with pytest.raises(UserFileError, match="it is not a file of users"):
        UserFile.open(str(tmp_path / "users.db"), create=True)
    assert (tmp_path / "users.db").read_bytes() == before


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserFileError, match=f"no folder {tmp_path}/none"):
        UserFile.open(f"{tmp_path}/none/users.db", create=True)


def test_a_lock_of_another_process_is_an_error_after_a_while(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_file, "LOCK_WAIT_S", 0.05)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserFileError, match=r"another process has locked it for more than 0.05 s"):
        UserFile.open(path)
    database.close()


ADDING = """
import sys
from tests.plugins.sasl_users.user_files import verifiers
from headrace.plugins.sasl_users.user_file import UserFile
path, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
secret = verifiers("secret")
for number in range(count):
    with UserFile.open(path, create=True) as file:
        file.put(f"{first}-{number}", secret)
        if number % 2:
            file.remove([f"{first}-{number}"])
"""


def test_two_processes_create_the_file_and_change_it_at_once(tmp_path: Path) -> None:
    """A third, this one, reads meanwhile: it never sees half of a change."""
    path = str(tmp_path / "users.db")
    writers = [
        subprocess.Popen([sys.executable, "-c", ADDING, path, first, "30"], stderr=subprocess.PIPE, text=True)
        for first in ("one", "two")
    ]
    try:
        while any(each.poll() is None for each in writers):
            try:
                with UserFile.open(path) as file:
                    assert all(len(each) == 2 for each in file.verifiers().values())
            except UserFileError as error:
                assert "there is no such file" in str(error) or "it is not a file of users" in str(error)  # noqa: PT017
        assert [each.communicate(timeout=60)[1] for each in writers] == ["", ""]
    finally:
        for each in writers:
            each.kill()
            each.wait()
    assert sorted(names(path)) == sorted(f"{first}-{number}" for first in ("one", "two") for number in range(0, 30, 2))
