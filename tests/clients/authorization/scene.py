"""A broker at which ACLs restrict alice and bob, and a proxy in front of it that does so by its own rules.

The proxy connects to the broker as a super user, so that the broker denies nothing that comes from it.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import Listener, plain_jaas
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import HIGH_QUOTAS, eventually
from tests.clients.tls.proxies import users_file
from tests.clients.wire_connection import WireConnection
from tests.shared_cluster import LISTENER, NOT_FENCED, SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S: Final = 60.0
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

TOPICS: Final = ("read", "write-1", "write-secret", "describe", "nothing", "configure")
"""Of one partition each."""

RULES: Final = (
    ("allow", "Read", "topic", "literal", "read"),
    ("allow", "Write", "topic", "prefixed", "write-"),
    ("deny", "Write", "topic", "literal", "write-secret"),
    ("allow", "Describe", "topic", "literal", "describe"),
    ("allow", "AlterConfigs", "topic", "literal", "configure"),
    ("allow", "Alter", "topic", "prefixed", "conf"),
    ("allow", "Create", "topic", "prefixed", "new-"),
    ("allow", "Describe", "topic", "literal", "new-2"),
    ("allow", "Delete", "topic", "prefixed", "delete-"),
    ("allow", "Delete", "topic", "literal", "read"),
    ("allow", "Read", "group", "prefixed", "group-"),
    ("allow", "Delete", "group", "literal", "group-2"),
    ("deny", "Read", "group", "literal", "group-secret"),
    ("allow", "Write", "transactional_id", "literal", "tx-1"),
    ("allow", "DescribeConfigs", "group", "literal", "group-1"),
    ("allow", "Describe", "cluster", "literal", "kafka-cluster"),
    ("allow", "DescribeConfigs", "cluster", "literal", "kafka-cluster"),
)
"""Effect, operation, type of the resource, type and name of the pattern; for bob. There are none for alice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What to connect to."""

    cluster: KafkaCluster
    proxy: ProxyProcess
    topic_ids: dict[str, bytes]

    @property
    def fronts(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """The addresses of the broker with ACLs and of the proxy."""
        broker = self.cluster.broker(0)
        return (broker.host, broker.ports[LISTENER]), ("127.0.0.1", self.proxy.port)

    def logged_in(self, address: tuple[str, int], user: str) -> WireConnection:
        """Return a connection of a user."""
        connection = WireConnection(address)
        connection.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        token = f"\0{user}\0{SECRETS[user]}".encode()
        assert connection.ask(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": token})["error_code"] == 0
        return connection


def configuration(folder: Path) -> str:
    """Return the configuration of the proxy with `RULES`, and with quotas that are never reached."""
    rules = "".join(
        f'[[plugins.options.authorization.rules]]\nprincipal = "User:bob"\neffect = "{effect}"\n'
        f'operations = ["{operation}"]\nresource_type = "{resource}"\npattern_type = "{pattern}"\nname = "{name}"\n'
        for effect, operation, resource, pattern, name in RULES
    )
    return (
        '[listen.sasl]\nmode = "terminate"\nmechanisms = ["PLAIN"]\n'
        f'[plugins.options.sasl_users]\nfile = "{users_file(folder)}"\n'
        '[client_quotas]\nadministrators = ["bob"]\n'  # as far as the rules permit it
        f"[plugins.options.authorization]\nenabled = true\n{rules}{HIGH_QUOTAS}"
    )


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Start the broker and the proxy."""
    listener = Listener(name=LISTENER, protocol="SASL_PLAINTEXT", sasl={"PLAIN": plain_jaas(SECRETS)})
    config = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS", **NOT_FENCED}
    with (
        KafkaCluster(brokers=1, config=config, listeners=[listener]) as cluster,
        ProxyProcess(cluster.bootstrap_servers, config=configuration(folder)) as proxy,
    ):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for created in admin.create_topics([NewTopic(name, 1) for name in TOPICS]).values():
            created.result()
        for bound in admin.create_acls([_binding(*rule) for rule in RULES]).values():
            bound.result()
        broker = cluster.broker(0)
        with WireConnection((broker.host, broker.port)) as connection:
            _wait_for_coordinators(connection)
            eventually(lambda: _rules_at(connection) == len(RULES), "the broker has the rules")
            eventually(lambda: _leads_all(connection), "the broker leads the topics")
            rows = connection.ask(ApiKey.METADATA, 12, {"topics": None})["topics"]
        yield Scene(cluster=cluster, proxy=proxy, topic_ids={row["name"]: row["topic_id"] for row in rows})


def _binding(effect: str, operation: str, resource: str, pattern: str, name: str) -> AclBinding:
    types = {
        "cluster": ResourceType.BROKER,
        "topic": ResourceType.TOPIC,
        "group": ResourceType.GROUP,
        "transactional_id": ResourceType.TRANSACTIONAL_ID,
    }
    operations = {"AlterConfigs": "ALTER_CONFIGS", "DescribeConfigs": "DESCRIBE_CONFIGS"}
    return AclBinding(
        types[resource],
        name,
        ResourcePatternType[pattern.upper()],
        "User:bob",
        "*",
        AclOperation[operations.get(operation, operation.upper())],
        AclPermissionType[effect.upper()],
    )


def _rules_at(connection: WireConnection) -> int:
    """Return how many ACLs the broker has: it learns of them behind the controller."""
    anything = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    every = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1, **anything}
    return sum(len(row["acls"]) for row in connection.ask(ApiKey.DESCRIBE_ACLS, 2, every)["resources"])


def _leads_all(connection: WireConnection) -> bool:
    """Return whether the broker answers for all of `TOPICS`, which it learns of behind the controller, too."""
    rows = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]} for name in TOPICS]
    topics = connection.ask(ApiKey.LIST_OFFSETS, 4, {"replica_id": -1, "topics": rows})["topics"]
    return all(row["error_code"] == 0 for topic in topics for row in topic["partitions"])


def _wait_for_coordinators(connection: WireConnection) -> None:
    """Wait until the broker coordinates groups and transactions, for which it creates topics first."""
    deadline_s = time.monotonic() + DEADLINE_S
    ready: set[int] = set()
    while len(ready) < 2:
        assert time.monotonic() < deadline_s, "the broker does not coordinate"
        for kind in (0, 1):
            row = connection.ask(ApiKey.FIND_COORDINATOR, 3, {"key": "tx-1", "key_type": kind})
            if row["error_code"] == 0:
                ready.add(kind)
