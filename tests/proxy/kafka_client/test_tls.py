"""TLS listeners of a real broker: SSL with and without client certificates, and SASL_SSL, by properties files."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.kafka_client.errors import ApiTimeoutError, BadReplyError, TlsError
from headrace.proxy.kafka_client.properties import read_settings
from headrace.proxy.kafka_client.sync import SyncAdminClient
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import Listener, plain_jaas, render
from tests.proxy.kafka_client.test_brokers import sasl
from tests.shared_cluster import NOT_FENCED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.exhaustive  # a broker of its own; in `make test`, `tests/clients/tls` connects with TLS

USERS = {"alice": "secret-word"}


def make_certificate(folder: Path, name: str) -> Path:
    """Return a PEM file with a self-signed certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is needed"
    key, certificate, both = (folder / f"{name}-{part}.pem" for part in ("key", "certificate", "both"))
    options = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key)]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *options, "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: make_certificate(folder, name) for name in ("broker", "client", "stranger")}


@pytest.fixture(scope="module")
def secured(certificates: dict[str, Path]) -> Iterator[KafkaCluster]:
    """One broker with TLS listeners. Its own cluster, since the shared one has none."""
    own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificates["broker"])}
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates["client"])}
    listeners = [
        Listener(name="TLS", protocol="SSL", properties=own),
        Listener(name="MUTUAL", protocol="SSL", properties={**own, **trusted, "ssl.client.auth": "required"}),
        Listener(name="USERS", protocol="SASL_SSL", properties=own, sasl={"PLAIN": plain_jaas(USERS)}),
    ]
    with KafkaCluster(config=NOT_FENCED, listeners=listeners) as cluster:
        yield cluster


def client(folder: Path, servers: str, properties: dict[str, str]) -> SyncAdminClient:
    file = folder / "client.properties"
    file.write_text(render(properties), encoding="iso-8859-1")
    return SyncAdminClient(read_settings(file, bootstrap_servers=servers))


def trusting(certificate: Path, protocol: str = "SSL") -> dict[str, str]:
    return {"security.protocol": protocol, "ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificate)}


def test_tls(secured: KafkaCluster, certificates: dict[str, Path], tmp_path: Path) -> None:
    with client(tmp_path, secured.addresses("TLS"), trusting(certificates["broker"])) as admin:
        assert admin.describe_client_quotas() == {}


def test_sasl_over_tls(secured: KafkaCluster, certificates: dict[str, Path], tmp_path: Path) -> None:
    properties = sasl("PLAIN", "alice", USERS["alice"]) | trusting(certificates["broker"], "SASL_SSL")
    with client(tmp_path, secured.addresses("USERS"), properties) as admin:
        assert admin.describe_client_quotas() == {}


def test_client_certificates(secured: KafkaCluster, certificates: dict[str, Path], tmp_path: Path) -> None:
    properties = trusting(certificates["broker"])
    own = {**properties, "ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificates["client"])}
    with client(tmp_path, secured.addresses("MUTUAL"), own) as admin:
        assert admin.describe_client_quotas() == {}
    with (
        client(tmp_path, secured.addresses("MUTUAL"), properties) as admin,
        pytest.raises(TlsError, match=r"the TLS connection to 127\.0\.0\.1:\d+ failed: .*certificate"),
    ):
        admin.describe_client_quotas()


def test_a_certificate_that_is_not_trusted(
    secured: KafkaCluster, certificates: dict[str, Path], tmp_path: Path
) -> None:
    with (
        client(tmp_path, secured.addresses("TLS"), trusting(certificates["stranger"])) as admin,
        pytest.raises(TlsError, match=r"the TLS handshake with .* failed: .*CERTIFICATE_VERIFY_FAILED"),
    ):
        admin.describe_client_quotas()


def test_the_host_name_is_verified(secured: KafkaCluster, certificates: dict[str, Path], tmp_path: Path) -> None:
    """The certificate is for 127.0.0.1, not for localhost."""
    servers = secured.addresses("TLS").replace("127.0.0.1", "localhost")
    properties = trusting(certificates["broker"])
    with client(tmp_path, servers, properties) as admin, pytest.raises(TlsError, match="localhost"):
        admin.describe_client_quotas()
    unchecked = {**properties, "ssl.endpoint.identification.algorithm": ""}
    with client(tmp_path, servers, unchecked) as admin:
        assert admin.describe_client_quotas() == {}


def test_one_side_alone_has_tls(secured: KafkaCluster, certificates: dict[str, Path], tmp_path: Path) -> None:
    with (
        client(tmp_path, secured.addresses(), trusting(certificates["broker"])) as admin,
        pytest.raises(ApiTimeoutError, match="if its listener has no TLS, set security"),
    ):
        admin.describe_client_quotas(timeout_ms=6000)
    with (
        SyncAdminClient(secured.addresses("TLS")) as admin,
        pytest.raises(BadReplyError, match=r"speaks TLS; set security\.protocol to SSL or SASL_SSL"),
    ):
        admin.describe_client_quotas()
