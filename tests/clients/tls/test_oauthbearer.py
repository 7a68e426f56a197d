"""Real clients authenticate by OAUTHBEARER: to a broker directly, to it through a proxy, and to a proxy that itself
authenticates to the broker by a token."""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, Final

import pytest

from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import HIGH_QUOTAS
from tests.clients.tls.cases import WRONG_TOKEN, Case
from tests.clients.tls.connecting import CLIENTS, OAUTHBEARER, Login, Security, connect_with
from tests.clients.tls.proxies import PROXYS_USER, listen_tls, upstream_tls
from tests.plugins.sasl_identity.sasl_messages import unsecured
from tests.plugins.sasl_oauth.identity_provider import identity_provider
from tests.plugins.sasl_oauth.issuer import claims, key_set, rsa_key, token
from tests.secure_cluster import SCOPE, Port, SecureKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

USER: Final = "dave"
FRONTS: Final = ("broker", "observing", "terminating")
LOG: Final = ("--log-level", "debug")


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


@pytest.fixture(scope="module")
def terminator(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy that verifies signed tokens, and gets a token of its own for the brokers."""
    folder = tmp_path_factory.mktemp("oauthbearer")
    (folder / "keys.json").write_bytes(key_set(rsa_key()))
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
            listen_tls(secure_kafka.broker)
            + upstream_tls(secure_kafka)
            + f'[listen.sasl]\nmode = "terminate"\nmechanisms = ["{OAUTHBEARER}"]\n'
            + f'[plugins.options.sasl_oauth]\njwks_file = "{folder / "keys.json"}"\naudience = ["kafka"]\n'
            + f'required_scopes = ["{SCOPE}"]\n'
            + f'[upstream.sasl]\nmechanism = "{OAUTHBEARER}"\nuser = "{PROXYS_USER}"\n'
            + f'password = {{ file = "{folder / "secret"}" }}\noptions = {{ token_endpoint = "{provider.url}" }}\n'
            + HIGH_QUOTAS
        )
        with ProxyProcess(secure_kafka.address(Port.SASL_TLS), config=config, arguments=LOG) as proxy:
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
