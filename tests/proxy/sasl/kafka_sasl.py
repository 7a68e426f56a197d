"""Kafka's own SASL clients and servers, in the JVM of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testbed.kafka.jvm import kafka_classes, start_jvm

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.sasl.scram import ScramMechanism, ScramVerifier

VERSION = "4.4.0"
SECURITY = "org.apache.kafka.common.security"
SCRAM = f"{SECURITY}.scram.internals"


class JavaSaslError(Exception):
    """Kafka has refused a message."""


class KafkaSasl:
    """A SaslClient or a SaslServer of Kafka."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def evaluate(self, message: bytes) -> bytes | None:
        """Return the next message. Raises `JavaSaslError`."""
        method = getattr(self._java, "evaluateResponse", None) or self._java.evaluateChallenge
        try:
            answer = method(message)
        except start_jvm().JException as error:
            raise JavaSaslError(str(error)) from error
        return None if answer is None else bytes(answer)

    @property
    def complete(self) -> bool:
        return bool(self._java.isComplete())

    @property
    def user(self) -> str:
        return str(self._java.getAuthorizationID())


def _kind(mechanism: ScramMechanism) -> Any:
    return kafka_classes(VERSION).cls(f"{SCRAM}.ScramMechanism").forMechanismName(mechanism.value)


def _handler(handle: Callable[[Any], None]) -> Any:
    """Return a handler of callbacks, each of which is given to ``handle``."""
    interface = kafka_classes(VERSION).cls(f"{SECURITY}.auth.AuthenticateCallbackHandler")

    def each(callbacks: Any) -> None:
        for callback in callbacks:
            handle(callback)

    return start_jvm().JProxy(interface, dict={"handle": each})


def _answer(callback: Any, user: str, password: str) -> None:
    match callback.getClass().getSimpleName():
        case "NameCallback":
            callback.setName(user)
        case "PasswordCallback":
            callback.setPassword(start_jvm().JString(password).toCharArray())


def scram_client(mechanism: ScramMechanism, user: str, password: str) -> KafkaSasl:
    made = kafka_classes(VERSION).cls(f"{SCRAM}.ScramSaslClient")
    return KafkaSasl(made(_kind(mechanism), _handler(lambda callback: _answer(callback, user, password))))


def scram_server(mechanism: ScramMechanism, users: dict[str, ScramVerifier]) -> KafkaSasl:
    classes = kafka_classes(VERSION)
    credential = classes.cls(f"{SECURITY}.scram.ScramCredential")
    named: list[str] = []

    def answer(callback: Any) -> None:
        match str(callback.getClass().getSimpleName()):
            case "NameCallback":
                named.append(str(callback.getDefaultName()))
            case "ScramCredentialCallback" if (found := users.get(named[-1])) is not None:
                keys = (found.salt, found.stored_key, found.server_key)
                callback.scramCredential(credential(*keys, found.iterations))

    made = classes.cls(f"{SCRAM}.ScramSaslServer")
    return KafkaSasl(made(_kind(mechanism), start_jvm().java.util.HashMap(), _handler(answer)))


def plain_server(users: dict[str, str]) -> KafkaSasl:
    named: list[str] = []

    def answer(callback: Any) -> None:
        match str(callback.getClass().getSimpleName()):
            case "NameCallback":
                named.append(str(callback.getDefaultName()))
            case "PlainAuthenticateCallback":
                given = "".join(callback.password())
                callback.authenticated(users.get(named[-1]) == given)

    made = kafka_classes(VERSION).cls(f"{SECURITY}.plain.internals.PlainSaslServer")
    return KafkaSasl(made(_handler(answer)))
