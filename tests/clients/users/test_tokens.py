"""Delegation tokens at real brokers: their owners are the users, if the proxy may ask for them."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient

from headrace.proxy.sasl.scram import ScramMechanism, scram_keys
from headrace.proxy.sasl.scram_client import ScramClient
from headrace.proxy.server.owner_lookup import MAX_REPLY_ROWS
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.artifacts import DEFAULT_BROKER_VERSION
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import Listener, plain_jaas, scram_jaas
from testbed.kafka.tools import Tool, run_tool
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, HIGH_QUOTAS, eventually, unique
from tests.clients.tls.proxies import upstream_tls
from tests.clients.wire_connection import WireConnection
from tests.faults.messages import batch
from tests.faults.metrics import series
from tests.secure_cluster import Port
from tests.shared_cluster import LISTENER, SECRETS, new_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testbed.kafka.properties import Properties
    from tests.secure_cluster import SecureKafka

MECHANISM: Final = ScramMechanism.SHA_256
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
LIMIT: Final = 1000
"""Bytes a second that alice may produce. In a window of ten seconds, one of `MESSAGE_BYTES` is allowed, and two are
too much, by eight seconds: the second reply has a throttle time even if the broker takes a while."""
MESSAGE_BYTES: Final = 9000
FALLBACK: Final = "somebody"
CONNECT_TIMEOUT_S: Final = 10.0
"""The default of ``upstream.connect_timeout``."""
ALICE: Final = '"user": "alice"'
DEBUG_LOG: Final = ("--log-level", "debug", "--log-format", "json")


def configuration(folder: Path, user: str, *, further: str = "") -> str:
    """Return the configuration of a proxy that looks up owners as ``user``, with ``further`` keys of the lookup."""
    password = folder / "password"
    password.write_text(SECRETS[user], encoding="ascii")
    return f"""
[upstream.owner_lookup]
mechanism = "PLAIN"
user = "{user}"
password = {{ file = "{password}" }}
{further}

[plugins.options.sasl_identity]
fallback_user = "{FALLBACK}"

[[quotas]]
entity = {{ user = "alice" }}
producer_byte_rate = {LIMIT}
{HIGH_QUOTAS}"""


@contextlib.contextmanager
def logged_in(address: tuple[str, int], user: str) -> Iterator[WireConnection]:
    """A connection that has authenticated by the user's password."""
    with WireConnection(address) as connection:
        assert connection.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})["error_code"] == 0
        token = f"\0{user}\0{SECRETS[user]}".encode()
        assert connection.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})["error_code"] == 0
        yield connection


def new_token(broker: tuple[str, int], user: str, *, renewers: int = 0) -> tuple[str, str]:
    """Return the id of a new token of the user, and its password."""
    renewer = {"principal_type": "User", "principal_name": "r"}
    message = {"renewers": [renewer] * renewers, "max_lifetime_ms": 3_600_000}
    with logged_in(broker, user) as connection:
        token = connection.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, message)
    assert token["error_code"] == 0
    return token["token_id"], base64.b64encode(token["hmac"]).decode()


def delete(broker: tuple[str, int], user: str, token: tuple[str, str]) -> None:
    """Let a token of the user expire now."""
    with logged_in(broker, user) as connection:
        message = {"hmac": base64.b64decode(token[1]), "expiry_time_period_ms": -1}
        assert connection.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, message)["error_code"] == 0


def address_of(server: str) -> tuple[str, int]:
    host, _, port = server.partition(":")
    return host, int(port)


def adopted(proxy: ProxyProcess) -> list[str]:
    """Return the users of logins, in their order."""
    lines = [json.loads(line) for line in proxy.log.splitlines() if "user adopted" in line]
    return [line["user"] for line in lines]


@contextlib.contextmanager
def token_cluster(*, version: str = DEFAULT_BROKER_VERSION, config: Properties | None = None) -> Iterator[KafkaCluster]:
    """A cluster of its own, with delegation tokens and a listener for PLAIN and SCRAM."""
    sasl = {"PLAIN": plain_jaas(SECRETS), MECHANISM.value: scram_jaas()}
    with KafkaCluster(
        version=version,
        config={"delegation.token.secret.key": "a-secret-of-brokers", **(config or {})},
        listeners=[Listener(name=LISTENER, protocol="SASL_PLAINTEXT", sasl=sasl)],
    ) as cluster:
        yield cluster


@contextlib.contextmanager
def by_token(address: tuple[str, int], token: tuple[str, str]) -> Iterator[WireConnection]:
    """A connection that has authenticated by a token, once the broker has received it."""
    with contextlib.ExitStack() as stack:

        def accepted() -> WireConnection | None:
            with contextlib.ExitStack() as attempt:
                connection = attempt.enter_context(WireConnection(address))
                if not _authenticate(connection, *token):
                    return None
                stack.push(attempt.pop_all())
                return connection

        connection = eventually(accepted, "the broker has received the token")
        assert connection is not None
        yield connection


def _authenticate(connection: WireConnection, token_id: str, secret: str) -> bool:
    client = ScramClient(MECHANISM, token_id, extensions={"tokenauth": "true"})
    assert connection.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": MECHANISM.value})["error_code"] == 0
    reply = connection.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": client.first()})
    if reply["error_code"]:
        return False
    challenge = client.read_challenge(reply["auth_bytes"])
    keys = scram_keys(MECHANISM, secret, challenge.salt, challenge.iterations)
    reply = connection.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": client.final(keys)})
    return not reply["error_code"]


def produce(connection: WireConnection, topic: str) -> int:
    """Produce a message, and return the throttle time in ms."""
    partition = {"index": 0, "records": batch(bytes(MESSAGE_BYTES))}
    message = {"acks": -1, "timeout_ms": 30_000, "topic_data": [{"name": topic, "partition_data": [partition]}]}
    reply = connection.ask(ApiKey.PRODUCE, 9, message)
    assert reply["responses"][0]["partition_responses"][0]["error_code"] == 0
    throttle_ms: int = reply["throttle_time_ms"]
    return throttle_ms


@pytest.mark.exhaustive
def test_a_users_quota_holds_over_its_password_and_its_tokens(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """With TLS to the brokers."""
    topic = unique("tokens")
    admin = AdminClient({"bootstrap.servers": secure_kafka.cluster.bootstrap_servers})
    admin.create_topics([new_topic(topic)])[topic].result(DEADLINE_S)
    broker = address_of(secure_kafka.address(Port.SASL))
    tokens = [new_token(broker, user) for user in ("alice", "alice", "bob")]
    config = configuration(tmp_path, "bob") + upstream_tls(secure_kafka)
    with ProxyProcess(secure_kafka.address(Port.SASL_TLS), config=config, arguments=DEBUG_LOG) as proxy:
        port = ("127.0.0.1", proxy.port)
        with by_token(port, tokens[0]) as first, by_token(port, tokens[1]) as second, by_token(port, tokens[2]) as bobs:

            def led() -> bool:
                [row] = first.ask(ApiKey.METADATA, 12, {"topics": [{"name": topic}]})["topics"]
                return not row["error_code"] and row["partitions"][0]["leader_id"] >= 0

            eventually(led, f"the broker knows {topic}")
            assert produce(first, topic) == 0
            assert produce(second, topic) > 0
            assert produce(bobs, topic) == produce(bobs, topic) == 0
            with logged_in(port, "alice") as password:
                assert produce(password, topic) > 0
        eventually(lambda: sorted(adopted(proxy)) == ["alice", "alice", "alice", "bob"], "all logins are logged")
        assert ALICE.replace(" ", "") in proxy.get("/decisions")[1]
        assert FALLBACK not in proxy.log
        for secret in (*SECRETS.values(), *(secret for _, secret in tokens)):
            assert secret not in proxy.log


@pytest.mark.exhaustive
def test_a_user_that_may_not_see_tokens_finds_no_owner_until_it_may(tmp_path: Path) -> None:
    """By the command in docs/users.md."""
    config = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS;User:alice"}
    with (
        token_cluster(config=config) as cluster,
        ProxyProcess(cluster.addresses(LISTENER), config=configuration(tmp_path, "bob"), arguments=DEBUG_LOG) as proxy,
    ):
        token = new_token(address_of(cluster.addresses(LISTENER)), "alice")
        port = ("127.0.0.1", proxy.port)

        def ask() -> None:
            with by_token(port, token) as connection:
                assert connection.ask(ApiKey.METADATA, 12, {"topics": []})["brokers"]

        ask()
        assert ALICE not in proxy.log
        line = proxy.wait_for_log("the owner of a delegation token is not known")
        assert "no broker shows the token to upstream.owner_lookup.user = bob" in line
        assert FALLBACK in line
        allow = ["--add", "--allow-principal", "User:bob", "--operation", "Describe", "--delegation-token", "*"]
        run_tool(Tool.ACLS, ["--bootstrap-server", cluster.bootstrap_servers, *allow])

        def found() -> bool:
            ask()
            return ALICE in proxy.log

        eventually(found, "a login whose token's owner is known", pause_s=1)
        assert series(proxy, 'headrace_token_owner_requests_total{result="answered"}') > 2
        assert series(proxy, 'headrace_token_owner_requests_total{result="failed"}') == 0
        assert proxy.metric("headrace_token_owner_request_seconds_total") > 0
        assert proxy.metric("headrace_token_owners") == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["3.9.1", DEFAULT_BROKER_VERSION])
def test_one_with_many_tokens_stays_the_user_it_is(version: str, tmp_path: Path) -> None:
    """Whatever tokens it makes and deletes; and another user's login does not wait for it for long."""
    config = configuration(tmp_path, "bob", further='unknown_owner = "refuse"')
    with (
        token_cluster(version=version) as cluster,
        ProxyProcess(cluster.addresses(LISTENER), config=config, arguments=DEBUG_LOG) as proxy,
    ):
        broker, port = address_of(cluster.addresses(LISTENER)), ("127.0.0.1", proxy.port)
        renewed_by_many = new_token(broker, "alice", renewers=MAX_REPLY_ROWS + 1)
        lost = 0
        for token in (renewed_by_many, *(new_token(broker, "alice") for _ in range(5))):
            with by_token(port, token) as connection:
                delete(broker, "alice", token)
                try:
                    assert connection.ask(ApiKey.METADATA, 12, {"topics": []})["brokers"]
                except EOFError:  # deleted before the brokers were asked
                    lost += 1
        assert proxy.metric("headrace_token_owners_unknown_total") == lost
        assert "user adopted" in proxy.log
        token = new_token(broker, "bob")
        with by_token(port, token) as connection:
            began_s = time.monotonic()
            assert connection.ask(ApiKey.METADATA, 12, {"topics": []})["brokers"]
            assert time.monotonic() - began_s < CONNECT_TIMEOUT_S
        eventually(lambda: adopted(proxy) == [*["alice"] * (6 - lost), "bob"], "all logins are logged")
        assert FALLBACK not in proxy.log
