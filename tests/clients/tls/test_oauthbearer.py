"""Real clients authenticate by OAUTHBEARER: to a broker directly, to it through a proxy, and to a proxy that itself
authenticates to the broker by a token."""

from __future__ import annotations

import time
from contextlib import contextmanager
from time import time_ns
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.plugins.sasl_oauth.options import SHORTEST_REFRESH_S
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import HIGH_QUOTAS, unique
from tests.clients.tls.cases import WRONG_TOKEN, Case
from tests.clients.tls.connecting import CLIENTS, OAUTHBEARER, Login, Security, connect_with
from tests.clients.tls.proxies import PROXYS_USER, listen_tls, upstream_tls
from tests.faults.metrics import series
from tests.faults.steady_clients import SteadyProducer
from tests.faults.waiting import wait_until
from tests.plugins.sasl_identity.sasl_messages import unsecured
from tests.plugins.sasl_oauth.identity_provider import identity_provider
from tests.plugins.sasl_oauth.issuer import Key, claims, key_set, rsa_key, token
from tests.secure_cluster import SCOPE, Port, SecureKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

USER: Final = "dave"
FRONTS: Final = ("broker", "observing", "terminating")
LOG: Final = ("--log-level", "debug")
TOKEN_S: Final = 10
DEADLINE_S: Final = 120.0
LOGINS: Final = 'headrace_requests_total{api="SaslAuthenticate"}'
FETCHED: Final = 'headrace_oauth_key_fetches_total{outcome="fetched"}'


def unsecured_token(*, right: bool) -> str:
    """Return a token for the brokers; a wrong one lacks the scope."""
    return unsecured({"sub": USER} | ({"scope": SCOPE} if right else {}))


def signed_token(*, right: bool) -> str:
    """Return a token for the proxy that verifies tokens itself."""
    return token(claims(time_ns() / 1e9, sub=USER, scope=SCOPE if right else ...))


def oauth_cases(create_token: Callable[..., str]) -> tuple[Case, ...]:
    """Return a right and a wrong token, with TLS."""

    def security(kafka: SecureKafka, *, right: bool) -> Security:
        login = Login(mechanism=OAUTHBEARER, user=USER, password=create_token(right=right))
        return Security(tls=kafka.tls, login=login)

    port = Port.SASL_TLS
    return (
        Case(name="OAUTHBEARER in TLS", port=port, security=lambda kafka: security(kafka, right=True)),
        Case(
            name="a token without the scope",
            port=port,
            security=lambda kafka: security(kafka, right=False),
            errors=WRONG_TOKEN,
        ),
    )


@pytest.fixture(scope="module")
def observer(secure_kafka: SecureKafka) -> Iterator[ProxyProcess]:
    config = listen_tls(secure_kafka.broker) + upstream_tls(secure_kafka) + HIGH_QUOTAS
    with ProxyProcess(secure_kafka.address(Port.SASL_TLS), config=config, arguments=LOG) as proxy:
        yield proxy


@contextmanager
def verifying(kafka: SecureKafka, folder: Path, options: str = "", key: Key | None = None) -> Iterator[ProxyProcess]:
    """A proxy that verifies tokens by the keys in ``keys.json``, and gets a token of its own for the brokers."""
    (folder / "keys.json").write_bytes(key_set(key or rsa_key()))
    (folder / "secret").write_text("secret-of-the-proxy", encoding="ascii")
    with identity_provider() as provider:
        provider.serves(
            {
                "access_token": unsecured({"sub": PROXYS_USER, "scope": SCOPE}),
                "token_type": "Bearer",
                "expires_in": 3600,
            }
        )
        config = (
            listen_tls(kafka.broker)
            + upstream_tls(kafka)
            + f'[listen.sasl]\nmode = "terminate"\nmechanisms = ["{OAUTHBEARER}"]\n'
            + f'[plugins.options.sasl_oauth]\njwks_file = "{folder / "keys.json"}"\naudience = ["kafka"]\n'
            + f'required_scopes = ["{SCOPE}"]\n{options}'
            + f'[upstream.sasl]\nmechanism = "{OAUTHBEARER}"\nuser = "{PROXYS_USER}"\n'
            + f'password = {{ file = "{folder / "secret"}" }}\noptions = {{ token_endpoint = "{provider.url}" }}\n'
            + HIGH_QUOTAS
        )
        with ProxyProcess(kafka.address(Port.SASL_TLS), config=config, arguments=LOG) as proxy:
            yield proxy


@pytest.fixture(scope="module")
def terminator(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with verifying(secure_kafka, tmp_path_factory.mktemp("oauthbearer")) as proxy:
        yield proxy


@pytest.mark.exhaustive
@pytest.mark.parametrize("client", CLIENTS)
def test_a_token_is_accepted_or_refused_alike_each_way(
    secure_kafka: SecureKafka, observer: ProxyProcess, terminator: ProxyProcess, client: str
) -> None:
    broker = secure_kafka.address(Port.SASL_TLS)
    fronts = zip(FRONTS, (broker, observer.bootstrap_servers, terminator.bootstrap_servers), strict=True)
    found = []
    for front, address in fronts:
        for case in oauth_cases(signed_token if front == "terminating" else unsecured_token):
            outcome = connect_with(client, address, case.security(secure_kafka), timeout_s=case.timeout_s)
            problem = case.problem(client, outcome)
            found += [f"{front}: {problem}"] if problem else []
    assert not found, "\n".join(found)
    assert f"user={USER} " in observer.wait_for_log("user adopted") + " "
    for proxy in (observer, terminator):
        assert "secret-of-the-proxy" not in proxy.log
        assert "eyJ" not in proxy.log, "no token is in the log"


@pytest.mark.exhaustive
def test_sessions_and_keys_are_renewed_while_a_client_produces(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """Tokens, and so sessions, last for ten seconds, and the issuer replaces its key: nothing fails."""
    old, new = rsa_key("old"), rsa_key("new")
    signing, reported = [old], []

    def renewed(_: object) -> tuple[str, float]:
        expires_s = int(time_ns() / 1e9) + TOKEN_S
        return token(claims(expires_s - TOKEN_S, sub=USER, scope=SCOPE, exp=expires_s), signing[0]), float(expires_s)

    with verifying(secure_kafka, tmp_path, f"jwks_refresh_s = {SHORTEST_REFRESH_S}\n", old) as proxy:
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": OAUTHBEARER,
            "oauth_cb": renewed,
            "error_cb": lambda error: reported.append(str(error)),
            **secure_kafka.tls.librdkafka_settings(),
        }

        def go_on(count: int) -> None:
            """Wait for further logins, and for records after them."""
            logins = series(proxy, LOGINS)
            wait_until(lambda: series(proxy, LOGINS) >= logins + count, f"{count} logins", DEADLINE_S, poll_s=0.2)
            now_s = time.monotonic()
            wait_until(lambda: producer.acknowledged_everywhere_since(now_s), "the producer goes on", DEADLINE_S)

        def publish(*keys: Key) -> None:
            """Replace the set of keys, and wait until it was read."""
            fetched = series(proxy, FETCHED)
            (tmp_path / "draft.json").write_bytes(key_set(*keys))
            (tmp_path / "draft.json").replace(tmp_path / "keys.json")
            wait_until(lambda: series(proxy, FETCHED) >= fetched + 2, "it was read", DEADLINE_S, poll_s=0.2)

        topic = unique("renewed")
        admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers, **settings})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
        with SteadyProducer(proxy.bootstrap_servers, topic, 1, settings) as producer:
            go_on(4)
            publish(old, new)
            signing[0] = new
            go_on(6)  # after which no token of the old key is in use
            publish(new)
            go_on(4)
        assert proxy.metric("headrace_errors_total") == 0
        assert "login refused" not in proxy.log
        assert "connection closed" not in proxy.log
    assert (producer.failed, reported) == ([], [])
