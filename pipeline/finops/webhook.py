"""Alerts as an HTTP request to another service, which is repeated a few times.

The address of a webhook is often a secret itself, so messages have only its host.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from headrace.pipeline.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message
    from typing import IO

TIMEOUT_S: Final = 10.0
"""Time for the connection, and for each part of the response."""
ATTEMPTS: Final = 3
FIRST_PAUSE_S: Final = 1.0
"""Pause after the first attempt; each further one is twice as long."""
_REPEATED: Final = (408, 429)
"""Client errors that may go away: Request Timeout, Too Many Requests."""


def check_webhook(url: str, token: str | None) -> None:
    """Check an address, and a token for it, before anything is computed. Raises `InputError`."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or not url.isascii() or any(each.isspace() or not each.isprintable() for each in url):
        raise InputError("--webhook: expected an address that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise InputError(f"--webhook {host_of(url)}: contains a user; give a secret in a file: --webhook-token-file")
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token or not token):
        raise InputError("--webhook-token-file: expected one line of printable ASCII characters without spaces")


def host_of(url: str) -> str:
    """Return scheme, host and port of an address, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def post(url: str, document: str, token: str | None, pause: Callable[[float], object] = time.sleep) -> None:
    """Send a JSON document, at most `ATTEMPTS` times; blocks. ``token`` is a bearer token.

    Any response with a status from 200 to 299 is a success. The request is repeated after a server error, the statuses
    408 and 429, and a failure of the connection. Any other response is an error at once; so is a redirect, which could
    be followed only without the body of the request. Raises `OutputError`.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "headrace"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    opener = urllib.request.build_opener(_NoRedirects)
    for attempt in range(1, ATTEMPTS + 1):
        request = urllib.request.Request(url, document.encode(), headers)  # noqa: S310 -- the scheme has been checked
        try:
            with opener.open(request, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            error.close()
            why, final = f"HTTP status {error.code}", error.code < 500 and error.code not in _REPEATED
        except (OSError, http.client.HTTPException) as error:
            why, final = _reason(error), False
        if final or attempt == ATTEMPTS:
            raise OutputError(f"--webhook {host_of(url)}: {why}")
        pause(FIRST_PAUSE_S * 2 ** (attempt - 1))


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return (text or type(error).__name__).lower()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that leaves redirects to the handler of errors."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Return no request."""
