"""One connection by each kind of client with given security settings, and how it ended in that client's own words.

A test calls `connect_with` with the address of a broker, and with that of a proxy in front of it, and compares the
outcomes: they are equal if both connections succeeded, or if both failed with the same class of error.
`tests.clients.tls.cases` has the right and wrong settings, and what each client reports for them.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - aiokafka runs on it
import contextlib
import ssl
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiokafka.abc import AbstractTokenProvider as AiokafkaTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from testbed.kafka.jvm import start_jvm
from testbed.processes.supervised import make_directory
from tests.clients.fronts import DEADLINE_S, eventually
from tests.clients.java_clients import JavaClients, done
from tests.clients.users.sasl_clients import JAVA_VERSION, java_admin, java_settings, librdkafka_settings
from tests.plugins.sasl_identity.sasl_messages import FUTURE_S, claims_of

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas, as it is imported, by a function that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError as KafkaPythonError
    from kafka.net.compat import KafkaNetClient
    from kafka.net.sasl.oauth import AbstractTokenProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from testbed.kafka.certificates import ClientTls
    from testbed.kafka.properties import SecurityProtocol

LIBRDKAFKA_ERRORS: Final = ("_AUTHENTICATION", "_SSL", "_TRANSPORT", "_ALL_BROKERS_DOWN")
"""The errors of librdkafka, the most telling one first: it reports a lost connection beside the reason for the loss."""
VERIFICATION_FAILED: Final = "certificate verify failed"
"""librdkafka reports it as ``_SSL``, and three times in a hundred as ``_TRANSPORT``, whatever the other side is."""
CLOSING_STEPS: Final = 10
"""Iterations of the loop in which asyncio closes a socket that it no longer waits for."""
CLOSING_POLL_S: Final = 0.005
OAUTHBEARER: Final = "OAUTHBEARER"
VERSION_WITH_JOSE: Final = "4.3.1"
"""The version of Java's client, and of the brokers, whose libraries read signed tokens."""
_VERIFICATION: Final = "CERTIFICATE_VERIFY_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What a client authenticates with by SASL. The password of OAUTHBEARER is a token, of which Java reads a file."""

    mechanism: str
    user: str
    password: str

    @property
    def is_signed_token(self) -> bool:
        """Whether the password is a token with a signature."""
        return self.mechanism == OAUTHBEARER and not self.password.endswith(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The security settings of a client."""

    tls: ClientTls | None = None
    login: Login | None = None

    @property
    def protocol(self) -> SecurityProtocol:
        """Kafka's ``security.protocol``."""
        if self.login is None:
            return "PLAINTEXT" if self.tls is None else "SSL"
        return "SASL_PLAINTEXT" if self.tls is None else "SASL_SSL"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a connection ended. Outcomes are equal if their errors are; `text` is for messages of tests."""

    error: str | None
    """The client's name for the error: of an exception's class or of an error code. None: the client was served."""
    text: str = field(default="", compare=False)


SERVED: Final = Outcome(None)


def connect_with(client: str, address: str, security: Security, *, timeout_s: float = DEADLINE_S) -> Outcome:
    """Connect a client of `CLIENTS` to `address`, "host:port", ask it for the cluster's brokers, and close it.

    Clients that try again after an error do so for `timeout_s` seconds.
    """
    return CLIENTS[client](address, security, timeout_s)


def java(address: str, security: Security, timeout_s: float) -> Outcome:
    clients = JavaClients(JAVA_VERSION, address)
    if security.login is not None and security.login.is_signed_token:
        clients = JavaClients(VERSION_WITH_JOSE, address, "broker")
        _provide_oauthbearer(clients)
    settings: dict[str, str] = {}
    if security.login is not None:
        settings = _java_login(security.login)
    if security.tls is not None:
        settings |= security.tls.java_properties()
    timeout_ms = str(int(timeout_s * 1000))
    settings |= {
        "security_protocol": security.protocol,
        "default.api.timeout.ms": timeout_ms,
        "request.timeout.ms": timeout_ms,
    }
    with java_admin(clients, settings) as admin:
        try:
            assert done(admin.describeCluster().nodes()).size() > 0
        except start_jvm().java.util.concurrent.ExecutionException as error:
            cause = error.getCause()
            return Outcome(str(cause.getClass().getSimpleName()), str(cause))
        finally:
            if security.login is not None and security.login.is_signed_token:
                _provide_oauthbearer(JavaClients(JAVA_VERSION, address))
    return SERVED


def _provide_oauthbearer(clients: JavaClients) -> None:
    """Let Java use the mechanism of these clients: a JVM has one for all versions, which is that of the first login."""
    provider = clients.cls("org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerSaslClientProvider")
    start_jvm().java.security.Security.removeProvider("SASL/OAUTHBEARER Client Provider")
    provider.initialize()


def librdkafka(address: str, security: Security, timeout_s: float) -> Outcome:
    """Return the most telling error of the first ones; librdkafka itself tries again for ever."""
    errors: list[KafkaError] = []
    settings: dict[str, Any] = {"bootstrap.servers": address}
    if security.login is not None:
        settings = librdkafka_settings(address, *_as_tuple(security.login))
        if security.login.mechanism == OAUTHBEARER:
            token = security.login.password
            settings["oauth_cb"] = lambda _: (token, float(FUTURE_S))
    if security.tls is not None:
        settings |= security.tls.librdkafka_settings()
    client = AdminClient(settings | {"security.protocol": security.protocol, "error_cb": errors.append, "log_level": 0})

    def settled() -> bool:
        if errors:
            return True
        with contextlib.suppress(KafkaException):
            return bool(client.list_topics(timeout=0.2).brokers)
        client.poll(0)
        return bool(errors)

    eventually(settled, "an answer or an error", pause_s=0)
    reported = ["_SSL" if VERIFICATION_FAILED in error.str() else error.name() for error in errors]
    telling = [name for name in LIBRDKAFKA_ERRORS if name in reported]
    return Outcome((telling or reported)[0], str(errors)) if errors else SERVED


class ClosedAfterFailure(ssl.SSLSocket):
    """A socket that closes itself if its handshake fails: kafka-python 3.0.12 leaves it open."""

    def do_handshake(self, block: bool = False) -> None:
        """Do what can be done of the handshake without waiting, or with `block`, all of it."""
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError:
            self.close()
            raise


def kafka_python(address: str, security: Security, timeout_s: float) -> Outcome:
    """Connect once, for the cause, since the admin client tries again and then reports only that it has stopped."""
    settings: dict[str, Any] = {
        "bootstrap_servers": address,
        "security_protocol": security.protocol,
        **_sasl_arguments(security.login, KafkaPythonToken),
    }
    if security.tls is not None:
        arguments = security.tls.kafka_python_settings()
        arguments["ssl_context"].sslsocket_class = ClosedAfterFailure
        settings |= arguments
    try:
        _kafka_python_connection(settings)
        with contextlib.closing(KafkaAdminClient(bootstrap_timeout_ms=int(timeout_s * 1000), **settings)) as client:
            assert client.describe_cluster()["brokers"]
    except KafkaPythonError as error:
        return _refused(error)
    return SERVED


def _kafka_python_connection(settings: Mapping[str, Any]) -> None:
    """Open the connection that the admin client would open first, up to the login, and close it."""
    with contextlib.closing(KafkaNetClient(**settings)) as client:
        manager = client._manager
        [node] = manager.cluster.bootstrap_brokers()

        async def ready() -> None:
            await manager.get_connection(node.node_id, timeout_ms=DEADLINE_S * 1000)

        manager.run(ready)


def aiokafka(address: str, security: Security, timeout_s: float) -> Outcome:
    """Connect once, for the cause, since the admin client reports only that it could not connect."""
    host, _, port = address.rpartition(":")
    settings: dict[str, Any] = {
        "security_protocol": security.protocol,
        "request_timeout_ms": int(DEADLINE_S * 1000),
        **_sasl_arguments(security.login, AiokafkaToken),
    }
    if security.tls is not None:
        settings |= security.tls.aiokafka_settings()

    async def ask() -> None:
        connection = AIOKafkaConnection(host, int(port), **settings)
        try:
            await connection.connect()
        finally:
            connection.close()
            await _sockets_are_closed()
        client = AIOKafkaAdminClient(bootstrap_servers=address, **settings)
        try:
            await client.start()
            assert (await client.describe_cluster())["brokers"]
        finally:
            await client.close()
            await _sockets_are_closed()

    try:
        asyncio.run(ask())
    except (AiokafkaError, OSError) as error:
        return _refused(error)
    return SERVED


async def _sockets_are_closed() -> None:
    """Wait until this loop has closed its clients' sockets.

    aiokafka does not report the end of a connection whose handshake has failed, and its admin client does not wait for
    that of a connection that was not accepted.
    """
    loop: Any = asyncio.get_running_loop()
    async with asyncio.timeout(DEADLINE_S):
        while len(loop._selector.get_map()) > 1:  # noqa: ASYNC110 - asyncio reports no end; one is the loop's own
            await asyncio.sleep(CLOSING_POLL_S)
    for _ in range(CLOSING_STEPS):
        await asyncio.sleep(0)


def _refused(error: Exception) -> Outcome:
    """Add to the class whether the client itself refused the certificate, for which kafka-python has no class."""
    name, text = type(error).__name__, repr(error)
    return Outcome(f"{name} {_VERIFICATION}" if _VERIFICATION in text else name, text)


def _as_tuple(login: Login) -> tuple[str, str, str]:
    return login.mechanism, login.user, login.password


def _java_login(login: Login) -> dict[str, str]:
    """Return the settings of a Java client. An unsecured token is one that it can make itself, with the same claims."""
    settings = java_settings(login.mechanism, login.user, login.password)
    if login.mechanism != OAUTHBEARER:
        return settings
    module = settings["sasl_jaas_config"].partition(" ")[0]
    if not login.is_signed_token:
        claims = claims_of(login.password)
        scope = f' unsecuredLoginListClaim_scope=",{claims["scope"]}"' if "scope" in claims else ""
        return settings | {
            "sasl_jaas_config": f'{module} required unsecuredLoginStringClaim_sub="{claims["sub"]}"{scope};'
        }
    file = make_directory("token-").path / "token"
    file.write_text(login.password, encoding="ascii")
    system = start_jvm().java.lang.System
    system.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", file.as_uri())
    system.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", str(file))
    return settings | {
        "sasl_jaas_config": f"{module} required;",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        "sasl.login.callback.handler.class": f"{module.rpartition('.')[0]}.OAuthBearerLoginCallbackHandler",
    }


class KafkaPythonToken(AbstractTokenProvider):
    """A token, as kafka-python asks for it."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class AiokafkaToken(AiokafkaTokenProvider):
    """A token, as aiokafka asks for it."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    async def token(self) -> str:
        return self._token


def _sasl_arguments(login: Login | None, provider: Callable[[str], object]) -> dict[str, Any]:
    """Return the arguments of kafka-python and aiokafka."""
    if login is None:
        return {}
    if login.mechanism == OAUTHBEARER:
        return {"sasl_mechanism": login.mechanism, "sasl_oauth_token_provider": provider(login.password)}
    return {
        "sasl_mechanism": login.mechanism,
        "sasl_plain_username": login.user,
        "sasl_plain_password": login.password,
    }


CLIENTS: Final[Mapping[str, Callable[[str, Security, float], Outcome]]] = {
    "java": java,
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}
