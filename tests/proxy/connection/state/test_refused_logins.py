"""SASL logins that the broker refuses: the log names mechanism, user and the broker's reason, and never a secret."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.proxy.network.listener import ListenerTls
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.playbook import Book, framed, open_book, reply, request

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from trio.testing import MockClock

HANDSHAKE, AUTHENTICATE = ApiKey.SASL_HANDSHAKE.value, ApiKey.SASL_AUTHENTICATE.value
FAILED, ILLEGAL_STATE, UNSUPPORTED_MECHANISM = 58, 34, 33
SECRET = "correct-horse"
PLAIN = f"\0alice\0{SECRET}".encode()
CLAIMS = base64.urlsafe_b64encode(json.dumps({"sub": "carol"}).encode()).decode().rstrip("=")
JWT = f"e30.{CLAIMS}.{SECRET}"
OAUTH = f"n,,\x01auth=Bearer {JWT}\x01\x01".encode()
INVALID_TOKEN = b'{"status":"invalid_token"}'
MESSAGE = "Authentication failed: Invalid username or password"

Exchange = tuple[bytes, bytes, int]
"""A token, the broker's answer, and its error code."""


async def shake(book: Book, mechanism: str, version: int = 1) -> None:
    asked = request(HANDSHAKE, version, 1, mechanism=mechanism)
    await book.round_trip(asked, reply(HANDSHAKE, version, 1, mechanisms=[mechanism]))


def logged(lines: list[MutableMapping[str, Any]], event: str) -> list[MutableMapping[str, Any]]:
    assert SECRET not in str(lines)
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize(
    ("mechanism", "exchanges", "user"),
    [
        ("PLAIN", [(PLAIN, b"", FAILED)], "alice"),
        ("PLAIN", [(b"no token of PLAIN " + SECRET.encode(), b"", FAILED)], None),
        ("SCRAM-SHA-512", [(b"n,,n=bob,r=x", b"", FAILED)], "bob"),
        (
            "SCRAM-SHA-256",
            [(b"n,,n=bob,r=x", b"r=xy,s=c2FsdA==,i=4096", 0), (b"c=biws,r=xy,p=cHJvb2Y=", b"", FAILED)],
            "bob",
        ),
        ("OAUTHBEARER", [(OAUTH, INVALID_TOKEN, 0), (b"\x01", b"", FAILED)], "carol"),
        ("GSSAPI", [(SECRET.encode(), b"", FAILED)], None),
    ],
    ids=["PLAIN", "malformed", "SCRAM, unknown user", "SCRAM, wrong password", "OAUTHBEARER", "GSSAPI"],
)
async def test_an_error_reply(
    mechanism: str, exchanges: Sequence[Exchange], user: str | None, autojump_clock: MockClock
) -> None:
    with capture_logs() as lines:
        async with open_book(plugins={"sasl_identity": SaslIdentity()}) as book:
            await shake(book, mechanism)
            for token, answer, error in exchanges:
                fields = {"error_code": error, "error_message": MESSAGE if error else None, "auth_bytes": answer}
                asked, answered = request(AUTHENTICATE, 2, 2, auth_bytes=token), reply(AUTHENTICATE, 2, 2, **fields)
                assert await book.round_trip(asked, answered) == answered
            assert book.shared.counters.logins_refused == {mechanism: 1}
    [line] = logged(lines, "login refused")
    assert line["log_level"] == "warning"
    assert (line["mechanism"], line["user"]) == (mechanism, user)
    assert line["reason"] == f"SASL_AUTHENTICATION_FAILED: {MESSAGE}"
    assert (line["peer"], line["upstream"]) == ("198.51.100.7:5000", "kafka:9092")


async def test_a_mechanism_that_the_broker_does_not_offer(autojump_clock: MockClock) -> None:
    with capture_logs() as lines:
        async with open_book(plugins={"sasl_identity": SaslIdentity()}) as book:
            answer = reply(
                HANDSHAKE, 1, 1, error_code=UNSUPPORTED_MECHANISM, mechanisms=["SCRAM-SHA-512", "OAUTHBEARER"]
            )
            await book.round_trip(request(HANDSHAKE, 1, 1, mechanism="PLAIN"), answer)
    [line] = logged(lines, "login refused")
    assert (line["mechanism"], line["user"]) == ("PLAIN", None)
    assert line["reason"] == "UNSUPPORTED_SASL_MECHANISM: the broker offers SCRAM-SHA-512, OAUTHBEARER"


async def test_a_reply_without_a_message(autojump_clock: MockClock) -> None:
    with capture_logs() as lines:
        async with open_book(plugins={"sasl_identity": SaslIdentity()}) as book:
            await shake(book, "PLAIN")
            answer = reply(AUTHENTICATE, 0, 2, error_code=ILLEGAL_STATE)
            await book.round_trip(request(AUTHENTICATE, 0, 2, auth_bytes=PLAIN), answer)
    assert logged(lines, "login refused")[0]["reason"] == "ILLEGAL_SASL_STATE: the broker gave no reason"


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (0, "client: the broker refused the SASL login: it closed the connection after a token"),
        (1, "upstream: the broker closed the connection without answering a SASL login"),
    ],
    ids=["a token without a header", "SaslAuthenticate"],
)
async def test_a_connection_that_is_closed_after_a_token(version: int, reason: str, autojump_clock: MockClock) -> None:
    """Without a header a broker has no other way to refuse."""
    with capture_logs() as lines:
        async with open_book(plugins={"sasl_identity": SaslIdentity()}) as book:
            await shake(book, "PLAIN", version)
            await book.client.sends(framed(PLAIN) if version == 0 else request(AUTHENTICATE, 2, 2, auth_bytes=PLAIN))
            await book.broker.receives()
            book.broker.socket.close()
            await book.client.receives_the_end()
    [line] = logged(lines, "connection closed")
    assert line["log_level"] == "warning"
    assert line["reason"] == f"{reason} (mechanism PLAIN, user alice)"


async def test_at_most_one_warning_a_minute_for_a_host(autojump_clock: MockClock) -> None:
    with capture_logs() as lines:
        async with open_book(plugins={"sasl_identity": SaslIdentity()}) as book:
            for _ in range(3):
                await shake(book, "PLAIN")
                answer = reply(AUTHENTICATE, 2, 2, error_code=FAILED, error_message=MESSAGE)
                await book.round_trip(request(AUTHENTICATE, 2, 2, auth_bytes=PLAIN), answer)
    assert [line["log_level"] for line in logged(lines, "login refused")] == ["warning", "debug", "debug"]


@pytest.mark.parametrize(
    ("tls", "protocol"),
    [(None, "SASL_PLAINTEXT"), (ListenerTls(context=None, principals=None), "SASL_SSL")],  # type: ignore[arg-type]
    ids=["plaintext", "TLS"],
)
async def test_a_client_that_does_not_log_in_is_distinguished_from_a_refused_one(
    tls: ListenerTls | None, protocol: str, autojump_clock: MockClock
) -> None:
    """The broker of a SASL listener closes the connection at its first request."""
    with capture_logs() as lines:
        async with open_book() as book:
            book.listener.tls = tls
            book.forget_acceptance()
            await book.client.sends(request(ApiKey.HEARTBEAT, 4, 1))
            await book.upstream.wait_for_dial(1)
            await book.broker.receives()
            book.broker.socket.close()
            await book.client.receives_the_end()
    [line] = [line for line in lines if line["event"] == "connection closed"]
    assert "did not log in; if its listener requires SASL" in line["reason"]
    assert line["reason"].endswith(f"set the client's security.protocol to {protocol}")
