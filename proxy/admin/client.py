"""A blocking client for a running proxy's admin server, called by the command line."""

from __future__ import annotations

import http.client
import json
from typing import Any, Final
from urllib.parse import urlencode

TIMEOUT_S: Final = 10.0


class AdminUnreachableError(Exception):
    """No admin server can be reached at the address, or the answer is not that of an admin server."""


def get_enforcement(admin: str) -> bool:
    """Return whether quotas are enforced now. Raises `AdminUnreachableError`."""
    return _enabled(_request(admin, "GET", "/enforcement"))


def put_enforcement(admin: str, *, enabled: bool) -> bool:
    """Turn enforcement on or off, and return the resulting state. Raises `AdminUnreachableError`."""
    return _enabled(_request(admin, "PUT", "/enforcement", json.dumps({"enabled": enabled})))


def get_decisions(admin: str, *, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
    """Return the page ``/decisions``: recent decisions of quotas, newest first, and the connections muted now.

    ``user`` and ``client_id`` select entries; ``None`` selects all. Raises `AdminUnreachableError`.
    """
    asked = {"user": user, "client_id": client_id, "newest": str(newest)}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    answer = _request(admin, "GET", f"/decisions?{query}")
    if not isinstance(answer, dict) or not isinstance(answer.get("decisions"), list):
        raise AdminUnreachableError(f"the admin server answered {answer!r}, which is not a list of decisions")
    return answer


def _enabled(answer: Any) -> bool:
    if not isinstance(answer, dict) or not isinstance(answer.get("enabled"), bool):
        raise AdminUnreachableError(f"the admin server answered {answer!r}, which is not the state of enforcement")
    enabled: bool = answer["enabled"]
    return enabled


def _request(admin: str, method: str, path: str, body: str | None = None) -> Any:
    hint = "is the proxy running with admin.listen (--admin) set to it?"
    try:
        connection = http.client.HTTPConnection(admin, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise AdminUnreachableError(f"{admin} answered {response.status} {response.reason}; {hint}")
        return json.loads(text)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AdminUnreachableError(f"cannot reach an admin server at {admin}: {error}; {hint}") from error
