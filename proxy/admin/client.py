"""A blocking client for a running proxy's admin server, called by the command line."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from headrace.config.tables.admin import AdminAddress, UnixPath, parse_admin_address
from headrace.proxy.admin.escaping import printable

TIMEOUT_S: Final = 10.0
_LONGEST_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Far more than 1000 decisions and 10,000 muted connections need."""

_ANSWERED: Final = (http.client.OK, http.client.SERVICE_UNAVAILABLE)
"""The states of pages that also say what is missing."""


class AdminUnreachableError(Exception):
    """No admin server can be reached at the address, it refuses the request, or it is no admin server.

    ``str()`` contains no control characters, though parts of it are from the server.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminClient:
    """The admin server at ``address``: ``host:port`` or ``unix:/path``. All methods raise `AdminUnreachableError`."""

    address: str
    token: str | None = field(default=None, repr=False)
    """The bearer token to send, if any."""

    def enforcement(self) -> bool:
        """Return whether quotas are enforced now."""
        return self._enabled("GET", None)

    def enforce(self, *, enabled: bool) -> bool:
        """Turn enforcement on or off, and return the resulting state."""
        return self._enabled("PUT", json.dumps({"enabled": enabled}))

    def decisions(self, *, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
        """Return the page ``/decisions``: recent decisions of quotas, newest first, and the connections muted now.

        ``user`` and ``client_id`` select entries; ``None`` selects all.
        """
        asked = {"user": user, "client_id": client_id, "newest": str(newest)}
        query = urlencode({name: value for name, value in asked.items() if value is not None}, errors="surrogateescape")
        answer = self._request("GET", f"/decisions?{query}")
        if not isinstance(answer, dict) or not isinstance(answer.get("decisions"), list):
            raise AdminUnreachableError(f"the admin server answered {answer!r}, which is not a list of decisions")
        return answer

    def quota_changes(self, *, newest: int, before: int | None = None) -> list[dict[str, Any]]:
        """Return the page ``/quotas/audit``: the ``newest`` changes of quotas before the position ``before``."""
        position = "" if before is None else f"&before={before}"
        answer = self._request("GET", f"/quotas/audit?newest={newest}{position}", accepted=_ANSWERED)
        if not isinstance(answer, dict) or not isinstance(answer.get("changes"), list):
            raise AdminUnreachableError(f"the admin server answered {answer!r}, which is not a list of changes")
        if answer.get("problem") is not None:
            raise AdminUnreachableError(f"{self.address}: {answer['problem']}")
        changes: list[dict[str, Any]] = answer["changes"]
        return changes

    def not_ready(self) -> list[str]:
        """Return the reasons why the proxy should get no traffic; empty when it is ready."""
        answer = self._request("GET", "/readyz", accepted=_ANSWERED)
        if not isinstance(answer, dict) or not isinstance(answer.get("reasons", []), list):
            raise AdminUnreachableError(f"the admin server answered {answer!r}, which is not a state")
        return [printable(str(reason)) for reason in answer.get("reasons", [])]

    def _enabled(self, method: str, body: str | None) -> bool:
        answer = self._request(method, "/enforcement", body)
        if not isinstance(answer, dict) or not isinstance(answer.get("enabled"), bool):
            raise AdminUnreachableError(f"the admin server answered {answer!r}, which is not the state of enforcement")
        enabled: bool = answer["enabled"]
        return enabled

    def _request(
        self, method: str, path: str, body: str | None = None, *, accepted: tuple[int, ...] = (http.client.OK,)
    ) -> Any:
        hint = "is the proxy running with admin.listen (--admin) set to it?"
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection = _connection(parse_admin_address(self.address))
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                text = response.read(_LONGEST_ANSWER_BYTES)
            finally:
                connection.close()
            if response.status == http.client.UNAUTHORIZED:
                hint = "give a file that contains a token of admin.token_file with --token-file"
            elif response.status == http.client.FORBIDDEN:
                hint = ""  # the server's reason names the setting
            if response.status not in accepted:
                reason = _reason(text) or response.reason
                advice = f"; {hint}" if hint else ""
                raise AdminUnreachableError(f"{self.address} answered {response.status}: {reason}{advice}")
            return json.loads(text)
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            why = _in_words(error)
            raise AdminUnreachableError(f"cannot reach an admin server at {self.address}: {why}; {hint}") from error


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    if isinstance(error, http.client.HTTPException):
        return "its answer is not HTTP"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "its answer is not JSON"
    return str(error)


def _reason(text: bytes) -> str:
    """Return the error in a response of the admin server, or an empty string."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""


def _connection(address: AdminAddress) -> http.client.HTTPConnection:
    if isinstance(address, UnixPath):
        return _UnixConnection(address.path)
    host = address.host
    if address.is_wildcard:  # as in admin.listen, where it stands for all addresses of this machine
        host = "::1" if ":" in host else "127.0.0.1"
    return http.client.HTTPConnection(host, address.port, timeout=TIMEOUT_S)


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
