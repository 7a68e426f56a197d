"""A blocking client for a running proxy's admin server, called by the command line."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlencode

from headrace.config.tables.admin import AdminAddress, UnixPath, parse_admin_address
from headrace.config.values import is_wildcard_host
from headrace.quota_callbacks.escaping import printable
from headrace.quota_callbacks.files import reason_of

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S: Final = 10.0
_LONGEST_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Limit for an answer of the admin server: far more than 1000 decisions and 10,000 muted connections need."""

_ANSWERED: Final = (http.client.OK, http.client.SERVICE_UNAVAILABLE)
"""The HTTP statuses of answers that are returned to the caller. With 503, the answer has the reasons why the proxy is
not ready, or the problem."""

_HTTPS: Final = "use https://, and --admin-ca unless a public authority has issued its certificate"
_ADVICE: Final = {
    http.client.UNAUTHORIZED: "give a file that contains a token of the proxy with --token-file",
    http.client.FORBIDDEN: "",  # the server's reason names the setting
}
"""The advice that is printed after the server's reason, by the status of the response."""
_TLS_FAILURES: Final = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS; leave out https:// and --admin-ca",
    "CERTIFICATE_REQUIRED": "it requires a client certificate; give one with --admin-cert and --admin-key",
    "HANDSHAKE_FAILURE": "it refused the handshake; if it requires a client certificate, give one with --admin-cert",
    "UNKNOWN_CA": "it does not trust the authority of the client certificate; admin.tls.client_ca_file names those that"
    " it trusts",
    "CERTIFICATE_EXPIRED": "the client certificate has expired; give another one with --admin-cert",
}
"""The cause of a failure of TLS and the option to change, by the end of OpenSSL's name of the failure."""


class AdminUnreachableError(Exception):
    """No server can be reached at the address, the server refuses the request, or it is not a proxy's admin server.

    ``str()`` contains no control characters, though parts of it are from the server.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminServerClient:
    """The admin server at ``address``: ``host:port`` or ``unix:/path``. All methods raise `AdminUnreachableError`."""

    address: str
    token: str | None = field(default=None, repr=False)
    """The bearer token to send, if any."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """TLS with the server (`tls_context`); None for plaintext, and without effect for a Unix socket."""
    server_name: str | None = None
    """The name for which the server's certificate must be; None for the host of ``address``."""

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
            connection = self._connection(parse_admin_address(self.address))
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                text = response.read(_LONGEST_ANSWER_BYTES)
            finally:
                connection.close()
            if response.status not in accepted:
                reason = _reason(text, response.headers.get_content_type()) or response.reason
                advice = _ADVICE.get(response.status, hint)
                if response.status == http.client.BAD_REQUEST and self.tls is None and "requires TLS" in reason:
                    advice = _HTTPS
                advice = f"; {advice}" if advice else ""
                raise AdminUnreachableError(f"{self.address} answered {response.status}: {reason}{advice}")
            return json.loads(text)
        except ssl.SSLError as error:
            reason = _tls_failure(error)
            raise AdminUnreachableError(
                f"the TLS handshake with the server at {self.address} failed: {reason}"
            ) from error
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            why = _in_words(error)
            raise AdminUnreachableError(f"cannot reach an admin server at {self.address}: {why}; {hint}") from error

    def _connection(self, address: AdminAddress) -> http.client.HTTPConnection:
        if isinstance(address, UnixPath):
            return _UnixConnection(address.path)
        host = address.host
        if is_wildcard_host(host):  # as in admin.listen, where it stands for all addresses of this machine
            host = "::1" if ":" in host else "127.0.0.1"
        if self.tls is None:
            return http.client.HTTPConnection(host, address.port, timeout=TIMEOUT_S)
        return _TlsConnection(host, address.port, self.tls, self.server_name or host)


def tls_context(*, ca_file: Path | None, certificate_file: Path | None, key_file: Path | None) -> ssl.SSLContext:
    """Return the context for TLS with an admin server, whose certificate must be valid and for the server's name.

    ``ca_file`` has the accepted authorities, by default those of the system. The files are PEM; the key may be in the
    file of the certificate. Raises `AdminUnreachableError` with the option that is wrong.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise AdminUnreachableError(f"--admin-ca {ca_file}: {_file_problem(error, 'certificate')}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate_file is None and key_file is not None:
        raise AdminUnreachableError("--admin-key needs the certificate of the key: give it with --admin-cert")
    if certificate_file is not None:
        try:
            context.load_cert_chain(certificate_file, key_file, password=_refuse_password)
        except (OSError, ValueError) as error:
            named = f"--admin-cert {certificate_file}" + (f", --admin-key {key_file}" if key_file is not None else "")
            problem = _file_problem(error, "certificate with its private key")
            raise AdminUnreachableError(f"{named}: {problem}") from error
    return context


def _refuse_password() -> NoReturn:
    """Refuse a key that is encrypted: OpenSSL would ask for the password at the terminal."""
    raise ValueError("the private key is encrypted; give a file with the key without encryption")


def _file_problem(error: Exception, content: str) -> str:
    if isinstance(error, ssl.SSLError):
        mismatch = "KEY_VALUES_MISMATCH" in str(error)
        return "the private key does not belong to the certificate" if mismatch else f"not a {content} in PEM format"
    return reason_of(error) if isinstance(error, OSError) else str(error)


def _tls_failure(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = (error.verify_message or "it cannot be verified").rstrip(".")
        option = "--admin-server-name NAME for a name in it" if "mismatch" in reason else "--admin-ca for its authority"
        return f"its certificate is not accepted: {reason}; use {option}"
    reason = error.reason or str(error)
    known = (meaning for name, meaning in _TLS_FAILURES.items() if reason.endswith(name))
    return next(known, reason.lower().replace("_", " "))


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError):
        return reason_of(error)
    if isinstance(error, http.client.HTTPException):
        return "its answer is not HTTP"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "its answer is not JSON"
    return str(error)


def _reason(text: bytes, content_type: str) -> str:
    """Return the error in a response of the admin server, or an empty string."""
    if content_type == "text/plain":
        return text[:200].decode("ascii", "replace").strip()
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""


class _TlsConnection(http.client.HTTPConnection):
    """A connection with TLS, to a server whose certificate is for ``server_name``."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, server_name: str) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._context = context
        self._server_name = server_name

    def connect(self) -> None:
        """Connect, and do the TLS handshake."""
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self._server_name)


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
