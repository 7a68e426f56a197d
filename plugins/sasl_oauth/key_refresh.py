"""The thread that fetches the issuer's keys: periodically, and when a token has a key that is unknown.

The event loop and the exchanges only read the keys that were fetched last. If the source is unavailable, these stay in
use, which is logged: an issuer that is unavailable for an hour must not lock out the clients whose tokens are valid.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.plugins.sasl_oauth.endpoints import shown
from headrace.plugins.sasl_oauth.http_requests import RequestError, request, tls_context
from headrace.plugins.sasl_oauth.key_set import KeySet, KeySetError, read_key_set
from headrace.quota_callbacks.files import read_ordinary_file

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger("headrace.sasl_oauth")

BETWEEN_REQUESTED_S: Final = 10.0
"""Least time between a fetch and one that a token with an unknown key causes, since anyone can send such a token."""
FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0
"""Failed fetches are repeated after `FIRST_RETRY_S`, and then after twice as long each time, up to this."""
REPORT_EVERY_S: Final = 60.0
"""Failures are logged when they begin, and then at most once in this interval."""
CLOSE_DEADLINE_S: Final = 1.0
LONGEST_FILE_BYTES: Final = 256 * 1024


class FetchError(Exception):
    """The keys cannot be fetched. ``str()`` is for the log."""


@dataclass(slots=True, kw_only=True)
class Schedule:
    """When the keys are to be fetched next. Times are seconds of a monotonic clock."""

    refresh_s: float
    between_requested_s: float = BETWEEN_REQUESTED_S
    attempted_s: float = 0.0
    """When the last fetch was over."""
    failures: int = 0
    """Number of fetches that have failed since the last one that succeeded."""
    requested: bool = False
    """Whether a token had an unknown key since the last fetch began."""

    def due_s(self) -> float:
        """Return the time of the next fetch."""
        wait_s = self.refresh_s
        if self.failures:
            wait_s = min(wait_s, LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self.failures - 1, 16))
        if self.requested:
            wait_s = min(wait_s, self.between_requested_s)
        return self.attempted_s + wait_s

    def attempted(self, now_s: float, *, succeeded: bool) -> None:
        """Note that a fetch is over."""
        self.attempted_s = now_s
        self.failures = 0 if succeeded else self.failures + 1


class KeyRefresher:
    """The owner of the current keys and the thread. The attributes may be read from other threads."""

    def __init__(self, fetch: Callable[[], bytes], schedule: Schedule) -> None:
        """``fetch`` returns the document with the keys; it blocks, and raises `FetchError`."""
        self.keys: KeySet | None = None
        """The keys that were fetched last."""
        self.fetched = 0
        """Number of fetches that succeeded."""
        self.failed = 0
        """Number of fetches that failed."""
        self._fetch = fetch
        self._schedule = schedule
        self._condition = threading.Condition()
        self._tried = threading.Event()
        self._closing = False
        self._report_s = 0.0
        self._thread = threading.Thread(target=self._run, name="headrace-jwks", daemon=True)

    def start(self, wait_s: float) -> None:
        """Start the thread, and wait until the first fetch is over, for at most ``wait_s`` seconds."""
        self._thread.start()
        self._tried.wait(wait_s)

    def request_refresh(self) -> None:
        """Have the keys fetched again soon, since a token has a key that is unknown. Does not block."""
        if not self._schedule.requested:
            with self._condition:
                self._schedule.requested = True
                self._condition.notify()

    def close(self) -> None:
        """End the thread. A fetch that is in progress ends with the process."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(CLOSE_DEADLINE_S)

    # --- the thread ---

    def _run(self) -> None:
        while not self._closing:
            self._schedule.requested = False
            succeeded = self._refresh()
            self._schedule.attempted(time.monotonic(), succeeded=succeeded)
            self._tried.set()
            self._wait()

    def _wait(self) -> None:
        """Wait until the next fetch is due."""
        with self._condition:
            while not self._closing and (left_s := self._schedule.due_s() - time.monotonic()) > 0:
                self._condition.wait(left_s)

    def _refresh(self) -> bool:
        try:
            keys = read_key_set(self._fetch())
        except (FetchError, KeySetError) as error:
            self._note_failure(str(error))
            return False
        except Exception as error:  # noqa: BLE001 -- no failure ends the thread
            self._note_failure(f"{type(error).__name__}: {error}")
            return False
        if self._schedule.failures or self.keys is None:
            log.info("the keys for OAUTHBEARER were fetched", keys=len(keys.keys))
        self.keys = keys
        self.fetched += 1
        return True

    def _note_failure(self, reason: str) -> None:
        self.failed += 1
        now_s = time.monotonic()
        if self._schedule.failures and now_s < self._report_s:
            return
        self._report_s = now_s + REPORT_EVERY_S
        if self.keys is None:
            log.warning("the keys for OAUTHBEARER cannot be fetched: all clients are refused", reason=reason)
        else:
            log.warning("the keys for OAUTHBEARER cannot be fetched: the last ones stay in use", reason=reason)


def fetch_url(url: str, ca_file: str | None) -> bytes:
    """Return the document at ``url``; block for about 10 s at most. Raises `FetchError`."""
    try:
        tls = tls_context(ca_file)
    except OSError as error:
        raise FetchError(f"the certificate authorities cannot be read: {error}") from error

    async def get() -> tuple[int, bytes]:
        answer = await request("GET", url, tls=tls)
        return answer.status, answer.body

    try:
        status, body = trio.run(get)
    except RequestError as error:
        raise FetchError(str(error)) from error
    if status != HTTPStatus.OK:
        raise FetchError(f"{shown(url)} answered with status {status}")
    return body


def fetch_file(path: str) -> bytes:
    """Return the content of the file ``path``. Raises `FetchError`."""
    try:
        return read_ordinary_file(path, LONGEST_FILE_BYTES, "key set")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FetchError(f"{path}: {reason.lower()}") from error
