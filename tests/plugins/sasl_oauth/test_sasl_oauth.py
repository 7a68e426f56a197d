"""The plugin: its options, its hooks, and a client that authenticates by keys from a real server."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from headrace.plugins.sasl_oauth import SaslOAuth
from headrace.plugins.sasl_oauth.access_tokens import AccessToken
from headrace.plugins.sasl_oauth.claims import ClaimRules
from headrace.plugins.sasl_oauth.messages import INVALID_TOKEN, read_client_message
from headrace.plugins.sasl_oauth.options import Algorithm
from headrace.plugins.sasl_oauth.server_exchange import OAuthServerExchange
from headrace.plugins.sasl_oauth.verification import TokenVerifier
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.options import OptionsError
from headrace.quota_callbacks.requests import Address, Connection
from headrace.quota_callbacks.sasl import SaslRefused, UpstreamSasl
from headrace.quota_callbacks.secret_sources import SecretSource
from headrace.quota_callbacks.testing import make_context
from tests.faults.waiting import wait_until
from tests.plugins.sasl_identity.sasl_messages import bearer
from tests.plugins.sasl_oauth.issuer import NOW_S, b64, claims, ec_key, key_set, rsa_key, token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.quota_callbacks.sasl import ServerExchange
    from tests.plugins.sasl_oauth.identity_provider import Authority, IdentityProvider

    Configure = Callable[..., SaslOAuth]

ACKNOWLEDGEMENT = b"\x01"
CLIENT = Connection(connection_id=1, peer=Address(host="192.0.2.1", port=1))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(rsa_key(), ec_key()))
    return file


@pytest.fixture
def configure() -> Iterator[Configure]:
    """Configure a plugin with options; it is closed after the test."""
    plugins: list[SaslOAuth] = []

    def with_options(options: dict[str, Any]) -> SaslOAuth:
        plugin = SaslOAuth(now_s=lambda: NOW_S + 0.25)
        plugins.append(plugin)
        plugin.configure(make_context(options))
        return plugin

    yield with_options
    for each in plugins:
        each.close()


@pytest.fixture
def plugin(configure: Configure, keys: Path) -> SaslOAuth:
    return configure({"jwks_file": str(keys), "audience": ["kafka"], "issuer": "https://idp.example.com"})


def exchange_of(plugin: SaslOAuth) -> ServerExchange:
    exchange = plugin.sasl_server_exchange("OAUTHBEARER")
    assert exchange is not None
    return exchange


def refusal(plugin: SaslOAuth, value: str) -> SaslRefused:
    """The refusal of a token, after the client has acknowledged the error."""
    exchange = exchange_of(plugin)
    step = exchange.respond(bearer(value))
    assert (step.principal, step.answer) == (None, b'{"status":"invalid_token"}')
    assert not exchange.blocks
    with pytest.raises(SaslRefused) as refused:
        exchange.respond(ACKNOWLEDGEMENT)
    return refused.value


# --- clients ---


def test_an_accepted_client(plugin: SaslOAuth) -> None:
    exchange = exchange_of(plugin)
    assert exchange.blocks
    step = exchange.respond(bearer(token(claims())))
    assert (step.answer, step.principal, step.lifetime_s) == (b"", "alice", 299.75)
    with pytest.raises(SaslRefused, match="does not belong here"):
        exchange.respond(bearer(token(claims())))


def test_a_token_within_the_clock_skew_has_no_lifetime_left(plugin: SaslOAuth) -> None:
    step = exchange_of(plugin).respond(bearer(token(claims(exp=NOW_S - 10, iat=NOW_S - 100))))
    assert (step.principal, step.lifetime_s) == ("alice", 0)


REASONS: dict[str, tuple[str, str]] = {
    "expired": (token(claims(exp=NOW_S - 40, iat=NOW_S - 100)), "the token expired 40 s ago"),
    "not yet valid": (token(claims(nbf=NOW_S + 40)), "the token is not valid for another 40 s"),
    "issued later": (token(claims(iat=NOW_S + 40)), "the token was issued 40 s in the future"),
    "issuer": (token(claims(iss="https://evil")), "the token has another issuer (claim iss)"),
    "audience": (token(claims(aud="evil")), "the token's audience (claim aud) is another one"),
    "signature": (token(claims())[:-8] + "AAAAAAAA", "the token's signature is wrong"),
    "kid": (token(claims(), kid="x"), "the token's key (kid) is unknown; the keys are fetched again"),
    "kid that is a number": (token(claims(), kid=5), "the token's header is wrong: the kid is not a string"),
    "algorithm": (token(claims(), alg="HS256"), "the token's algorithm is not one with a public key"),
    "other key": (token(claims(), kid="ec"), "the issuer has no such key for RS256"),
}


@pytest.mark.parametrize("case", REASONS)
def test_the_reason_is_for_the_log_and_contains_nothing_of_the_token(case: str, plugin: SaslOAuth) -> None:
    value, reason = REASONS[case]
    refused = refusal(plugin, value)
    assert (str(refused), refused.user) == (reason, "alice")
    assert "evil" not in str(refused)


def test_a_header_of_any_depth_is_refused_as_a_token(plugin: SaslOAuth) -> None:
    _, payload, signature = token(claims()).split(".")
    deepest = sys.getrecursionlimit()
    for depth in range(deepest - 200, deepest):
        header = f'{{"alg": "RS256", "kid": "rsa", "x": {"[" * depth}{"]" * depth}}}'
        step = exchange_of(plugin).respond(bearer(f"{b64(header.encode())}.{payload}.{signature}"))
        assert step.answer == INVALID_TOKEN, depth


def test_what_is_not_a_token_names_nobody(plugin: SaslOAuth) -> None:
    refused = refusal(plugin, "opaque")
    assert str(refused) == "the token is not a signed JWT: it does not have three parts"
    assert refused.user is None


def test_another_user_than_the_tokens_is_refused_at_once(plugin: SaslOAuth) -> None:
    with pytest.raises(SaslRefused, match="not the user of the token") as refused:
        exchange_of(plugin).respond(bearer(token(claims()), authzid="a=bob"))
    assert refused.value.user == "alice"


def test_anything_but_the_acknowledgement_ends_the_exchange(plugin: SaslOAuth) -> None:
    exchange = exchange_of(plugin)
    exchange.respond(bearer(token(claims(), kid="x")))
    with pytest.raises(SaslRefused, match="does not belong here"):
        exchange.respond(bearer(token(claims())))
    with pytest.raises(SaslRefused, match="does not belong here"):
        exchange.respond(ACKNOWLEDGEMENT)


def test_required_scopes(configure: Configure, keys: Path) -> None:
    plugin = configure({"jwks_file": str(keys), "audience": ["kafka"], "required_scopes": ["read", "write"]})
    for scope in ("write other read", ["other", "write", "read"]):
        assert exchange_of(plugin).respond(bearer(token(claims(scope=scope)))).principal == "alice"
    for scope in ("write", ["read write"], 5, None):
        refused = refusal(plugin, token(claims(scope=scope)))
        assert "lacks the scope" in str(refused)


@pytest.mark.parametrize(
    ("restricted", "missing"),
    [
        ({}, ["issuer", "audience"]),
        ({"issuer": "https://idp.example.com"}, ["audience"]),
        ({"audience": ["a"]}, ["issuer"]),
        ({"issuer": "https://idp.example.com", "audience": ["a"]}, []),
    ],
)
def test_a_warning_names_each_restriction_that_is_missing(
    configure: Configure, keys: Path, restricted: dict[str, Any], missing: list[str]
) -> None:
    with structlog.testing.capture_logs() as lines:
        configure({"jwks_file": str(keys), **restricted})
    settings = [line["setting"] for line in lines if line["event"] == "tokens are accepted"]
    assert settings == [f"plugins.options.sasl_oauth.{name}" for name in missing]


def test_other_claims_and_algorithms(configure: Configure, keys: Path) -> None:
    options = {
        "principal_claim": "client_id",
        "scope_claim": "scp",
        "required_scopes": ["kafka"],
        "algorithms": ["ES256"],
    }
    plugin = configure({"jwks_file": str(keys), "audience": ["kafka"], **options})
    value = claims(client_id="app-1", scp=["kafka"])
    assert exchange_of(plugin).respond(bearer(token(value, ec_key(), "ES256"))).principal == "app-1"
    refused = refusal(plugin, token(value))
    assert (str(refused), refused.user) == ("the token's algorithm RS256 is not in algorithms", "app-1")


def test_keys_from_a_server(configure: Configure, provider: IdentityProvider, authority: Authority) -> None:
    """The start waits for the keys, and a connection never does."""
    provider.serves(key_set(rsa_key()))
    plugin = configure({"jwks_url": f"{provider.url}/keys", "ca_file": str(authority.file), "audience": ["kafka"]})
    assert exchange_of(plugin).respond(bearer(token(claims()))).principal == "alice"
    provider.hold()
    assert "is unknown" in str(refusal(plugin, token(claims(), ec_key(), "ES256")))
    assert exchange_of(plugin).respond(bearer(token(claims()))).principal == "alice"
    assert len(provider.asked) == 1
    assert {each.labels["outcome"]: each.value for each in plugin.collect_metrics()} == {"fetched": 1, "failed": 0}


def test_it_is_ready_from_the_first_keys_on(
    configure: Configure, provider: IdentityProvider, authority: Authority
) -> None:
    assert configure({}).not_ready() is None, "it verifies no tokens"
    plugin = configure({"jwks_url": f"{provider.url}/keys", "ca_file": str(authority.file), "audience": ["kafka"]})
    assert plugin.not_ready() == "the keys that verify clients' tokens have not been fetched yet"
    provider.serves(key_set(rsa_key()))
    wait_until(lambda: plugin.not_ready() is None, "the keys are fetched")


def test_before_the_first_keys() -> None:
    class NoKeys:
        keys = None

        def request_refresh(self) -> None:
            raise AssertionError

    exchange = OAuthServerExchange(TokenVerifier(NoKeys(), ClaimRules(), tuple(Algorithm)), lambda: NOW_S)
    assert exchange.respond(bearer(token(claims()))).principal is None
    with pytest.raises(SaslRefused, match="have not been fetched yet"):
        exchange.respond(ACKNOWLEDGEMENT)


# --- options ---


def test_without_options_nothing_is_verified(configure: Configure) -> None:
    plugin = configure({})
    with pytest.raises(ValueError, match="jwks_url or jwks_file"):
        plugin.sasl_server_exchange("OAUTHBEARER")
    assert list(plugin.collect_metrics()) == []


def test_other_mechanisms_are_not_its_own(plugin: SaslOAuth) -> None:
    assert plugin.sasl_server_exchange("PLAIN") is None
    assert plugin.sasl_client_exchange(UpstreamSasl(mechanism="PLAIN")) is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"jwks_url": "http://idp.example.com"},
            "jwks_url = .*: expected the URL of a JSON Web Key Set.*loopback only",
        ),
        ({"jwks_url": 5}, "jwks_url = 5: expected the URL of a JSON Web Key Set"),
        ({"jwks_url": "https://a", "jwks_file": "/a"}, "jwks_file: expected either this or jwks_url"),
        ({"audience": ["a"]}, "audience: has no effect without jwks_url or jwks_file"),
        ({"jwks_file": "/a", "ca_file": "/a"}, "ca_file: only applies to jwks_url"),
        ({"jwks_file": "/nonexistent"}, "jwks_file = .*/nonexistent: no such file"),
        ({"jwks_url": "https://a", "ca_file": "/nonexistent"}, "ca_file = .*: no such file"),
        ({"jwks_url": "https://a", "algorithms": ["none"]}, "algorithms"),
        ({"jwks_url": "https://a", "algorithms": ["HS256"]}, "algorithms"),
        ({"jwks_url": "https://a", "algorithms": []}, "algorithms"),
        ({"jwks_url": "https://a", "clock_skew_s": -1}, "clock_skew_s = -1: expected a whole number of seconds"),
        ({"jwks_url": "https://a", "required_scopes": ["a b"]}, "required_scopes: a scope contains no spaces"),
        ({"jwks": "https://a"}, "jwks: unknown key"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_wrong_options(options: dict[str, Any], error: str, dry: bool) -> None:
    with pytest.raises(OptionsError, match=f"plugins.options.sasl_oauth.{error}"):
        SaslOAuth().configure(make_context(options, dry=dry))


def test_a_file_without_keys_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text('{"keys": []}')
    with pytest.raises(OptionsError, match="has no key that can verify"):
        SaslOAuth().configure(make_context({"jwks_file": str(file)}))


def test_a_dry_run_starts_no_thread_and_asks_nobody(provider: IdentityProvider, authority: Authority) -> None:
    plugin, before = SaslOAuth(), set(threading.enumerate())  # one of another test may still be ending
    plugin.configure(make_context({"jwks_url": provider.url, "ca_file": str(authority.file)}, dry=True))
    assert "headrace-jwks" not in {each.name for each in set(threading.enumerate()) - before}
    assert provider.asked == []
    plugin.close()


WITHOUT_PACKAGES = """
import sys

sys.modules["joserfc"] = sys.modules["httpx"] = None  # as if they were not installed
from headrace.plugins.sasl_oauth import SaslOAuth
from headrace.quota_callbacks.sasl import UpstreamSasl
from headrace.quota_callbacks.testing import make_context
SaslOAuth().configure(make_context({}))
for use in (
    lambda: SaslOAuth().configure(make_context({"jwks_url": "https://a"})),
    lambda: SaslOAuth().sasl_client_exchange(UpstreamSasl(mechanism="OAUTHBEARER")),
):
    try:
        use()
    except ValueError as error:
        print(error)
"""


def test_missing_packages_are_named() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.splitlines() == [
        "plugins.options.sasl_oauth needs the package httpx: pip install 'headrace[oauth]'",
        "OAUTHBEARER towards brokers needs the package httpx: pip install 'headrace[oauth]'",
    ], ran.stderr


# --- brokers ---


async def test_a_token_for_a_broker(
    configure: Configure, provider: IdentityProvider, authority: Authority, tmp_path: Path
) -> None:
    """By the calls of the proxy."""
    (tmp_path / "secret").write_text("s3cr3t")
    settings = UpstreamSasl(
        mechanism="OAUTHBEARER",
        user="headrace",
        password=SecretSource(file=str(tmp_path / "secret")),
        options={"token_endpoint": provider.url, "ca_file": str(authority.file)},
    )
    manager = new_plugin_manager()
    plugin = configure({})
    register(manager, "sasl_oauth", plugin)
    sasl = HookCalls(manager).sasl
    provider.serves({"access_token": "a.b.c", "expires_in": 60})
    for connection in (CLIENT, None):
        found = sasl.client_exchange(connection, settings)
        assert found is not None
        _, exchange = found
        assert await exchange.respond(None) == b"n,,\x01auth=Bearer a.b.c\x01\x01"
        assert await exchange.respond(b"") is None
    assert len(provider.asked) == 1
    assert {each.labels["outcome"]: each.value for each in plugin.collect_metrics()} == {"fetched": 1, "failed": 0}


def test_wrong_settings_for_brokers(plugin: SaslOAuth) -> None:
    with pytest.raises(ValueError, match="OAUTHBEARER: expected the option token_endpoint"):
        plugin.sasl_client_exchange(UpstreamSasl(mechanism="OAUTHBEARER"))


def test_secrets_are_not_shown() -> None:
    value = token(claims())
    shown = f"{AccessToken(value=value, fetched_s=0, renew_s=0, expires_s=0)!r} {read_client_message(bearer(value))!r}"
    assert value not in shown
