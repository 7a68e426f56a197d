"""The admin server's Unix socket: which files are replaced, and which never are."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from headrace.config.tables.admin import UnixPath
from headrace.proxy.admin.listening import bind_admin
from headrace.proxy.errors import StartupError

if TYPE_CHECKING:
    from pathlib import Path


def refusal(path: Path) -> str:
    with pytest.raises(StartupError) as caught:
        bind_admin(UnixPath(path=str(path)))
    assert f"cannot listen on unix:{path} for the admin server: " in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_owner_may_connect_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "admin.sock"
    before = os.umask(umask)
    try:
        bound = bind_admin(UnixPath(path=str(path)))
    finally:
        os.umask(before)
    with bound.sock:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_socket_that_nobody_serves_is_replaced_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    bind_admin(UnixPath(path=str(path))).sock.close()
    assert path.is_socket()
    bound = bind_admin(UnixPath(path=str(path)))
    with bound.sock, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    bound.remove_file()
    assert not path.exists()


def test_a_socket_that_replaced_ones_own_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    first = bind_admin(UnixPath(path=str(path)))
    first.sock.close()
    path.rename(tmp_path / "kept")  # so that its inode is not used again
    with bind_admin(UnixPath(path=str(path))).sock:
        first.remove_file()
        assert path.is_socket()


def test_a_socket_that_is_served_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with bind_admin(UnixPath(path=str(path))).sock as first:
        assert "another process listens on it" in refusal(path)
        first.listen(0)
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):  # the backlog is full with the first attempt to bind
                client.connect(str(path))
        assert "another process listens on it" in refusal(path)
    assert path.is_socket()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    file, folder, link, fifo = (tmp_path / name for name in ("file", "folder", "link", "fifo"))
    file.write_text("precious")
    folder.mkdir()
    link.symlink_to(file)
    os.mkfifo(fifo)
    for path in (file, folder, link, fifo):
        assert "there is a file that is not a socket" in refusal(path)
    assert file.read_text() == "precious"
    assert link.is_symlink()
    assert fifo.exists()


def test_a_socket_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "admin.sock"
    bind_admin(UnixPath(path=str(path))).sock.close()
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert f"there is a socket of user id {os.getuid()}" in refusal(path)
    assert path.is_socket()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    assert "no such file or directory; create its folder" in refusal(tmp_path / "missing" / "admin.sock")
