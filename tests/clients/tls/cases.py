"""Right and wrong security settings, and what each client reports when it connects with them to a broker.

`CASES` is run against the listeners of `tests.secure_cluster`, and can be run against a proxy with listeners of the
same kinds: what a client reports through the proxy must be among the same errors.

Several clients do not report a mistake as what it is:

* A broker closes a connection on which it received what it does not understand. Then Java's clients and kafka-python's
  admin client try again until their time is over, aiokafka reports that the connection was closed, and librdkafka that
  no broker is left.
* With TLS 1.3, a client learns only after the handshake that its certificate is refused. To librdkafka, kafka-python
  and aiokafka this is a connection that was closed.
* A client without TLS takes the first bytes of a TLS alert for a length of 336 MiB. Java's client then runs out of
  memory, and kafka-python refuses the length, unless it has seen the end of the connection first.
* aiokafka takes a token for accepted whose refusal is described in the answer (RFC 7628), until the broker closes.
* kafka-python drops the reply to a wrong password if the end of the connection is there at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from testbed.kafka.certificates import ClientTls
from tests.clients.fronts import DEADLINE_S
from tests.clients.tls.connecting import CLIENTS, SERVED, Login, Outcome, Security
from tests.secure_cluster import Port, SecureKafka
from tests.shared_cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Errors = Mapping[str, frozenset[str]]

RETRIED_S: Final = 1.0
"""The time for which a client tries again that does not know that it never will be served."""

PLAIN: Final = Login(mechanism="PLAIN", user="alice", password=SECRETS["alice"])
SCRAM: Final = Login(mechanism="SCRAM-SHA-256", user="bob", password=SECRETS["bob"])
SCRAM_512: Final = Login(mechanism="SCRAM-SHA-512", user="bob", password=SECRETS["bob"])
WRONG_PLAIN: Final = Login(mechanism="PLAIN", user="alice", password="wrong")
WRONG_SCRAM: Final = Login(mechanism="SCRAM-SHA-256", user="bob", password="wrong")
WRONG_SCRAM_512: Final = Login(mechanism="SCRAM-SHA-512", user="bob", password="wrong")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A listener, the settings of a client, and the errors that each client may report; without any, it is served."""

    name: str
    port: Port
    security: Callable[[SecureKafka], Security]
    errors: Errors | None = None
    timeout_s: float = DEADLINE_S

    def problem(self, client: str, outcome: Outcome) -> str | None:
        """Return what is wrong with this outcome, or None."""
        if self.errors is None:
            expected = "to be served"
            right = outcome == SERVED
        else:
            expected = " or ".join(sorted(self.errors[client]))
            right = outcome.error in self.errors[client]
        return None if right else f"{client}, {self.name}: expected {expected}, not {outcome}"


def errors_of(*, java: str, librdkafka: str, kafka_python: str, aiokafka: str) -> Errors:
    """Return the errors by client; an argument has one or several, with spaces and "|" between them."""
    each = dict(zip(CLIENTS, (java, librdkafka, kafka_python, aiokafka), strict=True))
    return {client: frozenset(names.split(" | ")) for client, names in each.items()}


BROKER_NOT_TRUSTED: Final = errors_of(
    java="SslAuthenticationException",
    librdkafka="_SSL",
    kafka_python="KafkaConnectionError CERTIFICATE_VERIFY_FAILED",
    aiokafka="SSLCertVerificationError CERTIFICATE_VERIFY_FAILED",
)
CLIENT_NOT_TRUSTED: Final = errors_of(
    java="SslAuthenticationException",
    librdkafka="_TRANSPORT",
    kafka_python="KafkaConnectionError",
    aiokafka="KafkaConnectionError",
)
NO_TLS: Final = errors_of(
    java="TimeoutException",
    librdkafka="_ALL_BROKERS_DOWN",
    kafka_python="KafkaConnectionError | InvalidReceiveError",
    aiokafka="KafkaConnectionError",
)
TLS_NOT_WANTED: Final = errors_of(
    java="TimeoutException",
    librdkafka="_TRANSPORT",
    kafka_python="KafkaConnectionError",
    aiokafka="ConnectionResetError",
)
WRONG_PASSWORD: Final = errors_of(
    java="SaslAuthenticationException",
    librdkafka="_AUTHENTICATION",
    kafka_python="SaslAuthenticationFailedError | KafkaConnectionError",
    aiokafka="SaslAuthenticationFailed",
)
WRONG_TOKEN: Final = errors_of(
    java="SaslAuthenticationException",
    librdkafka="_AUTHENTICATION",
    kafka_python="SaslAuthenticationFailedError | KafkaConnectionError",
    aiokafka="NodeNotReadyError | KafkaConnectionError",
)
NO_LOGIN: Final = errors_of(
    java="TimeoutException",
    librdkafka="_ALL_BROKERS_DOWN",
    kafka_python="KafkaTimeoutError",
    aiokafka="KafkaConnectionError",
)
LOGIN_NOT_WANTED: Final = errors_of(
    java="IllegalSaslStateException",
    librdkafka="_AUTHENTICATION",
    kafka_python="IllegalSaslStateError",
    aiokafka="IllegalSaslStateError",
)


def _is_served(name: str, port: Port, security: Callable[[SecureKafka], Security]) -> Case:
    return Case(name=name, port=port, security=security)


def _is_refused(name: str, port: Port, errors: Errors, security: Callable[[SecureKafka], Security]) -> Case:
    retried = errors in (NO_TLS, TLS_NOT_WANTED, NO_LOGIN)
    timeout_s = RETRIED_S if retried else DEADLINE_S
    return Case(name=name, port=port, security=security, errors=errors, timeout_s=timeout_s)


CASES: Final = (
    _is_served("no security", Port.PLAINTEXT, lambda _: Security()),
    _is_served("TLS", Port.TLS, lambda kafka: Security(tls=kafka.tls)),
    _is_served("TLS, a certificate that nobody asks for", Port.TLS, lambda kafka: Security(tls=kafka.mutual_tls)),
    _is_served("mutual TLS", Port.MUTUAL_TLS, lambda kafka: Security(tls=kafka.mutual_tls)),
    _is_served(
        "a certificate for another host, names not verified",
        Port.OTHER_HOST,
        lambda kafka: Security(tls=ClientTls(authority=kafka.authority, verify_names=False)),
    ),
    _is_served("PLAIN", Port.SASL, lambda _: Security(login=PLAIN)),
    _is_served("SCRAM", Port.SASL, lambda _: Security(login=SCRAM)),
    _is_served("SCRAM-SHA-512", Port.SASL, lambda _: Security(login=SCRAM_512)),
    _is_served("PLAIN in TLS", Port.SASL_TLS, lambda kafka: Security(tls=kafka.tls, login=PLAIN)),
    _is_served("SCRAM in TLS", Port.SASL_TLS, lambda kafka: Security(tls=kafka.tls, login=SCRAM)),
    _is_served("SCRAM-SHA-512 in TLS", Port.SASL_TLS, lambda kafka: Security(tls=kafka.tls, login=SCRAM_512)),
    _is_served("SCRAM in mutual TLS", Port.SASL_MUTUAL_TLS, lambda kafka: Security(tls=kafka.mutual_tls, login=SCRAM)),
    _is_refused(
        "a broker of an authority that the client does not trust",
        Port.TLS,
        BROKER_NOT_TRUSTED,
        lambda kafka: Security(tls=ClientTls(authority=kafka.stranger)),
    ),
    _is_refused(
        "a broker whose certificate has expired",
        Port.EXPIRED,
        BROKER_NOT_TRUSTED,
        lambda kafka: Security(tls=kafka.tls),
    ),
    _is_refused(
        "a broker whose certificate is for another host",
        Port.OTHER_HOST,
        BROKER_NOT_TRUSTED,
        lambda kafka: Security(tls=kafka.tls),
    ),
    _is_refused(
        "no client certificate where one is required",
        Port.MUTUAL_TLS,
        CLIENT_NOT_TRUSTED,
        lambda kafka: Security(tls=kafka.tls),
    ),
    _is_refused(
        "a client certificate of an authority that the broker does not trust",
        Port.MUTUAL_TLS,
        CLIENT_NOT_TRUSTED,
        lambda kafka: Security(tls=ClientTls(authority=kafka.authority, certificate=kafka.strange_client)),
    ),
    _is_refused(
        "a client certificate that has expired",
        Port.MUTUAL_TLS,
        CLIENT_NOT_TRUSTED,
        lambda kafka: Security(tls=ClientTls(authority=kafka.authority, certificate=kafka.expired_client)),
    ),
    _is_refused("no TLS to a TLS port", Port.TLS, NO_TLS, lambda _: Security()),
    _is_refused("TLS to a port without", Port.PLAINTEXT, TLS_NOT_WANTED, lambda kafka: Security(tls=kafka.tls)),
    _is_refused(
        "a wrong password by PLAIN in TLS",
        Port.SASL_TLS,
        WRONG_PASSWORD,
        lambda kafka: Security(tls=kafka.tls, login=WRONG_PLAIN),
    ),
    _is_refused(
        "a wrong password by SCRAM in TLS",
        Port.SASL_TLS,
        WRONG_PASSWORD,
        lambda kafka: Security(tls=kafka.tls, login=WRONG_SCRAM),
    ),
    _is_refused("a wrong password by SCRAM", Port.SASL, WRONG_PASSWORD, lambda _: Security(login=WRONG_SCRAM)),
    _is_refused(
        "a wrong password by SCRAM-SHA-512", Port.SASL, WRONG_PASSWORD, lambda _: Security(login=WRONG_SCRAM_512)
    ),
    _is_refused("no login where one is required", Port.SASL_TLS, NO_LOGIN, lambda kafka: Security(tls=kafka.tls)),
    _is_refused(
        "a login where none is wanted",
        Port.TLS,
        LOGIN_NOT_WANTED,
        lambda kafka: Security(tls=kafka.tls, login=PLAIN),
    ),
)
