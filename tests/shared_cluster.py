"""The cluster that all tests of one process share: three brokers of Kafka 4.3.1 with SASL listeners and JMX.

Tests that talk to one broker by hand take `FirstBroker`, and put their topics there with `new_topic`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import NewTopic

from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import MAIN_LISTENER, Listener, plain_jaas, scram_jaas

if TYPE_CHECKING:
    from testbed.kafka.broker import Broker

LISTENER: Final = "CLIENTS"
"""Requires a login by one of `PLAIN_USERS`, `SCRAM_USERS`, or an unsecured token."""
SHORT_SESSIONS: Final = "SHORT"
"""PLAIN alone, and a session ends after `SESSION_MS`."""
SESSION_MS: Final = 4000
SECRETS: Final = {"alice": "correct-horse-a", "bob": "correct-horse-b", "carol": "correct-horse-c"}
PRODUCERS_SECRET: Final = "correct-horse"
HIDDEN: Final = ("hidden", "hidden-natively")
PRODUCERS: Final = ("java", "librdkafka", "shortened", "both", "raw", "many", *HIDDEN, "unheard", "bystander")
"""The users of the tests of ``producer_ids_rate``."""
PLAIN_USERS: Final = {name: SECRETS[name] for name in ("alice", "bob")} | dict.fromkeys(PRODUCERS, PRODUCERS_SECRET)
SCRAM_USERS: Final = {name: SECRETS[name] for name in ("bob", "carol")}
"""For SCRAM-SHA-256 and SCRAM-SHA-512."""
OAUTH_JAAS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    ' unsecuredLoginStringClaim_sub="broker";'
)


NOT_FENCED: Final = {"broker.session.timeout.ms": 60_000, "broker.heartbeat.interval.ms": 2000}
"""For clusters of which no broker is killed: on a busy machine, the four seconds of the testbed would fence one."""


def shared_cluster() -> KafkaCluster:
    """Return the cluster, not yet started."""
    plain = plain_jaas(PLAIN_USERS)
    jaas = {
        "PLAIN": plain,
        **dict.fromkeys(("SCRAM-SHA-256", "SCRAM-SHA-512"), scram_jaas()),
        "OAUTHBEARER": OAUTH_JAAS,
    }
    return KafkaCluster(
        brokers=3,
        config={
            "delegation.token.secret.key": "a-secret-of-brokers",
            **NOT_FENCED,
        },
        listeners=[
            Listener(name=LISTENER, protocol="SASL_PLAINTEXT", sasl=jaas),
            Listener(
                name=SHORT_SESSIONS,
                protocol="SASL_PLAINTEXT",
                sasl={"PLAIN": plain},
                properties={"connections.max.reauth.ms": SESSION_MS},
            ),
        ],
        scram_users=SCRAM_USERS,
        jmx=True,
    )


@dataclass(frozen=True, slots=True)
class FirstBroker:
    """Broker 0 of the shared cluster: who bootstraps here reaches this broker, and no other by chance."""

    cluster: KafkaCluster

    @property
    def broker(self) -> Broker:
        """The broker itself."""
        return self.cluster.broker(0)

    @property
    def brokers(self) -> list[Broker]:
        """The broker itself, alone."""
        return [self.broker]

    @property
    def version(self) -> str:
        """Its version of Kafka."""
        return self.cluster.version

    @property
    def cluster_id(self) -> str:
        """The id of its cluster."""
        return self.cluster.cluster_id

    @property
    def bootstrap_servers(self) -> str:
        """The address of its main listener, "host:port"."""
        return self.addresses()

    def addresses(self, listener: str = MAIN_LISTENER) -> str:
        """Return the address of one of its listeners, "host:port"."""
        return f"{self.broker.host}:{self.broker.ports[listener]}"


def new_topic(name: str, *, config: dict[str, str] | None = None) -> NewTopic:
    """Return a topic of one partition, which `FirstBroker` leads."""
    return NewTopic(name, 1, replica_assignment=[[0]], config=config or {})
