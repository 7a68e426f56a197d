"""One login by each kind of client: it asks for the cluster's brokers, or raises `RefusedError`."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from testbed.kafka.jvm import start_jvm
from tests.clients.fronts import DEADLINE_S, eventually
from tests.clients.java_clients import JavaClients, done
from tests.plugins.sasl_identity.sasl_messages import FUTURE_S, unsecured

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas, as it is imported, by a function that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError as KafkaPythonError
    from kafka.net.sasl.oauth import AbstractTokenProvider

if TYPE_CHECKING:
    from collections.abc import Callable

JAVA_VERSION = "4.4.0"
POLL_S = 0.05
TRIES_MS = 10_000
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}


class RefusedError(Exception):
    """The broker has refused the login."""


def java_settings(mechanism: str, name: str, password: str, *more: str) -> dict[str, str]:
    """The settings of a client of `JavaClients`; ``more`` are options of its login module."""
    options = [f'username="{name}"', f'password="{password}"', *more]
    if mechanism == "OAUTHBEARER":
        options = [f'unsecuredLoginStringClaim_sub="{name}"']
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_jaas_config": f"{_MODULES[mechanism]} required {' '.join(options)};",
    }


def librdkafka_settings(bootstrap_servers: str, mechanism: str, name: str, password: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return settings | {"oauth_cb": lambda _: (unsecured({"sub": name}), float(FUTURE_S))}
    return settings | {"sasl.username": name, "sasl.password": password}


def java(bootstrap_servers: str, mechanism: str, name: str, password: str) -> None:
    clients = JavaClients(JAVA_VERSION, bootstrap_servers)
    with java_admin(clients, java_settings(mechanism, name, password)) as admin:
        try:
            assert done(admin.describeCluster().nodes()).size() > 0
        except start_jvm().java.util.concurrent.ExecutionException as error:
            raise RefusedError(str(error)) from None


@contextlib.contextmanager
def java_admin(clients: JavaClients, settings: dict[str, str]) -> Any:
    """`JavaClients.admin` with settings."""
    admin = clients.cls("org.apache.kafka.clients.admin.Admin").create(clients._config(settings))
    try:
        yield admin
    finally:
        admin.close(clients.seconds(DEADLINE_S))


def librdkafka(bootstrap_servers: str, mechanism: str, name: str, password: str) -> None:
    errors: list[KafkaError] = []
    settings = librdkafka_settings(bootstrap_servers, mechanism, name, password) | {"error_cb": errors.append}
    client = AdminClient(settings)

    def settled() -> bool:
        client.poll(POLL_S)
        if KafkaError._AUTHENTICATION in [error.code() for error in errors]:
            return True
        try:
            return bool(client.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    eventually(settled, "an answer to the login", pause_s=0)
    if KafkaError._AUTHENTICATION in [error.code() for error in errors]:
        raise RefusedError(str(errors[0]))


def kafka_python(bootstrap_servers: str, mechanism: str, name: str, password: str, **more: Any) -> None:
    """``more`` are further arguments of the client."""

    class Token(AbstractTokenProvider):
        def token(self) -> str:
            return unsecured({"sub": name})

    settings: dict[str, Any] = {"sasl_plain_username": name, "sasl_plain_password": password}
    if mechanism == "OAUTHBEARER":
        settings = {"sasl_oauth_token_provider": Token()}
    try:
        with contextlib.closing(
            KafkaAdminClient(
                bootstrap_servers=bootstrap_servers,
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism=mechanism,
                bootstrap_timeout_ms=TRIES_MS,  # it tries again after a refusal, too
                **settings,
                **more,
            )
        ) as client:
            assert client.describe_cluster()["brokers"]
    except KafkaPythonError as error:
        raise RefusedError(str(error)) from error


CLIENTS: dict[str, Callable[[str, str, str, str], None]] = {
    "java": java,
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
}
