"""Each user has an identity at a real broker, which states whom it sees: a delegation token has an owner."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.sasl.scram import ScramMechanism, scram_keys
from headrace.proxy.sasl.scram_client import ScramClient
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import HIGH_QUOTAS, Front
from tests.clients.tls.proxies import listen_tls, upstream_tls, users_file
from tests.clients.users.sasl_clients import kafka_python
from tests.clients.wire_connection import WireConnection
from tests.secure_cluster import Port
from tests.shared_cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.secure_cluster import SecureKafka

SASL_AUTHENTICATION_FAILED: Final = 58
LOCAL_USERS: Final = """
[plugins]
load = ["examples.local_users:LocalUsers"]

[plugins.options."examples.local_users:LocalUsers"]
domain = "example.com"
"""


def identities(folder: Path) -> str:
    """Return the configuration in which alice is bob at the brokers, bob is alice, and carol has no identity."""
    for name, secret in SECRETS.items():
        (folder / name).write_text(secret, encoding="ascii")
    return f"""
[upstream.sasl]
mechanism = "SCRAM-SHA-256"
user = "carol"
password = {{ file = "{folder / "carol"}" }}

[[upstream.sasl.identities]]
client = "alice"
user = "bob"
password = {{ file = "{folder / "bob"}" }}

[[upstream.sasl.identities]]
client = "bo*"
mechanism = "PLAIN"
user = "alice"
password = {{ file = "{folder / "alice"}" }}
"""


@pytest.fixture(scope="module")
def proxy(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy that authenticates clients itself, in plaintext, in front of a listener SASL_SSL."""
    folder = tmp_path_factory.mktemp("identities")
    config = (
        '[listen.sasl]\nmode = "terminate"\nmechanisms = ["PLAIN", "SCRAM-SHA-256"]\n'
        f'[plugins.options.sasl_users]\nfile = "{users_file(folder)}"\n'
        + upstream_tls(secure_kafka)
        + identities(folder)
        + HIGH_QUOTAS
    )
    arguments = ("--log-level", "debug", "--log-format", "json")
    with ProxyProcess(secure_kafka.address(Port.SASL_TLS), config=config, arguments=arguments) as process:
        yield process
        for secret in SECRETS.values():
            assert secret not in process.log
            assert base64.b64encode(secret.encode()).decode().rstrip("=") not in process.log


def log_in(connection: WireConnection, user: str) -> int:
    """Authenticate by PLAIN; return the error code."""
    assert connection.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})["error_code"] == 0
    token = f"\0{user}\0{SECRETS[user]}".encode()
    error_code: int = connection.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})["error_code"]
    return error_code


def seen_as(connection: WireConnection) -> str:
    """Return the user that the broker sees: it owns the token that it asks for."""
    token = connection.ask(ApiKey.CREATE_DELEGATION_TOKEN, 1, {"renewers": [], "max_lifetime_ms": 60_000})
    assert token["error_code"] == 0
    user: str = token["principal_name"]
    return user


def test_each_user_has_an_identity(proxy: ProxyProcess) -> None:
    with (
        WireConnection(("127.0.0.1", proxy.port)) as first,
        WireConnection(("127.0.0.1", proxy.port)) as second,
    ):
        assert log_in(first, "alice") == log_in(second, "bob") == 0
        assert (seen_as(first), seen_as(second)) == ("bob", "alice")
        assert (seen_as(first), seen_as(second)) == ("bob", "alice")


def test_a_user_without_an_identity_is_refused(proxy: ProxyProcess) -> None:
    """It is not given the proxy's own, which is the right one by accident: it has the same name."""
    with WireConnection(("127.0.0.1", proxy.port)) as connection:
        assert log_in(connection, "carol") == SASL_AUTHENTICATION_FAILED
    assert "the user carol has no identity at the brokers" in proxy.wait_for_log("login refused")


def test_tokens_without_headers(proxy: ProxyProcess) -> None:
    """As clients did before Kafka 1.0."""
    with WireConnection(("127.0.0.1", proxy.port)) as connection:
        assert connection.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})["error_code"] == 0
        token = b"\0alice\0" + SECRETS["alice"].encode()
        assert connection.exchange(struct.pack(">i", len(token)) + token) == b""
        assert seen_as(connection) == "bob"


def test_tokens_without_headers_of_scram(proxy: ProxyProcess) -> None:
    client = ScramClient(ScramMechanism.SHA_256, "bob")
    with WireConnection(("127.0.0.1", proxy.port)) as connection:

        def answer(token: bytes) -> bytes:
            return connection.exchange(struct.pack(">i", len(token)) + token)

        assert connection.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "SCRAM-SHA-256"})["error_code"] == 0
        challenge = client.read_challenge(answer(client.first()))
        keys = scram_keys(ScramMechanism.SHA_256, SECRETS["bob"], challenge.salt, challenge.iterations)
        client.check(answer(client.final(keys)))
        assert seen_as(connection) == "alice"


def test_kafka_python_as_with_a_broker_before_headers(secure_kafka: SecureKafka, proxy: ProxyProcess) -> None:
    front = Front(cluster=secure_kafka.cluster, proxy=proxy)
    shaken, tokens = front.requests("SaslHandshake"), front.requests("SaslAuthenticate")
    kafka_python(f"127.0.0.1:{proxy.port}", "PLAIN", "bob", SECRETS["bob"], api_version=(0, 10, 2))
    assert front.requests("SaslHandshake") > shaken
    assert front.requests("SaslAuthenticate") == tokens


def test_a_certificate_gives_the_identity_of_the_rewritten_user(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """The subject becomes alice@example.com, the plugin makes it alice, and the broker sees bob."""
    rules = 'principal_mapping_rules = "RULE:^CN=([^,]*),.*$/$1@example.com/"\n'
    config = (
        listen_tls(secure_kafka.broker, clients=secure_kafka.authority.ca_file)
        + rules
        + upstream_tls(secure_kafka)
        + identities(tmp_path)
        + LOCAL_USERS
        + HIGH_QUOTAS
    )
    tls = secure_kafka.mutual_tls.ssl_context()
    with (
        ProxyProcess(secure_kafka.address(Port.SASL_TLS), config=config) as proxy,
        WireConnection(("127.0.0.1", proxy.port), tls) as connection,
    ):
        assert seen_as(connection) == "bob"
        with pytest.raises((OSError, EOFError)):
            connection.exchange(struct.pack(">i", 8) + b"\x7f" * 8)
        assert "user=alice " in proxy.wait_for_log("connection closed")
