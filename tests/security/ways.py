"""The ways in which clients reach a proxy over TLS: by nothing else, by a certificate, or by SASL in each mode.

`WAYS` is the table. All lead to the shared broker, which speaks plaintext: attacks on the clients' side are the same.
"""

from __future__ import annotations

import enum
import struct
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.proxy.sasl.scram import ScramMechanism, scram_keys
from headrace.proxy.sasl.scram_client import ScramClient
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.certificates import ClientTls
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import MECHANISMS, listen_tls, users_file
from tests.faults import messages
from tests.faults.raw_client import RawClient, speaking_tls
from tests.plugins.sasl_identity.sasl_messages import bearer, unsecured
from tests.plugins.sasl_oauth import issuer
from tests.shared_cluster import LISTENER, SECRETS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from testbed.kafka.certificates import Authority
    from tests.shared_cluster import FirstBroker

USER: Final = "bob"
"""Known to the brokers and to the proxy by all mechanisms."""


class Mode(enum.Enum):
    """Who proves the client's user."""

    NOBODY = enum.auto()
    CERTIFICATE = enum.auto()
    """The proxy verifies a certificate, and the brokers serve anybody."""
    CERTIFICATE_AND_LOGIN = enum.auto()
    """The proxy verifies a certificate, and authenticates to the brokers itself."""
    OBSERVE = enum.auto()
    """The brokers, by SASL."""
    TERMINATE = enum.auto()
    """The proxy, by SASL; it also authenticates to the brokers itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way. ``mechanism`` is that of the client's login, if it has one."""

    mode: Mode
    mechanism: str | None = None

    @property
    def has_login(self) -> bool:
        """Return whether clients authenticate by SASL."""
        return self.mechanism is not None

    @property
    def has_certificate(self) -> bool:
        """Return whether clients show a certificate."""
        return self.mode in (Mode.CERTIFICATE, Mode.CERTIFICATE_AND_LOGIN)

    @contextmanager
    def proxy(self, kafka: FirstBroker, authority: Authority, folder: Path, more: str) -> Iterator[ProxyProcess]:
        """Run a proxy; ``more`` is added to its configuration. `RawClient` does the TLS handshake with it."""
        anybody = self.mode in (Mode.NOBODY, Mode.CERTIFICATE)
        servers = kafka.bootstrap_servers if anybody else kafka.addresses(LISTENER)
        clients = authority.ca_file if self.has_certificate else None
        config = listen_tls(authority.broker_certificate(), clients=clients) + self._sasl(folder) + more
        certificate = authority.client_certificate(f"CN={USER}") if self.has_certificate else None
        with (
            ProxyProcess(servers, config=config) as process,
            speaking_tls(process.port, ClientTls(authority=authority, certificate=certificate).ssl_context()),
        ):
            yield process

    def _sasl(self, folder: Path) -> str:
        password = folder / "password"
        password.write_text(SECRETS[USER], encoding="ascii")
        own = f'[upstream.sasl]\nmechanism = "SCRAM-SHA-256"\nuser = "{USER}"\npassword = {{ file = "{password}" }}\n'
        if self.mode is Mode.CERTIFICATE_AND_LOGIN:
            return own
        if self.mode is not Mode.TERMINATE:
            return ""
        terminated = f'[listen.sasl]\nmode = "terminate"\nmechanisms = ["{self.mechanism}"]\n'
        if self.mechanism != "OAUTHBEARER":
            return own + terminated + f'[plugins.options.sasl_users]\nfile = "{users_file(folder)}"\n'
        keys = folder / "keys.json"
        keys.write_bytes(issuer.key_set(issuer.rsa_key()))
        return own + terminated + f'[plugins.options.sasl_oauth]\njwks_file = "{keys}"\naudience = ["kafka"]\n'

    def log_in(self, client: RawClient) -> None:
        """Authenticate the client as `USER`, if this way has a login."""
        if self.mechanism is None:
            return
        assert client.call(messages.SASL_HANDSHAKE, 1, messages.string(self.mechanism))[:2] == b"\0\0"
        exchange = self._tokens(self.mechanism)
        token = next(exchange)
        while True:
            answer = client.call(ApiKey.SASL_AUTHENTICATE.value, 0, struct.pack(">i", len(token)) + token)
            error, message_bytes = struct.unpack_from(">hh", answer)
            assert error == 0, answer
            try:
                token = exchange.send(answer[8 + max(0, message_bytes) :])
            except StopIteration:
                return

    def _tokens(self, mechanism: str) -> Generator[bytes, bytes, None]:
        """Yield the client's tokens; the broker's answers are sent to it."""
        if mechanism == "PLAIN":
            yield f"\0{USER}\0{SECRETS[USER]}".encode()
        elif mechanism == "OAUTHBEARER":
            terminated = self.mode is Mode.TERMINATE
            claims = issuer.claims(time.time_ns() // 10**9, sub=USER)
            yield bearer(issuer.token(claims) if terminated else unsecured(claims))
        else:
            scram = ScramClient(ScramMechanism(mechanism), USER)
            challenge = scram.read_challenge((yield scram.first()))
            keys = scram_keys(ScramMechanism(mechanism), SECRETS[USER], challenge.salt, challenge.iterations)
            scram.check((yield scram.final(keys)))


WAYS: Final = {
    "tls": Way(mode=Mode.NOBODY),
    "certificate": Way(mode=Mode.CERTIFICATE),
    "certificate and the proxy's login": Way(mode=Mode.CERTIFICATE_AND_LOGIN),
    **{
        f"{mode.name.lower()} {mechanism}": Way(mode=mode, mechanism=mechanism)
        for mode in (Mode.OBSERVE, Mode.TERMINATE)
        for mechanism in (*MECHANISMS, "OAUTHBEARER")
    },
}
QUICK: Final = ("certificate", "observe SCRAM-SHA-256", "terminate OAUTHBEARER")
"""Those of ``make test``: one for each of who proves the user."""
