"""Real clients connect through a proxy by TLS and SASL, each way: with the same success, and the same errors, as to a
broker directly (`tests.clients.tls.test_direct`)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.proxy.kafka_client.errors import BrokerError
from headrace.proxy.kafka_client.quotas import QuotaAlteration
from headrace.proxy.kafka_client.settings import (
    ClientSettings,
    Credentials,
    Mechanism,
    parse_addresses,
)
from headrace.proxy.kafka_client.sync import SyncAdminClient
from headrace.quota_callbacks.entities import QuotaEntity
from headrace.quota_callbacks.requests import Address
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, HIGH_QUOTAS, unique
from tests.clients.tls.cases import CASES, NO_LOGIN, PLAIN, SCRAM
from tests.clients.tls.connecting import CLIENTS, connect_with
from tests.clients.tls.proxies import PROXYS_USER, observing, running, terminating
from tests.faults.waiting import wait_until
from tests.secure_cluster import SUBJECT, Port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.clients.tls.cases import Case
    from tests.clients.tls.connecting import Login
    from tests.secure_cluster import SecureKafka

ADMINISTRATORS = f'[client_quotas]\nadministrators = ["{SUBJECT}", "alice"]\n'
LOW_QUOTAS = "".join(
    f'[[quotas]]\nentity = {{ user = "{user}" }}\nproducer_byte_rate = 20_000\n' for user in (SUBJECT, "alice")
)
QUOTAS = ADMINISTRATORS + HIGH_QUOTAS + LOW_QUOTAS
OVERDRAWN = 240_000
"""More bytes than 20,000 a second allow in ten or eleven seconds; the throttle takes one or two."""


@pytest.fixture(scope="module", params=["auto", pytest.param("python", marks=pytest.mark.exhaustive)])
def data_plane(request: pytest.FixtureRequest) -> str:
    """The data plane of the proxies, which decides on the library for TLS: rustls, or OpenSSL."""
    return str(request.param)


@pytest.fixture(scope="module")
def observers(secure_kafka: SecureKafka, data_plane: str) -> Iterator[Mapping[Port, ProxyProcess]]:
    with running(secure_kafka, observing(secure_kafka), QUOTAS, data_plane) as proxies:
        yield proxies


@pytest.fixture(scope="module")
def terminators(
    secure_kafka: SecureKafka, data_plane: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Port, ProxyProcess]]:
    folder = tmp_path_factory.mktemp("users")
    with running(secure_kafka, terminating(secure_kafka, folder), QUOTAS, data_plane) as proxies:
        yield proxies


def each_client(*quick: str) -> pytest.MarkDecorator:
    """Parametrize a test by all clients, of which ``make test`` takes ``quick``."""
    marked = [pytest.param(each, marks=() if each in quick else pytest.mark.exhaustive) for each in CLIENTS]
    return pytest.mark.parametrize("client", marked)


def problems_of(
    client: str, secure_kafka: SecureKafka, proxies: Mapping[Port, ProxyProcess], cases: tuple[Case, ...]
) -> str:
    found = [
        case.problem(
            client,
            connect_with(
                client,
                proxies[case.port].bootstrap_servers,
                case.security(secure_kafka),
                timeout_s=case.timeout_s,
            ),
        )
        for case in cases
    ]
    return "\n".join(problem for problem in found if problem)


@each_client("java")
def test_a_client_is_served_or_refused_as_by_a_broker(
    secure_kafka: SecureKafka, observers: Mapping[Port, ProxyProcess], client: str
) -> None:
    assert not problems_of(client, secure_kafka, observers, CASES)


@each_client("kafka-python", "aiokafka")
def test_it_is_where_the_proxy_authenticates(
    secure_kafka: SecureKafka, terminators: Mapping[Port, ProxyProcess], client: str
) -> None:
    cases = tuple(case for case in CASES if case.port in terminators)
    assert len(cases) >= 9
    assert {case.errors is None for case in cases} == {True, False}
    assert NO_LOGIN in [case.errors for case in cases]
    assert not problems_of(client, secure_kafka, terminators, cases)


def settings_of(secure_kafka: SecureKafka, proxy: ProxyProcess, login: Login | None) -> dict[str, object]:
    tls = secure_kafka.mutual_tls.librdkafka_settings()
    sasl = {}
    if login is not None:
        sasl = {"sasl.mechanism": login.mechanism, "sasl.username": login.user, "sasl.password": login.password}
    protocol = "SSL" if login is None else "SASL_SSL"
    return {"bootstrap.servers": proxy.bootstrap_servers, "security.protocol": protocol, **tls, **sasl}


def produce(settings: dict[str, object], topic: str, client_id: str, size: int) -> None:
    producer = Producer({**settings, "client.id": client_id})
    producer.produce(topic, bytes(size))
    assert producer.flush(DEADLINE_S) == 0


def created_topic(settings: dict[str, object]) -> str:
    topic = unique("secure")
    client = AdminClient(settings)  # kept until the answer is there
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    return topic


def test_the_subject_of_a_certificate_is_the_user(
    secure_kafka: SecureKafka, observers: Mapping[Port, ProxyProcess]
) -> None:
    proxy = observers[Port.MUTUAL_TLS]
    settings = settings_of(secure_kafka, proxy, None)
    produce(settings, created_topic(settings), "of-a-certificate", OVERDRAWN)
    proxy.wait_for_log(f"user='{SUBJECT}'")
    series = f'user="{quote(SUBJECT)}"'  # as Kafka names its sensors
    wait_until(lambda: series in proxy.get("/metrics")[1], "a series of the subject")


def test_a_quota_of_a_user_holds_over_connections_client_ids_and_mechanisms(
    secure_kafka: SecureKafka, terminators: Mapping[Port, ProxyProcess]
) -> None:
    proxy = terminators[Port.SASL_MUTUAL_TLS]
    first = settings_of(secure_kafka, proxy, PLAIN)
    topic = created_topic(first)
    produce(first, topic, "by-plain", OVERDRAWN)
    line = proxy.wait_for_log("quota=producer_byte_rate")
    assert "user=alice" in line
    scram = PLAIN.__class__(mechanism="SCRAM-SHA-512", user=PLAIN.user, password=PLAIN.password)
    produce(settings_of(secure_kafka, proxy, scram), topic, "by-scram", 10)
    proxy.wait_for_log("client_id=by-scram")
    assert PROXYS_USER not in proxy.get("/metrics")[1], "nothing is charged to the proxy's own user"


def test_administrators_of_quotas_are_users_by_certificate_and_by_login(
    secure_kafka: SecureKafka, observers: Mapping[Port, ProxyProcess], terminators: Mapping[Port, ProxyProcess]
) -> None:
    """Where clients log in, the user is that of the login, whatever the certificate."""

    def describe(proxy: ProxyProcess, login: Login | None) -> Mapping[QuotaEntity, Mapping[str, float]]:
        credentials = None
        if login is not None:
            credentials = Credentials(mechanism=Mechanism(login.mechanism), user=login.user, password=login.password)
        settings = ClientSettings(
            bootstrap_servers=parse_addresses(proxy.bootstrap_servers),
            tls=secure_kafka.mutual_tls.ssl_context(),
            credentials=credentials,
        )
        with SyncAdminClient(settings) as admin:
            return admin.describe_client_quotas()

    by_certificate, by_login = observers[Port.MUTUAL_TLS], terminators[Port.SASL_MUTUAL_TLS]
    limited = {QuotaEntity(user=SUBJECT), QuotaEntity(user="alice")}
    assert describe(by_certificate, None).keys() >= limited
    assert describe(by_login, PLAIN).keys() >= limited
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        describe(by_login, SCRAM)


def test_secrets_are_nowhere(secure_kafka: SecureKafka, terminators: Mapping[Port, ProxyProcess]) -> None:
    proxy = terminators[Port.SASL_MUTUAL_TLS]
    settings = settings_of(secure_kafka, proxy, SCRAM)
    created_topic(settings)
    shown = proxy.log + proxy.output + proxy.get("/metrics")[1] + proxy.get("/decisions")[1]
    assert all(secret not in shown for secret in (PLAIN.password, SCRAM.password, "PRIVATE KEY"))


def test_the_proxys_login_is_used_to_compare_quotas(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    user = QuotaEntity(user="zoe")
    with SyncAdminClient(settings_of_brokers(secure_kafka)) as admin:
        admin.alter_client_quotas([QuotaAlteration(entity=user, values={"producer_byte_rate": 1e9})])
    upstream, config = terminating(secure_kafka, tmp_path)[Port.SASL_TLS]
    config += '[[quotas]]\nentity = { user = "zoe" }\nproducer_byte_rate = 1_000_000\n'
    with ProxyProcess(secure_kafka.address(upstream), config=config) as proxy:
        line = proxy.wait_for_log("brokers have the same quotas", timeout_s=30)
        assert "producer_byte_rate of user=zoe" in line


def settings_of_brokers(secure_kafka: SecureKafka) -> ClientSettings:
    host, _, port = secure_kafka.address(Port.PLAINTEXT).rpartition(":")
    return ClientSettings(bootstrap_servers=(Address(host=host, port=int(port)),))
