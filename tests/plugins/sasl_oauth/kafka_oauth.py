"""Kafka's own SASL server and client for OAUTHBEARER, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from testbed.kafka.jvm import java_bytes, kafka_classes, start_jvm

if TYPE_CHECKING:
    from pathlib import Path

VERSION: Final = "4.3.1"
SECURITY: Final = "org.apache.kafka.common.security"
OAUTH: Final = f"{SECURITY}.oauthbearer"
_PREFIX: Final = "sasl.oauthbearer."


def cls(name: str) -> Any:
    return kafka_classes(VERSION, "broker").cls(name)


class KafkaValidator:
    """A broker's handler that verifies tokens by the key set in a file."""

    def __init__(
        self, file: Path, *, audience: tuple[str, ...] = (), issuer: str | None = None, skew_s: int = 30
    ) -> None:
        java = start_jvm().java
        url = file.absolute().as_uri()
        java.lang.System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url)
        java.lang.System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", str(file.absolute()))
        configs = java.util.HashMap()
        configs.put(f"{_PREFIX}jwks.endpoint.url", url)
        configs.put(f"{_PREFIX}jwt.validator.class", cls(f"{OAUTH}.BrokerJwtValidator").class_)
        configs.put(f"{_PREFIX}clock.skew.seconds", java.lang.Integer(skew_s))
        configs.put(f"{_PREFIX}scope.claim.name", "scope")
        configs.put(f"{_PREFIX}sub.claim.name", "sub")
        configs.put(f"{_PREFIX}expected.audience", java.util.ArrayList(audience))
        if issuer is not None:
            configs.put(f"{_PREFIX}expected.issuer", issuer)
        self._handler = cls(f"{OAUTH}.OAuthBearerValidatorCallbackHandler")()
        self._handler.configure(configs, "OAUTHBEARER", _jaas())

    def server(self) -> KafkaServer:
        return KafkaServer(cls(f"{OAUTH}.internals.OAuthBearerSaslServer")(self._handler))

    def close(self) -> None:
        self._handler.close()


class KafkaServer:
    """``OAuthBearerSaslServer``."""

    def __init__(self, server: Any) -> None:
        self.java_server = server

    def respond(self, token: bytes) -> bytes | None:
        """The server's answer; ``None`` if it refused."""
        try:
            return bytes(self.java_server.evaluateResponse(java_bytes(token)))
        except start_jvm().JException:
            return None

    @property
    def principal(self) -> str | None:
        return str(self.java_server.getAuthorizationID()) if self.java_server.isComplete() else None


def _jaas() -> Any:
    java = start_jvm().java
    entry = start_jvm().JClass("javax.security.auth.login.AppConfigurationEntry")
    flag = start_jvm().JClass("javax.security.auth.login.AppConfigurationEntry$LoginModuleControlFlag").REQUIRED
    return java.util.List.of(entry(f"{OAUTH}.OAuthBearerLoginModule", flag, java.util.HashMap()))
