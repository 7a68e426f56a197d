"""Talking to a running proxy's admin server, for the command line. Blocking."""

from __future__ import annotations

import http.client
import json
from typing import Any, Final
from urllib.parse import urlencode

TIMEOUT_S: Final = 10.0


class AdminUnreachableError(Exception):
    """No admin server answers there, or not as one."""


def get_enforcement(admin: str) -> bool:
    """Whether quotas are enforced now. Raises `AdminUnreachableError`."""
    return _enabled(_request(admin, "GET", "/enforcement"))


def put_enforcement(admin: str, *, enabled: bool) -> bool:
    """Switch, and return what is in force then. Raises `AdminUnreachableError`."""
    return _enabled(_request(admin, "PUT", "/enforcement", json.dumps({"enabled": enabled})))


def get_decisions(admin: str, *, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
    """What quotas decided lately, and who waits now: the page ``/decisions``. Raises `AdminUnreachableError`."""
    asked = {"user": user, "client_id": client_id, "newest": str(newest)}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    answer = _request(admin, "GET", f"/decisions?{query}")
    if not isinstance(answer, dict) or not isinstance(answer.get("decisions"), list):
        raise AdminUnreachableError(f"the admin server answered {answer!r}, not what quotas decided")
    return answer


def _enabled(answer: Any) -> bool:
    if not isinstance(answer, dict) or not isinstance(answer.get("enabled"), bool):
        raise AdminUnreachableError(f"the admin server answered {answer!r}, not whether enforcement is on")
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
