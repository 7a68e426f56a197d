"""`ssl.SSLContext` objects from files, created again when the files change.

Used by the server, which creates one for each listener with TLS (`server_context`) and one for each upstream with TLS
(`client_context`), and by the admin server; both call `reload_if_changed` regularly in a thread. New handshakes use
the newest context; connections keep the one of their handshake. If new files cannot be used, the last context stays in
use and the reason is logged.
"""

from __future__ import annotations

import ssl
import threading
import time
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from headrace.config.tables.tls import ClientCertificates, TlsVersion
from headrace.proxy.network.tls.files import (
    Passwords,
    TlsFileError,
    first_to_expire,
    load_authorities,
    read_identity,
    state_of,
)
from headrace.proxy.network.tls.rustls_configs import NotExpressible, rustls_client, rustls_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography import x509

    from headrace._engine import TlsConfig
    from headrace.config.tables.tls import ServerTls, UpstreamTls
    from headrace.proxy.network.tls.files import Certificate, FileState, Identity
    from headrace.quota_callbacks.secret_sources import SecretSource

log = structlog.get_logger("headrace.tls")

DEFAULT_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Suites of TLS 1.2 with forward secrecy and authenticated encryption: those that RFC 9325 section 4.2 recommends."""

EXPIRES_SOON: Final = timedelta(days=14)
"""Time before the end of a certificate from which warnings are logged. Automated renewals happen well before: those of
90 days after 60."""

_VERSIONS: Final = {TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}
_CLIENT_CERTIFICATES: Final = {
    ClientCertificates.NONE: ssl.CERT_NONE,
    ClientCertificates.REQUESTED: ssl.CERT_OPTIONAL,
    ClientCertificates.REQUIRED: ssl.CERT_REQUIRED,
}
KEYS_S: Final = 86_400.0
"""Time for which the keys that protect sessions are used: OpenSSL makes new ones for each context, and never otherwise
(RFC 9325, section 3.4)."""
_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 300.0
"""Time between two attempts to use files that could not be used in two attempts, and have not changed since: reading
them may run a command for a password. It doubles with each attempt."""
_TICKETS: Final = 1
"""Session tickets for each full handshake of TLS 1.3. A client reconnects with one; OpenSSL's default is two."""


class Created(NamedTuple):
    """What is made of the files."""

    context: ssl.SSLContext
    identity: Identity | None
    """The proxy's own certificate, if it has one."""
    authority: Certificate | None
    """The certificate in the file of authorities that expires first; ``None`` without such a file."""
    for_rustls: Callable[[], TlsConfig]
    """Creates the same configuration for rustls. Raises `NotExpressible`."""


class ServerSide(ssl.SSLObject):
    """The state of TLS with a client."""

    asked_name: str | None = None
    """The host name that the client asks for (SNI), as OpenSSL gives it."""


class TlsContext:
    """The newest context of one listener or upstream.

    *Threads:* `reload_if_changed` may be called in any thread, by one at a time; `current` may be read in any.
    """

    def __init__(
        self, setting: str, files: tuple[str, ...], passwords: Passwords, create: Callable[[], Created]
    ) -> None:
        """Create the context from ``files``; ``setting`` is the table with their names, for messages.

        ``create`` reads ``passwords``. Raises `TlsFileError`.
        """
        self.setting = setting
        """The table of the configuration, for messages."""
        self._files = files
        self._passwords = passwords
        self._create = create
        self._state = state_of(files)
        self._created_s = time.monotonic()
        self._lock = threading.Lock()
        self._failed: str | None = None
        """Why the files could not be used the last time."""
        self._failed_state: FileState | None = None
        self._pause_s = self._again_s = 0.0
        """The latest pause after a failure, and when it ends."""
        self._warned_on: dict[str, date] = {}
        self.rustls: TlsConfig | None = None
        """The configuration for handshakes by rustls, with the same meaning as ``current``. If rustls does not support
        the newest settings, this is the latest configuration that it supported, for handshakes that began with it;
        ``None`` if there never was one."""
        self.uses_rustls = False
        """Whether rustls does the handshakes of new connections; otherwise OpenSSL."""
        self._prefers_rustls = False
        self._created = create()

    @property
    def current(self) -> ssl.SSLContext:
        """The context for new handshakes."""
        return self._created.context

    @property
    def identity(self) -> Identity | None:
        """The proxy's own certificate, if it has one."""
        return self._created.identity

    @property
    def expiries(self) -> dict[str, Certificate]:
        """The proxy's ``certificate``, and the ``certificate authority`` that expires first, as far as there are."""
        found = {"certificate": self._created.identity, "certificate authority": self._created.authority}
        return {kind: each for kind, each in found.items() if each is not None}

    def prefer_rustls(self) -> None:
        """Let rustls do the next handshakes, for the native data plane. If the settings cannot be expressed for it, log
        why, and go on with OpenSSL."""
        self._prefers_rustls = True
        self._use(self._for_rustls(self._created.for_rustls))

    def _for_rustls(self, create: Callable[[], TlsConfig]) -> TlsConfig | None:
        try:
            return create()
        except NotExpressible as problem:
            reason = f"{problem}; these connections are relayed by Python"
            log.info("TLS is done by OpenSSL", table=self.setting, reason=reason)
            return None

    def _use(self, config: TlsConfig | None) -> None:
        self.rustls = config or self.rustls
        self.uses_rustls = config is not None

    def check_expiry(self, now: datetime) -> None:
        """Log a warning, at most once a day for each kind of `expiries`, if one expires soon or has expired."""
        for kind, certificate in self.expiries.items():
            if certificate.expires - now <= EXPIRES_SOON and self._warned_on.get(kind) != now.date():
                self._warned_on[kind] = now.date()
                problem = f"the {kind} {'has expired' if certificate.expires <= now else 'expires soon'}"
                log.warning(problem, table=self.setting, certificate=str(certificate), file=certificate.file)

    def reload_if_changed(self) -> bool:
        """Create the context again if one of the files has changed, or after `KEYS_S`; return whether it was replaced.

        Blocks. Passwords are read again if one of the files has changed, or could not be used the last time.
        """
        with self._lock:
            state, now_s = state_of(self._files), time.monotonic()
            is_new = state != self._state
            if not is_new and now_s - self._created_s < KEYS_S:
                return False
            if state == self._failed_state and now_s < self._again_s:
                return False
            if is_new or self._failed is not None:
                self._passwords.forget()
            try:
                created = self._create()
                config = self._for_rustls(created.for_rustls) if self._prefers_rustls else None
            except Exception as error:  # noqa: BLE001 -- whatever the libraries raise, the proxy goes on
                # One file may be new while the other is not; tried again the next time.
                has_failed_before = state == self._failed_state
                self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S) if has_failed_before else 0.0
                self._failed_state, self._again_s = state, now_s + self._pause_s
                reason = str(error) if isinstance(error, TlsFileError) else f"{type(error).__name__}: {error}"
                if reason != self._failed:
                    self._failed = reason
                    log.error("the new TLS files cannot be used; the old ones stay in use", reason=reason)  # noqa: TRY400
                return False
            self._state, self._failed, self._created_s = state, None, now_s
            self._failed_state = None
            self._created = created
            self._use(config)
        if is_new:
            identity = created.identity
            log.info("TLS files loaded again", table=self.setting, certificate=str(identity) if identity else None)
        return True


def server_context(tls: ServerTls, setting: str, accepts_name: Callable[[str], bool]) -> TlsContext:
    """Return the context for the clients of a listener, or of the admin server. Blocks. Raises `TlsFileError`.

    ``accepts_name`` is called with the host name that a client asks for (SNI). If it returns ``False``, the handshake
    ends with the alert unrecognized_name.
    """

    passwords = Passwords()

    def check_name(state: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> int | None:
        if isinstance(state, ServerSide):
            state.asked_name = name
        return None if name is None or accepts_name(name) else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    def create() -> Created:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sslobject_class = ServerSide
        _restrict(context, tls.min_version, tls.ciphers, setting)
        context.num_tickets = _TICKETS
        context.sni_callback = check_name
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        if tls.certificate_file is None:
            raise TlsFileError(f"{setting}.certificate_file is required")
        identity = read_identity(tls.certificate_file, tls.key_file, tls.key_password, setting, passwords)
        identity.load_into(context, setting)
        context.verify_mode = _CLIENT_CERTIFICATES[tls.client_certificates]
        authorities: list[x509.Certificate] = []
        authority = None
        if tls.client_ca_file is not None and tls.client_certificates is not ClientCertificates.NONE:
            where = f"{setting}.client_ca_file"
            authorities = load_authorities(context, tls.client_ca_file, tls.client_ca_password, where, passwords)
            authority = first_to_expire(authorities, tls.client_ca_file, where)

        def for_rustls() -> TlsConfig:
            return rustls_server(tls, _suites(context), identity, authorities, accepts_name)

        return Created(context, identity, authority, for_rustls)

    named = (tls.certificate_file, tls.key_file, tls.client_ca_file)
    return TlsContext(setting, _with_secrets(named, tls.key_password, tls.client_ca_password), passwords, create)


def client_context(tls: UpstreamTls, setting: str) -> TlsContext:
    """Return the context for connections to brokers. Blocks. Raises `TlsFileError`."""
    passwords = Passwords()

    def create() -> Created:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _restrict(context, tls.min_version, tls.ciphers, setting)
        context.check_hostname = tls.verify_names
        authorities: list[x509.Certificate] | None = None
        authority = None
        if tls.ca_file is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            where = f"{setting}.ca_file"
            authorities = load_authorities(context, tls.ca_file, tls.ca_password, where, passwords)
            authority = first_to_expire(authorities, tls.ca_file, where)
        identity = None
        if tls.certificate_file is not None:
            identity = read_identity(tls.certificate_file, tls.key_file, tls.key_password, setting, passwords)
            identity.load_into(context, setting)

        def for_rustls() -> TlsConfig:
            return rustls_client(tls, _suites(context), identity, authorities)

        return Created(context, identity, authority, for_rustls)

    named = (tls.certificate_file, tls.key_file, tls.ca_file)
    return TlsContext(setting, _with_secrets(named, tls.key_password, tls.ca_password), passwords, create)


def _with_secrets(files: tuple[str | None, ...], *secrets: SecretSource | None) -> tuple[str, ...]:
    passwords = (secret.file for secret in secrets if secret is not None)
    return tuple(file for file in (*files, *passwords) if file is not None)


def _suites(context: ssl.SSLContext) -> list[str]:
    """Return the names of the cipher suites of the permitted versions."""
    without_1_3 = context.maximum_version is ssl.TLSVersion.TLSv1_2
    names = [suite["name"] for suite in context.get_ciphers()]
    return [name for name in names if not (without_1_3 and name.startswith("TLS_"))]


def _restrict(context: ssl.SSLContext, lowest: TlsVersion, ciphers: str | None, setting: str) -> None:
    context.minimum_version = _VERSIONS[lowest]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Java: any certificate of the trust store is an anchor
    try:
        context.set_ciphers(ciphers or DEFAULT_CIPHERS)
    except ssl.SSLError:
        raise TlsFileError(f'{setting}.ciphers = "{ciphers}": OpenSSL knows none of these cipher suites') from None
    for suite in context.get_ciphers() if context.security_level == 0 else ():  # other levels never choose such a suite
        if suite["auth"] == "auth-null" or not suite["strength_bits"]:
            problem = f'{suite["name"]} does not authenticate or does not encrypt; add ":!aNULL:!eNULL"'
            raise TlsFileError(f'{setting}.ciphers = "{ciphers}": {problem}')
