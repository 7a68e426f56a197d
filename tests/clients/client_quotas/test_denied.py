"""A client that may not describe or change quotas gets from the proxy what it gets from a broker with an authorizer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import Listener, plain_jaas
from testbed.proxy_process import ProxyProcess
from tests.clients.client_quotas.java_quotas import java_quotas
from tests.clients.fronts import HIGH_QUOTAS, eventually
from tests.clients.users.sasl_clients import java_settings
from tests.shared_cluster import LISTENER, SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """A broker with an authorizer, at which alice may do everything, and bob nothing with the cluster."""
    listener = Listener(name=LISTENER, protocol="SASL_PLAINTEXT", sasl={"PLAIN": plain_jaas(SECRETS)})
    config = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS;User:alice"}
    with KafkaCluster(brokers=1, config=config, listeners=[listener]) as found:
        yield found


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_the_errors_are_a_brokers(cluster: KafkaCluster, tmp_path: Path, version: str) -> None:
    servers = cluster.addresses(LISTENER)
    change = ({"user": "bob"}, {"producer_byte_rate": 1e9})
    text = f'[client_quotas]\nfile = "{tmp_path / "quotas.sqlite"}"\nadministrators = ["alice"]\n{HIGH_QUOTAS}'
    with ProxyProcess(servers, config=text) as proxy:
        found = []
        for server in (servers, f"127.0.0.1:{proxy.port}"):
            answers: list[object] = []
            for user in ("alice", "bob"):
                with java_quotas(server, version, **java_settings("PLAIN", user, SECRETS[user])) as quotas:
                    about_bob = [quotas.component("user", "bob")]
                    answers += [quotas.alter([change]), quotas.alter([change], validate_only=True)]
                    # A broker knows of a change a moment after the controller has answered.
                    answers.append(eventually(partial(quotas.describe, about_bob), "the quota is there"))
            found.append(answers)
    at_broker, at_proxy = found
    assert "ClusterAuthorizationException" in str(at_broker[3])
    assert at_proxy == at_broker
