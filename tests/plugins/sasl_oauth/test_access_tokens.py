"""Tokens for brokers, from a real token endpoint, and the exchange with Kafka's own server."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from time import time_ns
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import trio

from headrace.plugins.sasl_oauth.access_tokens import (
    MOST_IDENTITIES,
    RETRY_S,
    UNKNOWN_LIFETIME_S,
    AccessTokens,
    Credentials,
    TokenUnavailableError,
    read_answer,
)
from headrace.plugins.sasl_oauth.client_exchange import OAuthClientExchange, credentials_of
from headrace.plugins.sasl_oauth.http_requests import Answer
from headrace.plugins.sasl_oauth.messages import ACKNOWLEDGEMENT, INVALID_TOKEN
from headrace.quota_callbacks.sasl import SaslRefused, UpstreamSasl
from headrace.quota_callbacks.secret_sources import SecretSource
from tests.plugins.sasl_oauth.identity_provider import Asked, Reply
from tests.plugins.sasl_oauth.issuer import NOW_S, claims, key_set, rsa_key, token
from tests.plugins.sasl_oauth.kafka_oauth import KafkaValidator

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from tests.plugins.sasl_oauth.identity_provider import Authority, IdentityProvider

SECRET = "s3cr3t-of-the-client"
DEADLINE_S = 20


@pytest.fixture
def credentials(provider: IdentityProvider, authority: Authority, tmp_path: Path) -> Credentials:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return Credentials(
        endpoint=f"{provider.url}/token",
        client_id="headrace",
        secret=SecretSource(file=str(file)),
        scope="kafka",
        ca_file=str(authority.file),
    )


@pytest.fixture
def tokens() -> AccessTokens:
    return AccessTokens(lambda: NOW_S)


def counting(provider: IdentityProvider, expires_in: int = 100) -> None:
    """Each token is another: its number."""

    def answer(_: Asked) -> Reply:
        number = len(provider.asked)
        body = f'{{"access_token": "token-{number}", "token_type": "Bearer", "expires_in": {expires_in}}}'
        return Reply(body.encode())

    provider.answer = answer


async def waiting_for(provider: IdentityProvider, count: int) -> None:
    await trio.to_thread.run_sync(provider.wait_for, count)


async def test_the_request_has_the_form_of_kafkas_client(
    tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    counting(provider)
    assert (await tokens.token(credentials)).value == "token-1"
    (asked,) = provider.asked
    assert (asked.method, asked.path) == ("POST", "/token")
    assert asked.form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert asked.headers["Authorization"] == "Basic aGVhZHJhY2U6czNjcjN0LW9mLXRoZS1jbGllbnQ="
    assert asked.headers["Content-Type"] == "application/x-www-form-urlencoded"


async def test_a_request_for_a_strict_provider_with_further_parameters(
    tokens: AccessTokens, provider: IdentityProvider, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("50%+\u00fc:")
    options = {
        "token_endpoint": f"{provider.url}/token",
        "ca_file": str(authority.file),
        "header_urlencode": "true",
        "parameters": "audience=https%3A%2F%2Fkafka&resource=a+b&resource=%C3%BC",
    }
    source = SecretSource(file=str(tmp_path / "secret"))
    counting(provider)
    login = UpstreamSasl(mechanism="OAUTHBEARER", user="urn:proxy", password=source, options=options)
    await tokens.token(credentials_of(login))
    (asked,) = provider.asked
    basic = base64.b64decode(asked.headers["Authorization"].removeprefix("Basic ")).decode()
    assert basic == "urn%3Aproxy:50%25%2B%C3%BC%3A"
    assert asked.form == {
        "grant_type": ["client_credentials"],
        "audience": ["https://kafka"],
        "resource": ["a b", "\u00fc"],
    }


async def test_parameters_of_a_file(
    tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider, tmp_path: Path
) -> None:
    counting(provider)
    file = tmp_path / "parameters"
    from_file = replace(credentials, parameters_file=str(file))
    with pytest.raises(TokenUnavailableError, match="parameters: cannot be read: no such file"):
        await tokens.token(from_file)
    file.write_text("client_assertion=s3cr3t&audience=kafka\n")
    await trio.sleep(RETRY_S)
    await tokens.token(from_file)
    (asked,) = provider.asked
    assert (asked.form["client_assertion"], asked.form["audience"]) == (["s3cr3t"], ["kafka"])


async def test_a_request_with_the_secret_in_its_body(
    tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    counting(provider)
    await tokens.token(replace(credentials, secret_in_body=True, parameters=(("audience", "kafka"),)))
    (asked,) = provider.asked
    assert "Authorization" not in asked.headers
    assert asked.form == {
        "grant_type": ["client_credentials"],
        "audience": ["kafka"],
        "scope": ["kafka"],
        "client_id": ["headrace"],
        "client_secret": [SECRET],
    }


async def test_a_token_is_used_until_shortly_before_it_expires(
    mock_clock: MockClock, tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    counting(provider, expires_in=100)
    values = []
    for _ in range(3):
        values.append((await tokens.token(credentials)).value)
        mock_clock.jump(79)
    assert values == ["token-1", "token-1", "token-2"]  # after 79 s, and after 158 s
    assert tokens.fetched == len(provider.asked) == 2


async def test_connections_that_wait_share_one_request(
    tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    counting(provider)
    provider.hold()
    values: list[str] = []

    async def connect() -> None:
        values.append((await tokens.token(credentials)).value)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(connect)
            await waiting_for(provider, 1)
            provider.release()
    assert values == ["token-1"] * 50
    assert len(provider.asked) == 1


async def test_when_the_connection_that_asks_is_cancelled_another_one_asks(
    tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    counting(provider)
    provider.hold()
    values: list[str] = []
    first = trio.CancelScope()

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            values.append((await tokens.token(credentials)).value)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, first)
            await waiting_for(provider, 1)
            nursery.start_soon(ask, trio.CancelScope())
            first.cancel()
            await waiting_for(provider, 2)
            provider.release()
    assert values == ["token-2"]


REPLIES: dict[str, tuple[Reply, str]] = {
    "wrong secret": (
        Reply(b'{"error": "invalid_client", "error_description": "s3cr3t-of-the-client is wrong"}', status=401),
        "the answer has status 401: invalid_client",
    ),
    "an error with other characters": (Reply(b'{"error": "s3cr3t-of-the-client"}', status=400), "status 400$"),
    "a redirect": (Reply(status=307, headers={"Location": "https://evil.example.com"}), "the answer has status 307"),
    "no JSON": (Reply(b"<html>"), "the answer is not valid JSON"),
    "a list": (Reply(b"[]"), "the answer is not a JSON object"),
    "no token": (Reply(b"{}"), "the answer is without a text access_token"),
    "another type of token": (Reply(b'{"access_token": "t", "token_type": "mac"}'), "not of the type Bearer"),
    "a token that adds keys": (Reply(b'{"access_token": "t\\u0001auth=Bearer"}'), "that RFC 6750 does not allow"),
    "expired": (Reply(b'{"access_token": "t", "expires_in": 0}'), "has expired already"),
    "no number": (Reply(b'{"access_token": "t", "expires_in": true}'), "is not a number of seconds"),
    "too long": (Reply(b'{"access_token": "' + b"t" * 70_000 + b'"}'), "longer than 65536 bytes"),
}


@pytest.mark.parametrize("case", REPLIES)
async def test_answers_without_a_token(
    case: str, tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    reply, reason = REPLIES[case]
    provider.answer = lambda _: reply
    with structlog.testing.capture_logs() as logs, pytest.raises(TokenUnavailableError, match=reason) as refused:
        await tokens.token(credentials)
    assert credentials.endpoint in str(refused.value)
    assert SECRET not in f"{refused.value!r} {logs}"
    assert [each["event"] for each in logs] == ["no token for OAUTHBEARER"]


async def test_the_endpoint_is_asked_once_a_second_while_it_fails(
    mock_clock: MockClock, tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    provider.serves(b"", status=503)
    with structlog.testing.capture_logs() as logs:
        for number in range(1, 4):
            for _ in range(5):
                with pytest.raises(TokenUnavailableError, match="status 503"):
                    await tokens.token(credentials)
            assert len(provider.asked) == tokens.failed == number
            mock_clock.jump(RETRY_S)
    assert len(logs) == 1
    counting(provider)
    assert (await tokens.token(credentials)).value == "token-4"


async def test_a_valid_token_is_used_if_it_cannot_be_renewed(
    mock_clock: MockClock, tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    counting(provider, expires_in=100)
    await tokens.token(credentials)
    provider.serves(b"", status=503)
    mock_clock.jump(90)
    assert (await tokens.token(credentials)).value == "token-1"
    assert len(provider.asked) == 2
    mock_clock.jump(9)
    with pytest.raises(TokenUnavailableError, match="status 503"):
        await tokens.token(credentials)


async def test_each_identity_has_its_own_token(
    tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    counting(provider)
    first = Credentials(
        endpoint=credentials.endpoint, client_id="a", secret=credentials.secret, ca_file=credentials.ca_file
    )
    assert (await tokens.token(first)).value == "token-1"
    assert (await tokens.token(credentials)).value == "token-2"
    assert (await tokens.token(first)).value == "token-1"


def test_the_number_of_identities_is_bounded(tokens: AccessTokens, credentials: Credentials) -> None:
    for number in range(MOST_IDENTITIES + 10):
        tokens._entry(Credentials(endpoint="https://a", client_id=str(number), secret=credentials.secret))
    assert len(tokens._entries) == MOST_IDENTITIES


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (SecretSource(env="HEADRACE_TEST_UNSET"), "the variable HEADRACE_TEST_UNSET: the variable is not set"),
        (SecretSource(file="/nonexistent"), "the file /nonexistent: cannot be read"),
    ],
)
async def test_the_secret_cannot_be_read(
    source: SecretSource, reason: str, tokens: AccessTokens, provider: IdentityProvider
) -> None:
    with pytest.raises(TokenUnavailableError, match=reason):
        await tokens.token(Credentials(endpoint=provider.url, client_id="a", secret=source))
    assert provider.asked == []


async def test_the_authorities_cannot_be_read(tokens: AccessTokens, credentials: Credentials) -> None:
    wrong = Credentials(endpoint=credentials.endpoint, client_id="a", secret=credentials.secret, ca_file="/nonexistent")
    with pytest.raises(TokenUnavailableError, match="/nonexistent"):
        await tokens.token(wrong)


@pytest.mark.parametrize(
    ("members", "lifetime_s"),
    [
        ({"expires_in": 300}, 300),
        ({"expires_in": "300"}, 300),
        ({"expires_in": 299.5}, 299.5),
        ({"access_token": token(claims(exp=NOW_S + 77))}, 77),
        ({"access_token": token(claims(exp=NOW_S + 77)), "expires_in": 50}, 50),
        ({}, UNKNOWN_LIFETIME_S),
        ({"access_token": token(claims(exp=...))}, UNKNOWN_LIFETIME_S),
        ({"expires_in": 10**400}, 365 * 86_400),
        ({"access_token": token(claims(exp=10**400))}, 365 * 86_400),
    ],
)
def test_the_lifetime(members: dict[str, Any], lifetime_s: float) -> None:
    body = json.dumps({"access_token": "opaque", **members}).encode()
    assert read_answer(Answer(status=200, body=body), NOW_S)[1] == lifetime_s


# --- the exchange ---


async def kafka_answers(
    exchange: OAuthClientExchange, folder: Path, provider: IdentityProvider, **changes: Any
) -> tuple[bytes | None, Any]:
    """Let the exchange send its token to Kafka's server; return the answer and the server."""
    file = folder / "keys.json"
    file.write_bytes(key_set(rsa_key()))
    provider.serves({"access_token": token(claims(time_ns() // 10**9, **changes)), "expires_in": 300})
    server = KafkaValidator(file, audience=("kafka",)).server()
    message = await exchange.respond(None)
    assert message is not None
    return server.respond(message), server


async def test_kafka_accepts_the_message(
    tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider, tmp_path: Path
) -> None:
    extended = replace(credentials, extensions=(("logicalCluster", "lkc-1"), ("pool", "a b")))
    exchange = OAuthClientExchange(tokens, extended)
    answer, server = await kafka_answers(exchange, tmp_path, provider)
    assert server.principal == "alice"
    for name, value in extended.extensions:
        assert str(server.java_server.getNegotiatedProperty(name)) == value
    assert await exchange.respond(answer) is None
    with pytest.raises(SaslRefused, match="went on after the end"):
        await exchange.respond(b"")


async def test_kafka_refuses_the_token(
    mock_clock: MockClock, tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider, tmp_path: Path
) -> None:
    """The error is acknowledged, and the token is not used again."""
    exchange = OAuthClientExchange(tokens, credentials)
    answer, server = await kafka_answers(exchange, tmp_path, provider, aud="other")
    assert answer == INVALID_TOKEN
    mock_clock.jump(RETRY_S)
    assert await exchange.respond(answer) == ACKNOWLEDGEMENT
    assert server.respond(ACKNOWLEDGEMENT) is None
    with pytest.raises(SaslRefused):
        await exchange.respond(b"")
    counting(provider)
    assert (await tokens.token(credentials)).value == "token-2"


async def test_a_new_token_that_is_refused_is_not_fetched_again_at_once(
    mock_clock: MockClock, tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    counting(provider)
    for _ in range(3):
        exchange = OAuthClientExchange(tokens, credentials)
        await exchange.respond(None)
        await exchange.respond(INVALID_TOKEN)
    assert len(provider.asked) == 1


async def test_no_token_is_a_refusal_that_names_the_reason(
    tokens: AccessTokens, credentials: Credentials, provider: IdentityProvider
) -> None:
    provider.serves({"error": "invalid_scope"}, status=400)
    with pytest.raises(SaslRefused, match=r"no token: .*status 400: invalid_scope") as refused:
        await OAuthClientExchange(tokens, credentials).respond(None)
    assert refused.value.user == "headrace"


async def test_a_challenge_before_the_token_is_refused(tokens: AccessTokens, credentials: Credentials) -> None:
    with pytest.raises(SaslRefused, match="before the token"):
        await OAuthClientExchange(tokens, credentials).respond(b"challenge")


# --- settings ---

GOOD = {"token_endpoint": "https://idp.example.com/token"}


def settings(options: dict[str, str], user: str | None = "a", *, password: bool = True) -> UpstreamSasl:
    source = SecretSource(env="A") if password else None
    return UpstreamSasl(mechanism="OAUTHBEARER", user=user, password=source, options=options)


def test_settings_are_credentials() -> None:
    options = {
        **GOOD,
        "scope": "kafka",
        "ca_file": "/ca.pem",
        "client_authentication": "body",
        "extensions": "a=b+c&d=e",
    }
    found = credentials_of(settings(options))
    assert found == Credentials(
        endpoint=GOOD["token_endpoint"],
        client_id="a",
        secret=SecretSource(env="A"),
        scope="kafka",
        ca_file="/ca.pem",
        secret_in_body=True,
    )
    assert found.extensions == (("a", "b c"), ("d", "e"))
    assert "b c" not in repr(found)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (settings({}), "expected the option token_endpoint"),
        (settings({"token_endpoint": "http://idp.example.com/token"}), "http is for loopback only"),
        (settings({**GOOD, "scopes": "a"}), "unknown option scopes; known are token_endpoint, scope, ca_file"),
        (settings({**GOOD, "header_urlencode": "yes"}), 'header_urlencode: expected "true" or "false"'),
        (settings({**GOOD, "client_authentication": "post"}), 'client_authentication: expected "body" or "header"'),
        (
            settings({**GOOD, "client_authentication": "body", "header_urlencode": "true"}),
            'header_urlencode has no effect if client_authentication is "body"',
        ),
        (settings({**GOOD, "extensions": "pool"}), "extensions: expected a form-encoded text"),
        (settings({**GOOD, "extensions": "auth=a"}), "extensions: expected names of letters from A to Z"),
        (settings({**GOOD, "extensions": "pool-1=a"}), "extensions: expected names of letters from A to Z"),
        (settings({**GOOD, "extensions": "pool=%01"}), "extensions: expected names of letters from A to Z"),
        (settings({**GOOD, "extensions": "auth%3Dx=y"}), "extensions: expected names of letters from A to Z"),
        (settings({**GOOD, "extensions": "pool%0A=y"}), "extensions: expected names of letters from A to Z"),
        (settings({**GOOD, "extensions": "a=b&a=c"}), "extensions: a name is there twice"),
        (settings({**GOOD, "parameters": "audience"}), "parameters: expected a form-encoded text"),
        (settings({**GOOD, "parameters": "a=b", "parameters_file": "/c"}), "either parameters or parameters_file"),
        (settings({**GOOD, "parameters": "a=%FF"}), "parameters: expected a form-encoded text"),
        (settings({**GOOD, "parameters": "a=b&scope=c"}), "parameters: scope is not a further parameter"),
        (settings(GOOD, None), "expected a user, the client id, and a password"),
        (settings(GOOD, password=False), "expected a user, the client id, and a password"),
    ],
)
def test_settings_are_checked(wrong: UpstreamSasl, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        credentials_of(wrong)


def test_a_token_that_expired_before_there_was_time() -> None:
    body = json.dumps({"access_token": token(claims(exp=-(10**400))), "token_type": "Bearer"}).encode()
    with pytest.raises(ValueError, match="the token has expired already"):
        read_answer(Answer(status=200, body=body), NOW_S)
