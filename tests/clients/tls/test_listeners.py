"""Several listeners in one proxy, each with its own security, its own brokers' listener and its own addresses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient

from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, HIGH_QUOTAS
from tests.clients.tls.proxies import MECHANISMS, listen_tls, terminated, upstream_sasl, upstream_tls
from tests.clients.tls.test_through_proxy import OVERDRAWN, created_topic, produce
from tests.clients.users.sasl_clients import librdkafka_settings
from tests.faults.waiting import wait_until
from tests.secure_cluster import Port
from tests.shared_cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.secure_cluster import SecureKafka

USER: Final = "alice"
PORTS: Final = 4
"""Of a listener: for bootstrapping, and for brokers 0 to 2."""


@pytest.fixture(scope="module")
def addresses(
    secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ProxyProcess, Mapping[str, dict[str, object]]]]:
    """A proxy with three listeners, and the settings of a client of each, by the listener's name."""
    folder = tmp_path_factory.mktemp("listeners")
    with reserve_ports(2 * PORTS) as block:
        observed, secure = block.first, block.first + PORTS
        config = f"{_tables(secure_kafka, folder, observed, secure)}{HIGH_QUOTAS}"
        with ProxyProcess(secure_kafka.address(Port.PLAINTEXT), config=config, python=sys.executable) as proxy:
            tls = {**secure_kafka.tls.librdkafka_settings(), "security.protocol": "SASL_SSL"}
            yield (
                proxy,
                {
                    "listen": {"bootstrap.servers": proxy.bootstrap_servers},
                    "observed": librdkafka_settings(f"127.0.0.1:{observed}", "PLAIN", USER, SECRETS[USER]),
                    "secure": {**librdkafka_settings(f"127.0.0.1:{secure}", "PLAIN", USER, SECRETS[USER]), **tls},
                },
            )


def _tables(kafka: SecureKafka, folder: Path, observed: int, secure: int) -> str:
    """Return the tables of two further listeners, and a quota of `USER`."""

    def below(listener: str, tables: str) -> str:
        nested = tables.replace("[listen.", f"[listeners.{listener}.")
        return nested.replace("[upstream", f"[listeners.{listener}.upstream")

    sasl = terminated(folder, MECHANISMS) + upstream_sasl(folder, "SCRAM-SHA-256")
    return (
        f'[listeners.observed]\naddress = "127.0.0.1:{observed}"\nnode_ids = "0-2"\n'
        f'[listeners.observed.upstream]\nbootstrap_servers = ["{kafka.address(Port.SASL)}"]\n'
        f'[listeners.secure]\naddress = "127.0.0.1:{secure}"\nnode_ids = "0-2"\n'
        f'[listeners.secure.upstream]\nbootstrap_servers = ["{kafka.address(Port.SASL_TLS)}"]\n'
        + below("secure", listen_tls(kafka.broker) + upstream_tls(kafka) + sasl)
        + f'[[quotas]]\nentity = {{ user = "{USER}" }}\nproducer_byte_rate = 20_000\n'
    )


def test_each_shows_the_brokers_at_its_own_addresses(
    addresses: tuple[ProxyProcess, Mapping[str, dict[str, object]]],
) -> None:
    for name, settings in addresses[1].items():
        first = int(str(settings["bootstrap.servers"]).rpartition(":")[2])
        brokers = AdminClient(settings).list_topics(timeout=DEADLINE_S).brokers
        assert {(node_id, each.port) for node_id, each in brokers.items()} == {(0, first + 1)}, name


def test_a_topic_is_written_by_all_and_a_user_has_one_quota(
    addresses: tuple[ProxyProcess, Mapping[str, dict[str, object]]],
) -> None:
    proxy, settings = addresses
    topic = created_topic(settings["listen"])
    produce(settings["listen"], topic, "anonymous", OVERDRAWN)
    produce(settings["observed"], topic, "by-observed", OVERDRAWN)
    assert f"user={USER}" in proxy.wait_for_log("client_id=by-observed")
    produce(settings["secure"], topic, "by-secure", 10)
    assert f"user={USER}" in proxy.wait_for_log("client_id=by-secure")
    assert "client_id=anonymous" not in proxy.log


def test_the_faults_of_a_listener_name_its_table(
    addresses: tuple[ProxyProcess, Mapping[str, dict[str, object]]],
) -> None:
    proxy, settings = addresses
    plaintext = {"bootstrap.servers": settings["secure"]["bootstrap.servers"]}
    client = AdminClient(plaintext)

    def is_logged() -> bool:
        with pytest.raises(Exception, match="_TRANSPORT"):
            client.list_topics(timeout=0.5)
        return "listeners.secure.tls.certificate_file" in proxy.log

    wait_until(is_logged, "the name of the setting is logged")


def test_tls_to_a_plaintext_listener_of_the_brokers(secure_kafka: SecureKafka) -> None:
    config = upstream_tls(secure_kafka)
    with ProxyProcess(secure_kafka.address(Port.PLAINTEXT), config=config, python=sys.executable) as proxy:
        proxy.wait_for_log(
            "a plaintext listener closes like this: check upstream.bootstrap_servers and upstream.tls.enabled"
        )
