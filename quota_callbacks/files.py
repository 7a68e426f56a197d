"""Files that are read at start and at a reload, and files that the proxy writes.

What is read must be an ordinary file of bounded size: a FIFO, a device or an endless file never blocks the reader. What
is written can be read by its owner alone, or by one group, too, and a symbolic link is never followed: in a folder
where others may create files, it could lead to any file of the proxy's user. Used by the configuration, the proxy and
its plugins. All functions block: call them in a thread, or before the event loop runs.
"""

from __future__ import annotations

import errno
import grp
import os
import stat
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600
GROUP_READS: Final = 0o640
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""O_NONBLOCK has no effect on ordinary files; without it, opening a FIFO waits for another process."""
_LINK: Final = "is a symbolic link, which is not followed"


def reason_of(error: OSError) -> str:
    """Return what went wrong, in lower case, for the end of a sentence."""
    return (error.strerror or str(error)).lower()


def read_ordinary_file(path: str | os.PathLike[str], longest_bytes: int, what: str) -> bytes:
    """Return the content of an ordinary file; symbolic links to one are followed, as Kubernetes mounts files by them.

    Raises `OSError` for a file that cannot be read, is not an ordinary file, or is longer than ``longest_bytes``, the
    maximum for ``what``; and `ValueError` for a path with a zero byte.
    """
    _check_ordinary(path, path)  # before it is opened, which may already have an effect on a device
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check_ordinary(descriptor, path)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(longest_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > longest_bytes:
        raise OSError(errno.EFBIG, f"longer than {longest_bytes} bytes, the maximum for a {what}", os.fspath(path))
    return data


def open_private(path: str | os.PathLike[str], flags: int, *, group_id: int | None = None) -> int:
    """Open a file that only its owner can read, and the group ``group_id`` if it is given; return its descriptor.

    ``flags`` are those of `os.open`. With ``O_CREAT`` a missing file is created; the permissions of an existing one are
    corrected. Raises `OSError` for a symbolic link, anything else that is not an ordinary file, a file with a second
    name, and a file of another user.
    """
    try:
        descriptor = os.open(path, flags | _FLAGS, OWNER_ONLY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, _LINK, os.fspath(path)) from error
        raise
    try:
        status = _check_ours(_check_ordinary(descriptor, path), path)
        if group_id is not None and status.st_gid != group_id:
            os.fchown(descriptor, -1, group_id)
        mode = OWNER_ONLY if group_id is None else GROUP_READS
        if stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_private(path: str | os.PathLike[str]) -> None:
    """Check an existing file as `open_private` does, and take the permissions of all but its owner away.

    The file is not opened for reading or writing, so this process keeps its POSIX locks on it, which it would lose by
    closing a descriptor. Raises `OSError`.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise OSError(errno.ELOOP, _LINK, os.fspath(path))
        mode = stat.S_IMODE(_check_ours(_check_ordinary(descriptor, path), path).st_mode)
        if mode & ~OWNER_ONLY:
            Path(f"/proc/self/fd/{descriptor}").chmod(mode & OWNER_ONLY)  # fchmod refuses such a descriptor
    finally:
        os.close(descriptor)


def open_without_following(path: str, flags: int) -> int:
    """Open a file with the usual permissions, but no symbolic link: an opener for the function `open`."""
    return os.open(path, flags | _FLAGS, 0o666)


def create_private_folder(folder: Path, *, group_id: int | None = None) -> None:
    """Create a folder that only its owner can use, and the group ``group_id``; leave one that exists as it is.

    Missing parents are created with the usual permissions. Raises `OSError`.
    """
    if folder.is_dir():
        return
    folder.mkdir(mode=0o700 if group_id is None else 0o750, parents=True, exist_ok=True)
    if group_id is not None:
        os.chown(folder, -1, group_id)


def folder_warning(folder: str | os.PathLike[str]) -> str | None:
    """Return a sentence if all users may delete and replace files in ``folder``; else ``None``. Raises `OSError`."""
    mode = Path(folder).stat().st_mode
    if not mode & stat.S_IWOTH or mode & stat.S_ISVTX:
        return None
    name = os.fspath(folder) or "."
    return f"every user may replace files in {name}, which has mode {stat.S_IMODE(mode):04o}: run chmod o-w {name}"


def group_id_of(name: str) -> int:
    """Return the id of a group, given its name or its number. Raises `ValueError` for an unknown name."""
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"there is no group {name!r}") from None


def _check_ours(status: os.stat_result, path: str | os.PathLike[str]) -> os.stat_result:
    if status.st_uid not in (0, os.geteuid()):
        raise OSError(errno.EPERM, f"belongs to another user, {status.st_uid}", os.fspath(path))
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "has a second name (a hard link)", os.fspath(path))
    return status


def _check_ordinary(file: int | str | os.PathLike[str], path: str | os.PathLike[str]) -> os.stat_result:
    status = os.stat(file)  # noqa: PTH116 -- of a descriptor, too
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not an ordinary file", os.fspath(path))
    return status
