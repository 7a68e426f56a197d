"""The users in memory follow the file, and remain if it fails."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.plugins.sasl_users import directory
from headrace.plugins.sasl_users.directory import UserDirectory
from headrace.plugins.sasl_users.user_file import UserFile, UserFileError
from tests.clients.fronts import eventually
from tests.plugins.sasl_users.user_files import write_users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_users(tmp_path / "users.db", alice="a", bob="b")
    return tmp_path / "users.db"


@pytest.fixture
def users(path: Path) -> Iterator[UserDirectory]:
    """The users, without the thread."""
    made = UserDirectory(str(path))
    yield made
    made.close()


def test_changes_are_read_and_nothing_else(users: UserDirectory, path: Path) -> None:
    known = users.known
    users.refresh()
    assert users.known is known
    write_users(path, carol="c")
    users.refresh()
    assert (len(known), len(users.known)) == (2, 3)
    with UserFile.open(str(path)) as file:
        file.remove(["alice", "bob", "carol"])
    users.refresh()
    assert len(users.known) == 0
    assert users.failures == 0


def test_a_replaced_file_is_read(users: UserDirectory, path: Path) -> None:
    Path(write_users(path.with_name("restored.db"), dave="d")).replace(path)
    users.refresh()
    assert len(users.known) == 1


def test_if_the_file_fails_the_users_remain_and_each_cause_is_logged_once(users: UserDirectory, path: Path) -> None:
    known, away = users.known, path.with_name("away.db")
    with capture_logs() as lines:
        path.rename(away)
        users.refresh()
        users.refresh()
        path.write_bytes(b"not SQLite" * 100)
        users.refresh()
        assert users.known is known
        assert users.failures == 3
        away.replace(path)
        users.refresh()
    assert [each["log_level"] for each in lines] == ["error", "error", "info"]
    assert "there is no such file" in lines[0]["reason"]
    assert "not a file of users" in lines[1]["reason"]
    assert len(users.known) == 2


def test_a_missing_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserFileError, match="there is no such file"):
        UserDirectory(str(tmp_path / "none.db"))


def test_a_damaged_file_is_closed_at_the_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM secrets")
    closed: list[UserFile] = []
    close = UserFile.close

    def note(file: UserFile) -> None:
        closed.append(file)
        close(file)

    monkeypatch.setattr(UserFile, "close", note)
    with pytest.raises(UserFileError, match="it is damaged"):
        UserDirectory(str(path))
    assert len(closed) == 1


REMOVING = """
import sys
from headrace.plugins.sasl_users.user_file import UserFile
with UserFile.open(sys.argv[1]) as file:
    file.remove(["bob"])
"""


def test_the_thread_reads_what_another_process_has_changed(users: UserDirectory, path: Path) -> None:
    users.start()
    subprocess.run([sys.executable, "-c", REMOVING, str(path)], check=True, timeout=60)
    eventually(lambda: len(users.known) == 1, "bob is removed")


def test_closing_ends_the_thread_at_once(users: UserDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "FOLLOW_INTERVAL_S", 3600.0)
    monkeypatch.setattr(directory, "CLOSE_DEADLINE_S", 60.0)
    users.start()
    assert any(each.name == "headrace-users" for each in threading.enumerate())
    users.close()
    users.close()
    assert not any(each.name == "headrace-users" for each in threading.enumerate())


def test_a_secret_of_kubernetes_is_followed_and_not_changed(tmp_path: Path) -> None:
    """It is mounted by links, and replaced by changing one of them."""
    folders = []
    for version, users in (("..1", {"alice": "a"}), ("..2", {"bob": "b"})):
        (tmp_path / version).mkdir()
        write_users(tmp_path / version / "users.db", **users)
        (tmp_path / version / "users.db").chmod(0o444)
        folders.append(tmp_path / version)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "users.db").symlink_to("..data/users.db")
    users_there = UserDirectory(str(tmp_path / "users.db"))
    with closing(users_there):
        assert len(users_there.known) == 1
        known = users_there.known
        users_there.refresh()
        assert users_there.known is known
        (tmp_path / "next").symlink_to("..2")
        (tmp_path / "next").rename(tmp_path / "..data")
        users_there.refresh()
        assert users_there.known is not known
        assert users_there.failures == 0
    for folder in folders:
        assert (folder / "users.db").stat().st_mode & 0o777 == 0o444
        assert [each.name for each in folder.iterdir()] == ["users.db"]


def as_of_root(look: Callable[..., os.stat_result], *path: object, **options: object) -> os.stat_result:
    """What ``look`` finds, with root as the owner, so that the test need not run as root."""
    found = list(look(*path, **options))
    found[stat.ST_UID] = 0
    return os.stat_result(found)


def test_a_file_of_root_is_read_unless_others_may_write_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for look in ("stat", "lstat"):
        monkeypatch.setattr(os, look, partial(as_of_root, getattr(os, look)))
    monkeypatch.setattr(os, "geteuid", lambda: 65532)
    path.chmod(0o440)
    with closing(UserDirectory(str(path))) as users:
        assert len(users.known) == 2
    assert path.stat().st_mode & 0o777 == 0o440
    path.chmod(0o460)
    with pytest.raises(UserFileError, match="other users may write it, which could add users: run chmod go-w on it"):
        UserDirectory(str(path))
