"""A proxy as the client of a real broker: it logs in for its clients by each mechanism. Where the certificate of either
is wrong, or the proxy's password, the log has the reason, and clients see the end of their connections."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import HIGH_QUOTAS
from tests.clients.tls.cases import RETRIED_S, Case, errors_of
from tests.clients.tls.connecting import CLIENTS, SERVED, Security, connect_with
from tests.clients.tls.proxies import MECHANISMS, PROXYS_USER, upstream_sasl, upstream_tls
from tests.faults import messages
from tests.faults.metrics import series
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until
from tests.secure_cluster import Port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.secure_cluster import SecureKafka

QUICK: Final = "kafka-python"
"""The client of the quick form."""
WRONG: Final = "wrong-password-of-the-proxy"
NO_BROKER: Final = Case(
    name="a broker that the proxy does not trust",
    port=Port.EXPIRED,
    security=lambda _: Security(),
    errors=errors_of(
        java="TimeoutException",
        librdkafka="_TRANSPORT | _ALL_BROKERS_DOWN",
        kafka_python="KafkaConnectionError | KafkaTimeoutError",
        aiokafka="KafkaConnectionError",
    ),
    timeout_s=RETRIED_S,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A broker's listener, what the proxy is configured with, and the reason that it logs."""

    port: Port
    config: Callable[[SecureKafka, Path], str]
    reason: str


def _shown(kafka: SecureKafka, certificate: Path) -> str:
    return f'{upstream_tls(kafka)}certificate_file = "{certificate}"\n'


def _wrong_password(mechanism: str) -> Mistake:
    return Mistake(
        port=Port.SASL_TLS,
        config=lambda kafka, folder: upstream_tls(kafka) + upstream_sasl(folder, mechanism, WRONG),
        reason=f"the proxy's login by {mechanism} as {PROXYS_USER} was refused by the broker: Authentication failed",
    )


MISTAKES: Final = (
    Mistake(
        port=Port.EXPIRED,
        config=lambda kafka, _: upstream_tls(kafka),
        reason="TLS: the broker's certificate is not accepted: certificate has expired",
    ),
    Mistake(
        port=Port.OTHER_HOST,
        config=lambda kafka, _: upstream_tls(kafka),
        reason="connect to a name in the certificate, or set upstream.tls.verify_names = false",
    ),
    Mistake(
        port=Port.TLS,
        config=lambda kafka, _: f'[upstream.tls]\nenabled = true\nca_file = "{kafka.stranger.ca_file}"\n',
        reason="add its authority to upstream.tls.ca_file",
    ),
    Mistake(
        port=Port.MUTUAL_TLS,
        config=lambda kafka, _: upstream_tls(kafka),
        reason="TLS: the broker does not accept the proxy's certificate",
    ),
    Mistake(
        port=Port.MUTUAL_TLS,
        config=lambda kafka, _: _shown(kafka, kafka.expired_client.keystore_file),
        reason="proxy's certificate",
    ),
    Mistake(
        port=Port.MUTUAL_TLS,
        config=lambda kafka, _: _shown(kafka, kafka.strange_client.keystore_file),
        reason="proxy's certificate",
    ),
    *map(_wrong_password, MECHANISMS),
)


@pytest.fixture(scope="module")
def initiators(
    secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, ProxyProcess]]:
    """Proxies without a login of clients, by the mechanism of their own login."""
    config = upstream_tls(secure_kafka) + HIGH_QUOTAS
    folder = tmp_path_factory.mktemp("initiators")
    with ExitStack() as stack:
        yield {
            mechanism: stack.enter_context(
                ProxyProcess(secure_kafka.address(Port.SASL_TLS), config=config + upstream_sasl(folder, mechanism))
            )
            for mechanism in MECHANISMS
        }


@pytest.mark.parametrize(
    "client", [pytest.param(each, marks=() if each == QUICK else pytest.mark.exhaustive) for each in CLIENTS]
)
def test_the_proxy_logs_in_for_a_client_by_each_mechanism(initiators: Mapping[str, ProxyProcess], client: str) -> None:
    outcomes = {
        mechanism: connect_with(client, proxy.bootstrap_servers, Security()) for mechanism, proxy in initiators.items()
    }
    assert outcomes == dict.fromkeys(MECHANISMS, SERVED)


@pytest.mark.exhaustive
def test_the_log_has_the_reason_why_no_broker_serves_the_proxy(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    for mistake in MISTAKES:
        config = mistake.config(secure_kafka, tmp_path)
        with ProxyProcess(secure_kafka.address(mistake.port), config=config) as proxy:
            assert_no_broker(proxy, mistake.reason)


def assert_no_broker(proxy: ProxyProcess, reason: str) -> None:
    """A client's connection is closed for this reason, which is the broker's fault."""

    def closed() -> bool:
        return any("connection closed" in line and reason in line for line in proxy.log.splitlines())

    with RawClient(proxy.port) as client, pytest.raises(ConnectionEndedError):
        client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
    wait_until(closed, reason)
    assert series(proxy, 'headrace_errors_total{fault="upstream"}') == 1
    assert proxy.get("/readyz")[0] == 503, "a proxy that can serve no client gets no traffic"
    assert WRONG not in proxy.log


def test_each_client_sees_the_end_of_its_connection(secure_kafka: SecureKafka) -> None:
    with ProxyProcess(secure_kafka.address(NO_BROKER.port), config=upstream_tls(secure_kafka)) as proxy:
        found = [
            NO_BROKER.problem(
                client, connect_with(client, proxy.bootstrap_servers, Security(), timeout_s=NO_BROKER.timeout_s)
            )
            for client in CLIENTS
        ]
    problems = [problem for problem in found if problem]
    assert not problems, "\n".join(problems)
