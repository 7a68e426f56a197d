"""One broker with a listener for each way of TLS and SASL, which all tests of one process share.

`secure_cluster` creates it; the fixture `secure_kafka` starts it when a test first asks for it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from testbed.kafka.certificates import EXPIRED, Authority, Certificate, ClientTls
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import Listener, plain_jaas, scram_jaas
from tests.shared_cluster import NOT_FENCED, OAUTH_JAAS, SECRETS

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.kafka.properties import ClientCertificates, SecurityProtocol

SUBJECT: Final = "CN=alice,OU=Clients,O=Example"
"""The subject of `SecureKafka.client`."""
SCOPE: Final = "kafka"
"""The scope that tokens must have, so that a client can have a wrong one."""
ELSEWHERE: Final = "broker.elsewhere.example"
"""The only host for which `Port.OTHER_HOST` has a certificate."""


class Port(enum.StrEnum):
    """The listeners."""

    PLAINTEXT = "PLAINTEXT"
    TLS = "TLS"
    """Asks for no client certificate."""
    MUTUAL_TLS = "MUTUAL"
    """Requires a client certificate of `SecureKafka.authority`."""
    OTHER_HOST = "OTHERHOST"
    """TLS with a certificate for `ELSEWHERE`."""
    EXPIRED = "EXPIRED"
    """TLS with a certificate that has expired."""
    SASL = "SASL"
    """SASL without TLS: PLAIN, SCRAM and OAUTHBEARER with unsecured tokens of the scope `SCOPE`."""
    SASL_TLS = "SASLTLS"
    """The same with TLS; asks for no client certificate."""
    SASL_MUTUAL_TLS = "SASLMUTUAL"
    """The same with TLS; requires a client certificate of `SecureKafka.authority`."""

    @property
    def protocol(self) -> SecurityProtocol:
        """Kafka's ``security.protocol`` for this listener."""
        return _PROTOCOLS.get(self, "SSL")


_PROTOCOLS: Final[dict[Port, SecurityProtocol]] = {
    Port.PLAINTEXT: "PLAINTEXT",
    Port.SASL: "SASL_PLAINTEXT",
    Port.SASL_TLS: "SASL_SSL",
    Port.SASL_MUTUAL_TLS: "SASL_SSL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureKafka:
    """The cluster, and the certificates of brokers and clients."""

    cluster: KafkaCluster
    authority: Authority
    """Issued the brokers' certificates, and those of the clients that the brokers accept."""
    stranger: Authority
    """An authority that no broker trusts."""
    broker: Certificate
    """The certificate of all listeners but `Port.OTHER_HOST` and `Port.EXPIRED`, and one that a proxy may use."""
    client: Certificate
    """A client's certificate, with `SUBJECT`."""
    expired: Certificate
    """The certificate of `Port.EXPIRED`."""
    expired_client: Certificate
    """A certificate with the same subject that has expired."""
    strange_client: Certificate
    """A certificate with the same subject that `stranger` has issued."""

    def address(self, port: Port) -> str:
        """Return the address of a listener, "host:port"."""
        return self.cluster.addresses(port)

    @property
    def tls(self) -> ClientTls:
        """What a client needs that shows no certificate."""
        return ClientTls(authority=self.authority)

    @property
    def mutual_tls(self) -> ClientTls:
        """What a client needs that shows `client`."""
        return ClientTls(authority=self.authority, certificate=self.client)


def secure_cluster(folder: Path) -> SecureKafka:
    """Return the cluster, not yet started, with its certificates in `folder`.

    The users are `tests.shared_cluster.SECRETS`, for PLAIN and for both kinds of SCRAM.
    """
    authority, stranger = Authority(folder), Authority(folder, "stranger")
    broker = authority.broker_certificate()
    certificates = {
        Port.OTHER_HOST: authority.broker_certificate("elsewhere", hosts=[ELSEWHERE]),
        Port.EXPIRED: authority.broker_certificate("expired", valid_for=EXPIRED),
    }
    return SecureKafka(
        cluster=KafkaCluster(
            listeners=[
                _listener(port, certificates.get(port, broker), authority)
                for port in Port
                if port is not Port.PLAINTEXT  # which every broker has
            ],
            scram_users=SECRETS,
            # Tokens name the user that the broker sees.
            config={"delegation.token.secret.key": "a-secret-of-brokers", **NOT_FENCED},
        ),
        authority=authority,
        stranger=stranger,
        broker=broker,
        expired=certificates[Port.EXPIRED],
        client=authority.client_certificate(SUBJECT),
        expired_client=authority.client_certificate(SUBJECT, name="expired-client", valid_for=EXPIRED),
        strange_client=stranger.client_certificate(SUBJECT),
    )


def _listener(port: Port, certificate: Certificate, authority: Authority) -> Listener:
    is_mutual = port in (Port.MUTUAL_TLS, Port.SASL_MUTUAL_TLS)
    required: ClientCertificates = "required" if is_mutual else "none"
    mechanisms = {
        "PLAIN": plain_jaas(SECRETS),
        **dict.fromkeys(("SCRAM-SHA-256", "SCRAM-SHA-512"), scram_jaas()),
        "OAUTHBEARER": OAUTH_JAAS.replace(";", f' unsecuredValidatorRequiredScope="{SCOPE}";'),
    }
    return Listener(
        name=port.value,
        protocol=port.protocol,
        sasl=mechanisms if port.protocol.startswith("SASL") else {},
        certificate=certificate if port.protocol.endswith("SSL") else None,
        client_certificates=required,
        client_authority=authority if is_mutual else None,
    )
