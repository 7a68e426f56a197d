"""The rules by which the admin server accepts or refuses a request: its host, its origin, and its token or certificate.

Three rules, each against one kind of sender:

host     The Host header must name this server (`Admin.allowed_hosts`). A page in a browser could otherwise let a name
         of its own resolve to this address (DNS rebinding), and read and send as if it were of this origin.
origin   Browsers state from which page a request comes; only this server's own origin is accepted.
proof    With `Admin.token_file` or `Admin.token`, a bearer token; with `AdminTls.authorizes`, a client certificate,
         which TLS has verified; with both, either of them. Probes need none. What changes the proxy needs one in any
         case, except at a Unix socket: only users with permission for the socket can connect to it.

A request without a Host or Origin header is not from a current browser, and is subject to the other rules alone. Called
by `headrace.proxy.admin.server`.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import stat
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.config.tables.admin import UnixPath
from headrace.config.values import is_loopback_host, is_wildcard_host
from headrace.proxy.admin.http import refused
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.quota_callbacks.files import read_ordinary_file, reason_of
from headrace.quota_callbacks.requests import Address
from headrace.quota_callbacks.secret_sources import SecretError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config.tables.admin import Admin
    from headrace.proxy.admin.http import HttpRequest, HttpResponse
    from headrace.proxy.counters import AdminCounters
    from headrace.quota_callbacks.secret_sources import SecretSource

log = structlog.get_logger("headrace.admin")

MAX_FILE_BYTES: Final = 64 * 1024
REREAD_S: Final = 1.0
"""Seconds for which the tokens that were read are used, before the file is read again."""

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]{16,512}=*")
"""RFC 6750's characters of a bearer token. 16 of them are too many to guess: 96 bits if they are random."""
_PORT: Final = re.compile(r":[0-9]*$")
_NO_CHANGES: Final = (
    "changes need a token, and the proxy has none; set admin.token_file (--admin-token-file), admin.token or"
    " admin.tls.client_certificates, or let admin.listen be a Unix socket, such as unix:/run/headrace/admin.sock"
)
_QUOTED_CHARACTERS: Final = 80
"""Characters of a header that an error message repeats, at most."""


class Access:
    """The rules for requests. ``settings`` returns the configuration in force, ``tokens`` is None without a file."""

    def __init__(self, settings: Callable[[], Admin], tokens: Tokens | None, counters: AdminCounters) -> None:
        self._settings = settings
        self._tokens = tokens
        self._counters = counters
        self._repeated = RepeatedLines()

    async def refusal(self, request: HttpRequest, *, public: bool, changes: bool) -> HttpResponse | None:
        """Return the response that refuses a request, or ``None`` to answer it.

        A ``public`` page needs no proof. ``changes`` is whether the request would change the state of the proxy.
        """
        headers = request.headers
        host = headers.get("host")
        if host is not None and not self._is_allowed(host):
            reason = f"the host {_quoted(host)} is not allowed; add its name to admin.allowed_hosts"
            return self._refuse("host", request, refused(reason, HTTPStatus.FORBIDDEN))
        if _is_foreign(headers.get("origin"), headers.get("sec-fetch-site"), host):
            origin = _quoted(headers.get("origin", ""))
            reason = f"requests from pages of another origin are refused; the origin of this one is {origin}"
            return self._refuse("origin", request, refused(reason, HTTPStatus.FORBIDDEN))
        return None if public else await self._refusal_without_proof(request, changes=changes)

    async def _refusal_without_proof(self, request: HttpRequest, *, changes: bool) -> HttpResponse | None:
        """Return the response that refuses a request without a token or client certificate; ``None`` if it has one."""
        settings = self._settings()
        by_certificate = settings.tls.authorizes
        if by_certificate and request.subject is not None:
            return None
        certificate = "a client certificate of an authority in admin.tls.client_ca_file"
        if self._tokens is None:
            if by_certificate:
                return self._refuse("certificate", request, refused(f"this needs {certificate}", HTTPStatus.FORBIDDEN))
            if changes and not isinstance(settings.listen, UnixPath):
                return self._refuse("token", request, refused(_NO_CHANGES, HTTPStatus.FORBIDDEN))
            return None
        if await self._tokens.authorize(request.headers.get("authorization")):
            return None
        reason = "this needs the header Authorization: Bearer, with a token of admin.token_file or admin.token"
        if by_certificate:
            reason += f", or {certificate}"
        response = refused(reason, HTTPStatus.UNAUTHORIZED, ("WWW-Authenticate", "Bearer"))
        return self._refuse("token", request, response)

    def _is_allowed(self, netloc: str) -> bool:
        """Return whether the value of a Host header names this server."""
        host = _PORT.sub("", netloc.strip()).removeprefix("[").removesuffix("]").rstrip(".").lower()
        settings = self._settings()
        listen = settings.listen
        if is_loopback_host(host) or host in settings.allowed_hosts:
            return True
        if not isinstance(listen, Address):
            return False
        if is_wildcard_host(listen.host):  # any address of this machine; a name that was rebound is not an address
            with suppress(ValueError):
                ipaddress.ip_address(host)
                return True
        return host == listen.host.lower()

    def _refuse(self, rule: str, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        self._counters.refuse(rule)
        left_out = self._repeated.due(rule)
        if left_out is not None:
            log.warning(
                "admin request refused",
                client=request.client,
                rule=rule,
                method=request.method,
                path=request.path[:_QUOTED_CHARACTERS],
                left_out=left_out or None,
            )
        return response


def _is_foreign(origin: str | None, site: str | None, host: str | None) -> bool:
    """Return whether a browser states that a request comes from another origin than ``host``."""
    if site not in (None, "same-origin", "none"):  # "none": the user entered the address
        return True
    if origin is None:
        return False
    scheme, _, netloc = origin.partition("://")
    return scheme not in ("http", "https") or host is None or netloc.lower() != host.lower()


def _quoted(text: str) -> str:
    shown = text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}..."
    return f'"{shown}"'


class Tokens:
    """The tokens of ``admin.token``, and those in ``admin.token_file``, which may be replaced at any time."""

    def __init__(self, path: str | None, source: SecretSource | None = None) -> None:
        """Read the file at ``path`` and the ``source``, which is not read again; blocks.

        Raises `ValueError` if one of them is not valid.
        """
        self._path = path
        self._fixed = () if source is None else read_tokens(source)
        self._tokens = () if path is None else read_tokens(path)
        if path is not None and Path(path).stat().st_mode & stat.S_IROTH:
            log.warning("admin.token_file can be read by every user of this host", file=path)
        self._read_s = float("-inf")
        self._problem = ""

    async def authorize(self, authorization: str | None) -> bool:
        """Return whether the value of an Authorization header contains one of the tokens."""
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        await self._read_again()
        presented, found = given.strip().encode("latin-1"), False
        for token in (*self._fixed, *self._tokens):  # all of them: the time does not depend on which one it is
            found |= hmac.compare_digest(token, presented)
        return found

    async def _read_again(self) -> None:
        """Read the file again if that was not done within `REREAD_S`; keep the tokens if it is not valid."""
        now_s = trio.current_time()
        if self._path is None or now_s - self._read_s < REREAD_S:
            return
        self._read_s, problem = now_s, ""
        try:
            self._tokens = await trio.to_thread.run_sync(read_tokens, self._path)
        except ValueError as error:
            problem = str(error)
            if problem != self._problem:
                log.error("admin.token_file is not valid; the previous tokens remain valid", problem=problem)  # noqa: TRY400
        self._problem = problem


def read_tokens(source: str | SecretSource) -> tuple[bytes, ...]:
    """Return the tokens of a file or of another source, one per line; blocks.

    Raises `ValueError` with the reason, without any token.
    """
    key, place = ("admin.token_file", source) if isinstance(source, str) else ("admin.token", str(source))
    try:
        data = (
            read_ordinary_file(source, MAX_FILE_BYTES, "file of tokens")
            if isinstance(source, str)
            else source.read().encode()
        )
    except OSError as error:
        raise ValueError(f"{key}: {place} cannot be read: {reason_of(error)}") from error
    except SecretError as error:
        raise ValueError(f"{key}: {error}") from None
    lines = [(number, line.strip()) for number, line in enumerate(data.split(b"\n"), 1)]
    tokens = tuple(line for number, line in lines if line)
    if not tokens:
        raise ValueError(f"{key}: {place} contains no token")
    for number, line in lines:
        if line and not _TOKEN.fullmatch(line):
            raise ValueError(
                f"{key}: line {number} of {place} has {len(line)} characters and is not a token; expected 16 to 512"
                ' letters, digits or characters of "-._~+/", such as from "openssl rand -hex 32"'
            )
    return tokens
