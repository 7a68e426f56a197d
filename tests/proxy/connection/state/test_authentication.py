"""The client's principal: scripts of handshakes, tokens and answers, and the user that requests are charged to."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.connection.state.authentication import REPEATED_AFTER_S, Authentication
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager
from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.entities import ANONYMOUS
from headrace.quota_callbacks.requests import Address, Connection
from tests.proxy.playbook import framed, open_book, reply, request
from tests.proxy.sasl_script import (
    ALICE,
    API_VERSIONS,
    AUTHENTICATE,
    BOB,
    FAILED,
    HANDSHAKE,
    HEARTBEAT,
    ILLEGAL_STATE,
    LIFETIME_MS,
    METADATA,
    UNSUPPORTED_MECHANISM,
    Charges,
    beat,
    exchange,
    plugins,
    shake,
    user,
)

if TYPE_CHECKING:
    from trio.testing import MockClock


# --- adopted once accepted ---


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_plain(version: int, autojump_clock: MockClock) -> None:
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        await beat(book)
        await shake(book, "PLAIN")
        assert book.connection.info.mechanism == "PLAIN"
        await book.client.sends(request(AUTHENTICATE, version, 2, auth_bytes=ALICE))
        await book.broker.receives()
        assert user(book) == ANONYMOUS
        assert book.connection.info.authenticating
        await book.broker.sends(reply(AUTHENTICATE, version, 2))
        await book.client.receives()
        assert user(book) == "alice"
        assert not book.connection.info.authenticating
        await beat(book)
    assert charges.requests == [
        (HEARTBEAT, ANONYMOUS, False),
        (HANDSHAKE, ANONYMOUS, False),  # the broker has answered before, so this one needs no login
        (AUTHENTICATE, ANONYMOUS, True),
        (HEARTBEAT, "alice", False),
    ]


async def test_scram_only_with_the_servers_signature(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await shake(book, "SCRAM-SHA-512")
        await exchange(book, b"n,,n=alice,r=x", b"r=xy,s=c2FsdA==,i=4096")
        assert user(book) == ANONYMOUS
        await exchange(book, b"c=biws,r=xy,p=cHJvb2Y=", b"v=c2lnbmF0dXJl")
        assert user(book) == "alice"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI"])
async def test_a_refused_token_adopts_nobody(mechanism: str, autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await shake(book, mechanism)
        await exchange(book, ALICE, error=FAILED, error_message="no")
        assert user(book) == ANONYMOUS
        assert not book.connection.info.authenticating
        await exchange(book, ALICE)  # a refusal ends the authentication
        assert user(book) == ANONYMOUS


async def test_a_refused_mechanism(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await shake(book, "PLAIN", error=UNSUPPORTED_MECHANISM)
        assert not book.connection.info.authenticating
        assert book.connection.info.mechanism is None
        await exchange(book, ALICE)
        assert user(book) == ANONYMOUS


async def test_a_token_without_a_handshake_is_nobodys(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await exchange(book, ALICE)
        assert user(book) == ANONYMOUS


async def test_in_single_bytes(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await book.client.sends(request(HANDSHAKE, 1, 1, mechanism="PLAIN"))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        pieces = [
            (book.broker, reply(HANDSHAKE, 1, 1), book.client),
            (book.client, request(AUTHENTICATE, 2, 2, auth_bytes=ALICE), book.broker),
            (book.broker, reply(AUTHENTICATE, 2, 2), book.client),
        ]
        for speaker, frame, listener in pieces:
            for byte in frame[:-1]:
                await speaker.sends(bytes([byte]))
                await trio.testing.wait_all_tasks_blocked()
            assert user(book) == ANONYMOUS
            await speaker.sends(frame[-1:])
            assert await listener.receives() == frame
        assert user(book) == "alice"


# --- several tokens at once ---


async def test_who_sends_two_tokens_at_once_is_whom_the_broker_accepts(autojump_clock: MockClock) -> None:
    """The second is forwarded once the first is answered. A broker that has accepted it answers with an error."""
    async with open_book(plugins=plugins()) as book:
        await shake(book, "PLAIN")
        await book.client.sends(*(request(AUTHENTICATE, 2, n, auth_bytes=t) for n, t in ((2, ALICE), (3, BOB))))
        for number, error in ((2, 0), (3, ILLEGAL_STATE)):
            await book.broker.receives()
            await trio.testing.wait_all_tasks_blocked()
            await book.broker.sends(reply(AUTHENTICATE, 2, number, error_code=error))
            await book.client.receives()
        assert user(book) == "alice"


async def test_a_second_handshake_does_not_hide_who_was_accepted(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await book.client.sends(
            request(HANDSHAKE, 1, 1, mechanism="PLAIN"),
            request(AUTHENTICATE, 2, 2, auth_bytes=ALICE),
            request(HANDSHAKE, 1, 3, mechanism="PLAIN"),
            request(AUTHENTICATE, 2, 4, auth_bytes=BOB),
        )
        await book.upstream.wait_for_dial(1)
        await book.broker.sends(reply(HANDSHAKE, 1, 1), reply(AUTHENTICATE, 2, 2))
        await book.client.receives()
        await book.client.receives()
        for _ in range(4):
            await book.broker.receives()
        await book.broker.sends(
            reply(HANDSHAKE, 1, 3, error_code=ILLEGAL_STATE), reply(AUTHENTICATE, 2, 4, error_code=ILLEGAL_STATE)
        )
        await book.client.receives()
        await book.client.receives()
        assert user(book) == "alice"
        assert not book.connection.info.authenticating


# --- re-authentication (KIP-368) ---


async def test_a_login_that_is_begun_again_does_not_prolong_the_session(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE, session_lifetime_ms=LIFETIME_MS)
        assert book.connection.authentication is not None
        ends_s = book.connection.authentication.session_end_s
        await trio.sleep(REPEATED_AFTER_S)
        await shake(book, "PLAIN")
        await exchange(book, b"the first of several tokens", session_lifetime_ms=0)
        assert book.connection.authentication.session_end_s == ends_s


async def test_a_second_login_by_tokens_without_headers_is_refused(autojump_clock: MockClock) -> None:
    """A broker delays the refusal of a token, and sends none for a token without a header: what it answers meanwhile
    would be taken for the answer to the token."""
    async with open_book(plugins=plugins()) as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE, session_lifetime_ms=LIFETIME_MS)
        await trio.sleep(REPEATED_AFTER_S)
        await book.client.sends(request(HANDSHAKE, 0, 3, mechanism="PLAIN"), struct.pack(">i", len(BOB)) + BOB)
        assert await book.broker.receives() == request(HANDSHAKE, 0, 3, mechanism="PLAIN")
        await book.broker.sends(reply(HANDSHAKE, 0, 3, mechanisms=["PLAIN"]))
        await book.client.receives_the_end()
        assert user(book) == "alice"


async def test_reauthentication(autojump_clock: MockClock) -> None:
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE, session_lifetime_ms=LIFETIME_MS)
        await shake(book, "PLAIN")
        assert user(book) == "alice"
        await exchange(book, BOB, session_lifetime_ms=LIFETIME_MS)
        assert user(book) == "bob"
        assert not book.connection.info.authenticating
        await shake(book, "PLAIN", error=ILLEGAL_STATE)
        assert not book.connection.info.authenticating
        await trio.sleep(REPEATED_AFTER_S)
        await shake(book, "PLAIN")
        await exchange(book, ALICE, error=FAILED)
        assert user(book) == "bob"
    exempt = [exempt for _, _, exempt in charges.requests]
    assert exempt == [False, True, True, True, False, True, True], "the first and what follows a login too soon"


async def test_a_handshake_where_sessions_have_no_end_is_an_ordinary_request(autojump_clock: MockClock) -> None:
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE)
        await shake(book, "PLAIN", error=ILLEGAL_STATE)
        await exchange(book, BOB, error=ILLEGAL_STATE)
        assert user(book) == "alice"
    assert [(name, exempt) for _, name, exempt in charges.requests[2:]] == [("alice", False)] * 2


# --- tokens without headers ---


async def test_plain_without_headers(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await shake(book, "PLAIN", version=0)
        await book.client.sends(framed(ALICE))
        assert await book.broker.receives() == framed(ALICE)
        assert user(book) == ANONYMOUS
        await book.broker.sends(framed(b""))
        assert await book.client.receives() == framed(b"")
        assert user(book) == "alice"
        await beat(book)


async def test_scram_without_headers_and_in_single_bytes(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await shake(book, "SCRAM-SHA-256", version=0)
        for token, answer in ((b"n,,n=alice,r=x", b"r=xy,s=c2FsdA==,i=4096"), (b"c=biws,r=xy,p=cA==", b"v=cw==")):
            assert user(book) == ANONYMOUS
            for speaker, listener, message in ((book.client, book.broker, token), (book.broker, book.client, answer)):
                for byte in framed(message):
                    await speaker.sends(bytes([byte]))
                    await trio.testing.wait_all_tasks_blocked()
                assert await listener.receives() == framed(message)
        assert user(book) == "alice"
        await beat(book)


async def test_a_token_and_a_request_at_once(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        asked = (request(HANDSHAKE, 0, 1, mechanism="PLAIN"), framed(ALICE), request(HEARTBEAT, 4, 2))
        await book.client.sends(*asked)
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == asked[0]
        await trio.testing.wait_all_tasks_blocked()
        assert book.broker.receives_nothing()  # the next frame is a token only if the broker agrees
        answers = (reply(HANDSHAKE, 0, 1), framed(b""), reply(HEARTBEAT, 4, 2))
        for question, answer in zip(asked, answers, strict=True):
            if question is not asked[0]:
                assert await book.broker.receives() == question
            await book.broker.sends(answer)
            assert await book.client.receives() == answer
        assert user(book) == "alice"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "GSSAPI", "MADE-UP"])
async def test_requests_behind_a_refused_handshake_are_judged(mechanism: str, autojump_clock: MockClock) -> None:
    """A regression: such requests were forwarded unread, as if they were tokens."""
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        asked = request(HEARTBEAT, 4, 2)
        await book.client.sends(request(HANDSHAKE, 0, 1, mechanism=mechanism), asked)
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        await book.broker.sends(reply(HANDSHAKE, 0, 1, error_code=ILLEGAL_STATE))
        await book.client.receives()
        assert await book.broker.receives() == asked
    assert [api_key for api_key, *_ in charges.requests] == [HANDSHAKE, HEARTBEAT]


@pytest.mark.parametrize("size", [8, 100])
async def test_an_unknown_version_behind_a_token_is_a_request(size: int, autojump_clock: MockClock) -> None:
    """A broker that is newer than the proxy would serve this request, so it must not be taken for a token."""
    async with open_book(plugins=plugins()) as book:
        await shake(book, "GSSAPI", version=0)
        await book.client.sends(framed(b"\0\0\0\x63" + bytes(size)))  # Produce v99
        await book.client.receives_the_end()


# --- clients that the broker has not accepted ---


async def test_nothing_is_charged_before_the_broker_accepts(autojump_clock: MockClock) -> None:
    """The proxy first sends a request that a broker answers only to clients that it serves."""
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        book.forget_acceptance()
        asked = request(HEARTBEAT, 4, 2)
        await book.client.sends(request(API_VERSIONS, 0, 1), asked)
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        await book.broker.sends(reply(API_VERSIONS, 0, 1))
        await book.client.receives()
        await book.broker.receives()  # the proxy's Metadata request without topics
        assert charges.requests == []
        await book.broker.sends(reply(METADATA, 4, 2, brokers=[{"node_id": 1, "host": "kafka", "port": 9092}]))
        assert await book.broker.receives() == asked
        assert [api_key for api_key, *_ in charges.requests] == [HEARTBEAT]
        assert book.upstream.serves_anonymous
        await book.broker.sends(reply(HEARTBEAT, 4, 2))
        assert await book.client.receives() == reply(HEARTBEAT, 4, 2)


async def test_an_answer_that_names_no_broker_is_a_refusal(autojump_clock: MockClock) -> None:
    """As a broker answers in the middle of a login, before it closes the connection."""
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        book.forget_acceptance()
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        await book.broker.sends(reply(METADATA, 4, 2))
        await book.client.receives_the_end()
    assert charges.requests == []
    assert not book.upstream.serves_anonymous


async def test_a_request_before_the_log_in_ends_with_its_connection(autojump_clock: MockClock) -> None:
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        book.forget_acceptance()
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        book.broker.socket.close()
        await book.client.receives_the_end()
    assert charges.requests == []
    assert not book.upstream.serves_anonymous


async def test_who_has_logged_in_is_accepted_without_a_question(autojump_clock: MockClock) -> None:
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        book.forget_acceptance()
        await shake(book, "PLAIN")
        await exchange(book, ALICE)
        await beat(book)
        assert charges.requests == [(HEARTBEAT, "alice", False)]
        assert not book.upstream.serves_anonymous


async def test_after_a_refused_mechanism_requests_are_requests(autojump_clock: MockClock) -> None:
    """Kafka closes the connection in this case; another broker may not."""
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        await shake(book, "PLAIN", version=0, error=UNSUPPORTED_MECHANISM)
        await beat(book)
        await shake(book, "PLAIN", version=0)
        await book.round_trip(framed(ALICE), framed(b""))
        assert user(book) == "alice"
    assert [api_key for api_key, *_ in charges.requests] == [HANDSHAKE, HEARTBEAT, HANDSHAKE]


# --- without a connection ---


def test_a_client_cannot_hide_its_name_behind_unanswered_tokens() -> None:
    authentication = Authentication(
        Connection(connection_id=1, peer=Address(host="h", port=1)),
        HookCalls(new_plugin_manager()),
        lambda: None,
        lambda *_: None,
        lambda: None,
        lambda _: None,
        100,
        lambda: 0.0,
    )
    authentication.handshake("X", 0, 0.0)(memoryview(encode("SaslHandshakeResponse", 0, {})))
    watch = authentication.token(bytes(50))
    assert watch is not None
    authentication.token(bytes(50))
    with pytest.raises(MalformedFrame, match=r"tokens of 101 bytes wait .* limits.max_handshake_bytes = 100"):
        authentication.token(b"1")
