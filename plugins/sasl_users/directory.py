"""The users in memory, and the thread that follows the file.

A look-up on the event loop is one in a dictionary: the thread replaces the whole set of users at once.
"""

from __future__ import annotations

import threading
from typing import Final

import structlog

from headrace.plugins.sasl_users.user_file import UserFile, UserFileError

log = structlog.get_logger("headrace.sasl_users")

FOLLOW_INTERVAL_S: Final = 0.5
"""How often the thread looks for changes, which takes some 20 µs. So a change takes effect within a second."""
CLOSE_DEADLINE_S: Final = 2.0


class UserDirectory:
    """The users of a file. `known` may be read from any thread.

    If the file cannot be read any more, the users that were read last remain, which is logged once for each cause and
    counted: a proxy should not refuse all clients because a disk is full.
    """

    def __init__(self, path: str) -> None:
        """Read the file; blocks. Raises `UserFileError`."""
        self._path = path
        file = UserFile.open(path, to_read=True)
        try:
            self._version = file.version()
            self.known = file.known_users()
            """The users now."""
        except BaseException:
            file.close()
            raise
        self._file: UserFile | None = file
        self.failures = 0
        """Number of times that the file could not be read."""
        self._reported: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="headrace-users", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the file. Blocks for at most `CLOSE_DEADLINE_S`."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_DEADLINE_S)
        if not self._thread.is_alive() and self._file is not None:
            self._file.close()
            self._file = None

    def refresh(self) -> None:
        """Read the file again if it has changed. Called by the thread; does not raise `UserFileError`."""
        problem = None
        try:
            self._read_if_changed()
        except UserFileError as error:
            problem = str(error)
            self.failures += 1
            if self._file is not None:
                self._file.close()
                self._file = None
        if problem is not None and problem != self._reported:
            log.error("the users cannot be read; those that were read last remain", reason=problem)
        self._reported = problem

    def _read_if_changed(self) -> None:
        if self._file is not None and self._file.is_replaced():
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = UserFile.open(self._path, to_read=True)
        elif self._file.version() == self._version:
            return
        self._version = self._file.version()  # before reading, so that no later change is overlooked
        self.known = self._file.known_users()
        log.info("the users have changed", file=self._path, users=len(self.known))

    def _follow(self) -> None:
        while not self._closing.wait(FOLLOW_INTERVAL_S):
            self.refresh()
