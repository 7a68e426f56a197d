"""The observers beside Kafka's own SASL servers: an authenticated client has the name of ``getAuthorizationID``, and no
other client has one."""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, Any

import pytest

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.plugins.sasl_identity.options import IdentityOptions
from headrace.quota_callbacks.identities import TokenObserver
from testbed.kafka.jvm import java_bytes, kafka_classes, start_jvm
from tests.plugins.sasl_identity.sasl_messages import bearer, unsecured
from tests.plugins.sasl_oauth.issuer import claims, key_for, key_set, token
from tests.plugins.sasl_oauth.kafka_oauth import KafkaValidator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.quota_callbacks.identities import AuthenticationObserver

VERSION = "4.4.0"
SECURITY = "org.apache.kafka.common.security"
OAUTH = f"{SECURITY}.oauthbearer.internals"
PASSWORD = "correct-horse"
NAMES = ["alice", "a,b=c", "=2C", "=3D", "User:x/y@Z", "ANONYMOUS", " spaced out ", "a\x01b"]
PADDED = [" spaced out ", "\t\r\nalice\x01", "\x1falice\x20", "\u00a0alice\u3000", "\u2003alice\x7f", " a "]
"""With characters that Java, Python or both remove from the ends."""


def cls(name: str) -> Any:
    return kafka_classes(VERSION).cls(name)


class Exchange:
    """A SASL server of Kafka, and the plugin's observer, which receives what the proxy would pass to it."""

    def __init__(self, mechanism: str, server: Any, fallback: str | None = None) -> None:
        plugin = SaslIdentity()
        if fallback is not None:
            plugin._options = IdentityOptions(fallback_user=fallback)
        self.observer: AuthenticationObserver = plugin.authentication_started(mechanism)
        self.server = server

    def sends(self, token: bytes) -> bytes | None:
        """The server's answer; ``None`` when it refused."""
        try:
            answer = bytes(self.server.evaluateResponse(java_bytes(token)))
        except start_jvm().JException:
            return None
        self.observer.exchanged(token, answer)
        return answer

    def agree(self) -> str | None:
        """Check that server and observer agree, and return the accepted principal."""
        accepted = str(self.server.getAuthorizationID()) if self.server.isComplete() else None
        assert self.observer.principal == accepted
        return accepted


def handler(handle: Callable[[Any], None]) -> Any:
    class Handler:
        def configure(self, *_: object) -> None: ...

        def close(self) -> None: ...

        def handle(self, callbacks: Any) -> None:
            for callback in callbacks:
                handle(callback)

    return start_jvm().JProxy(cls(f"{SECURITY}.auth.AuthenticateCallbackHandler"), inst=Handler())


# --- PLAIN ---


def plain_server() -> Any:
    wanted = cls(f"{SECURITY}.plain.PlainAuthenticateCallback")

    def authenticate(callback: Any) -> None:
        if isinstance(callback, wanted):
            callback.authenticated("".join(callback.password()) == PASSWORD)

    return cls(f"{SECURITY}.plain.internals.PlainSaslServer")(handler(authenticate))


@pytest.mark.parametrize("name", [*NAMES, "日,本"])
def test_plain(name: str) -> None:
    for authzid in ("", name):
        exchange = Exchange("PLAIN", plain_server())
        assert exchange.sends(f"{authzid}\0{name}\0{PASSWORD}".encode()) == b""
        assert exchange.agree() == name


@pytest.mark.parametrize(
    "token",
    [b"\0alice\0wrong", b"bob\0alice\0correct-horse", b"\0\0correct-horse", b"\0alice\0correct-horse\0", b"", b"alice"],
)
def test_plain_that_is_refused(token: bytes) -> None:
    exchange = Exchange("PLAIN", plain_server())
    assert exchange.sends(token) is None
    assert exchange.agree() is None


# --- SCRAM ---


@pytest.fixture(params=["SCRAM-SHA-256", "SCRAM-SHA-512"])
def mechanism(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def scram_parts(mechanism: str) -> tuple[Any, Any]:
    java_mechanism = cls(f"{SECURITY}.scram.internals.ScramMechanism").forMechanismName(mechanism)
    formatter = cls(f"{SECURITY}.scram.internals.ScramFormatter")(java_mechanism)
    return java_mechanism, formatter.generateCredential(PASSWORD, 4096)


def scram_server(mechanism: str, token_owner: str | None = None) -> Any:
    java_mechanism, credential = scram_parts(mechanism)
    wanted = cls(f"{SECURITY}.scram.ScramCredentialCallback")

    def authenticate(callback: Any) -> None:
        if isinstance(callback, wanted):
            callback.scramCredential(credential)
            if token_owner is not None:
                callback.tokenOwner(token_owner)

    properties = start_jvm().java.util.HashMap()
    return cls(f"{SECURITY}.scram.internals.ScramSaslServer")(java_mechanism, properties, handler(authenticate))


def scram_client(mechanism: str, name: str, password: str, extensions: dict[str, str]) -> Any:
    java = start_jvm().java
    java_mechanism, _ = scram_parts(mechanism)
    callbacks = java.lang.ClassLoader.getPlatformClassLoader().loadClass
    name_callback = callbacks("javax.security.auth.callback.NameCallback")
    password_callback = callbacks("javax.security.auth.callback.PasswordCallback")
    wanted = cls(f"{SECURITY}.scram.ScramExtensionsCallback")

    def answer(callback: Any) -> None:
        if name_callback.isInstance(callback):
            callback.setName(name)
        elif password_callback.isInstance(callback):
            callback.setPassword(start_jvm().JArray(start_jvm().JChar)(password))
        elif isinstance(callback, wanted):
            found = java.util.HashMap()
            for key, value in extensions.items():
                found.put(key, value)
            callback.extensions(found)

    return cls(f"{SECURITY}.scram.internals.ScramSaslClient")(java_mechanism, handler(answer))


def scram(exchange: Exchange, client: Any) -> None:
    """Let Kafka's client speak with Kafka's server."""
    token = client.evaluateChallenge(java_bytes(b""))
    while (answer := exchange.sends(bytes(token))) is not None:
        if exchange.server.isComplete():
            break
        exchange.agree()
        token = client.evaluateChallenge(java_bytes(answer))


@pytest.mark.parametrize("name", NAMES)
def test_scram(mechanism: str, name: str) -> None:
    exchange = Exchange(mechanism, scram_server(mechanism))
    scram(exchange, scram_client(mechanism, name, PASSWORD, {}))
    assert exchange.agree() == name


def test_scram_with_a_wrong_password(mechanism: str) -> None:
    exchange = Exchange(mechanism, scram_server(mechanism))
    scram(exchange, scram_client(mechanism, "alice", "wrong", {}))
    assert exchange.agree() is None


def test_a_delegation_token_is_its_owners_and_seen_as_the_fallback_user(mechanism: str) -> None:
    exchange = Exchange(mechanism, scram_server(mechanism, token_owner="alice"), fallback="somebody")
    scram(exchange, scram_client(mechanism, "token-id", PASSWORD, {"tokenauth": "true"}))
    assert exchange.server.getAuthorizationID() == "alice"
    assert exchange.observer.principal == "somebody"
    assert isinstance(exchange.observer, TokenObserver)
    assert exchange.observer.token_id == "token-id"


# --- OAUTHBEARER ---


@pytest.fixture
def oauth_server() -> Iterator[Any]:
    """With Kafka's validator of unsecured tokens."""
    java = start_jvm().java
    validator = cls(f"{OAUTH}.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler")()
    entry = start_jvm().JClass("javax.security.auth.login.AppConfigurationEntry")
    flag = start_jvm().JClass("javax.security.auth.login.AppConfigurationEntry$LoginModuleControlFlag").REQUIRED
    module = f"{SECURITY}.oauthbearer.OAuthBearerLoginModule"
    entries = java.util.List.of(entry(module, flag, java.util.HashMap()))
    validator.configure(java.util.HashMap(), "OAUTHBEARER", entries)
    yield cls(f"{OAUTH}.OAuthBearerSaslServer")(validator)
    validator.close()


@pytest.mark.parametrize("name", [*NAMES, *PADDED, "日,本", '"\\'])
def test_oauthbearer(oauth_server: Any, name: str) -> None:
    exchange = Exchange("OAUTHBEARER", oauth_server)
    assert exchange.sends(bearer(unsecured({"sub": name}))) == b""
    assert exchange.agree() == name


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaValidator]:
    """Kafka's validator of signed tokens."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_bytes(key_set(key_for("ES256")))
    found = KafkaValidator(file, audience=("kafka",))
    yield found
    found.close()


@pytest.mark.parametrize("name", [*NAMES, *PADDED])
def test_oauthbearer_with_a_signature(validator: KafkaValidator, name: str) -> None:
    exchange = Exchange("OAUTHBEARER", validator.server().java_server)
    assert exchange.sends(bearer(token(claims(time_ns() / 1e9, sub=name), algorithm="ES256"))) == b""
    accepted = exchange.agree()
    assert accepted is not None
    assert accepted in name


def test_oauthbearer_with_a_signature_and_an_empty_name(validator: KafkaValidator) -> None:
    exchange = Exchange("OAUTHBEARER", validator.server().java_server)
    assert exchange.sends(bearer(token(claims(time_ns() / 1e9, sub=" \n"), algorithm="ES256"))) != b""
    assert exchange.agree() is None


def test_oauthbearer_takes_the_last_of_two_tokens(oauth_server: Any) -> None:
    exchange = Exchange("OAUTHBEARER", oauth_server)
    again = f"auth=bearer {unsecured({'sub': 'last'})}\x01"
    assert exchange.sends(bearer(unsecured({"sub": "first"}), extensions=again)) == b""
    assert exchange.agree() == "last"


def test_oauthbearer_that_tries_again_after_an_error(oauth_server: Any) -> None:
    """The error comes without an error code, and the server takes another token."""
    exchange = Exchange("OAUTHBEARER", oauth_server)
    answer = exchange.sends(bearer(unsecured({"sub": "mallory", "exp": 1})))
    assert answer is not None
    assert b"invalid_token" in answer
    assert exchange.agree() is None
    assert exchange.sends(bearer(unsecured({"sub": "alice"}))) == b""
    assert exchange.agree() == "alice"


@pytest.mark.parametrize(
    "token",
    [
        bearer(unsecured({"sub": "alice"}), authzid="a=bob"),
        bearer("opaque"),
        bearer(unsecured({"sub": 5})),
        bearer(unsecured({})),
        b"",
        b"\x01",
    ],
)
def test_oauthbearer_that_is_refused(oauth_server: Any, token: bytes) -> None:
    exchange = Exchange("OAUTHBEARER", oauth_server)
    assert exchange.sends(token) != b""
    assert exchange.agree() is None
