"""The client's principal: scripts of handshakes, tokens and answers, and the user that requests are charged to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.plugins.sasl_identity.observers import UnseenIdentity
from headrace.proxy.connection.state.authentication import REPEATED_AFTER_S, Authentication
from headrace.proxy.connection.state.shared_state import Limits
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager
from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.entities import ANONYMOUS
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from headrace.quota_callbacks.requests import Address, Connection
from headrace.quota_callbacks.verdicts import Refuse
from tests.proxy.playbook import Book, framed, open_book, reply, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from headrace.quota_callbacks.identities import AuthenticationObserver
    from headrace.quota_callbacks.requests import Request

METADATA = 3
HEARTBEAT, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 12, 17, 18, 36
FAILED, ILLEGAL_STATE, UNSUPPORTED_MECHANISM = 58, 34, 33
ALICE = b"\0alice\0correct-horse"
BOB = b"\0bob\0battery-staple"
LIFETIME_MS = 60_000


class Charges:
    """Records the user that each request is charged to, and whether it is part of an authentication."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.requests: list[tuple[int, str, bool]] = []
        self.replies: list[tuple[int, str]] = []
        self.completed: list[Request] = []

    @hookimpl
    def request_received(self, request: Request) -> None:
        connection = request.connection
        self.requests.append((request.api_key, connection.user, connection.authenticating))

    @hookimpl
    def response_received(self, request: Request) -> None:
        self.replies.append((request.api_key, request.connection.user))

    @hookimpl
    def request_completed(self, request: Request) -> None:
        self.completed.append(request)


class Stranger:
    """A plugin that observes a mechanism with an observer of the test."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, observe: Callable[[str], Any]) -> None:
        self.observe = observe

    @hookimpl
    def authentication_started(self, connection: Connection, mechanism: str) -> AuthenticationObserver | None:
        observer: AuthenticationObserver | None = self.observe(mechanism)
        return observer


class Says:
    """An observer that returns the principal it was created with, or raises it."""

    def __init__(self, principal: object) -> None:
        self.found = principal
        self.shown: list[tuple[bytes, bytes]] = []

    @property
    def principal(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found if self.shown else None

    def exchanged(self, client_token: bytes, broker_token: bytes) -> None:
        self.shown.append((client_token, broker_token))

    def served(self) -> None: ...


def plugins(charges: Charges | None = None, **more: Any) -> dict[str, Any]:
    return {"sasl_identity": SaslIdentity(), "charges": charges or Charges(), **more}


def user(book: Book) -> str:
    return book.connection.info.user


async def shake(book: Book, mechanism: str, *, version: int = 1, error: int = 0, number: int = 1) -> None:
    answer = reply(HANDSHAKE, version, number, error_code=error, mechanisms=[mechanism])
    asked = request(HANDSHAKE, version, number, mechanism=mechanism)
    assert await book.round_trip(asked, answer) == answer


async def exchange(
    book: Book, token: bytes, answer: bytes = b"", *, version: int = 2, error: int = 0, **fields: Any
) -> None:
    """Send a SaslAuthenticate and its answer, and check that the client gets that answer."""
    asked = request(AUTHENTICATE, version, 7, auth_bytes=token)
    answered = reply(AUTHENTICATE, version, 7, error_code=error, auth_bytes=answer, **fields)
    assert await book.round_trip(asked, answered) == answered


async def beat(book: Book, number: int = 9) -> None:
    answer = reply(HEARTBEAT, 4, number)
    assert await book.round_trip(request(HEARTBEAT, 4, number), answer) == answer


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


async def test_gssapi_without_headers_ends_without_an_answer(autojump_clock: MockClock) -> None:
    """The broker does not answer the last token, and the client continues with ordinary requests."""
    charges = Charges()
    stranger = Stranger(lambda _: UnseenIdentity("kerberos", ends_empty=True))
    async with open_book(plugins=plugins(charges, stranger=stranger)) as book:
        await shake(book, "GSSAPI", version=0)
        assert await book.round_trip(framed(b"\x60ticket"), framed(b"\x60mutual")) == framed(b"\x60mutual")
        assert await book.round_trip(framed(b""), framed(b"\x05wrapped")) == framed(b"\x05wrapped")
        await book.client.sends(framed(b"\x05last"))
        assert await book.broker.receives() == framed(b"\x05last")
        assert user(book) == ANONYMOUS
        await beat(book)
        assert user(book) == "kerberos"
        await beat(book)
        assert not len(book.connection.in_flight)
    assert charges.requests[1:] == [(HEARTBEAT, ANONYMOUS, True), (HEARTBEAT, "kerberos", False)]
    assert charges.replies[1:] == [(HEARTBEAT, "kerberos"), (HEARTBEAT, "kerberos")]


# --- principals that cannot be observed ---


async def test_who_is_served_has_been_accepted(autojump_clock: MockClock) -> None:
    stranger = Stranger(lambda _: UnseenIdentity("somebody"))
    async with open_book(plugins=plugins(stranger=stranger)) as book:
        await book.client.sends(request(HEARTBEAT, 4, 1), request(HANDSHAKE, 1, 2, mechanism="MADE-UP"))
        await book.upstream.wait_for_dial(1)
        await book.broker.sends(reply(HEARTBEAT, 4, 1))  # this answers a request before the handshake
        await book.client.receives()
        assert user(book) == ANONYMOUS
        await book.broker.sends(reply(HANDSHAKE, 1, 2))
        await book.client.receives()
        await book.broker.receives()
        await book.broker.receives()
        await exchange(book, b"token", b"challenge")
        answer = reply(API_VERSIONS, 0, 3)  # served without authentication
        await book.round_trip(request(API_VERSIONS, 0, 3), answer)
        assert user(book) == ANONYMOUS
        assert book.connection.info.authenticating
        await beat(book)
        assert user(book) == "somebody"
        assert not book.connection.info.authenticating


async def test_without_a_name_and_a_fallback_it_stays_anonymous(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins()) as book:
        await shake(book, "GSSAPI")
        await exchange(book, b"\x60ticket", b"")
        await beat(book)
        assert user(book) == ANONYMOUS
        assert not book.connection.info.authenticating


@pytest.mark.parametrize("version", [0, 1])
async def test_a_token_beyond_the_limit_ends_the_connection(version: int, autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins(), limits=Limits(max_handshake_bytes=200)) as book:
        await shake(book, "PLAIN", version=version)
        token = ALICE + bytes(300)
        await book.client.sends(request(AUTHENTICATE, 1, 2, auth_bytes=token) if version else framed(token))
        await book.client.receives_the_end()
        assert book.connection.reason is not None
        assert "is longer than limits.max_handshake_bytes = 200" in book.connection.reason
        assert book.broker.receives_nothing()


# --- plugins ---


async def test_a_strangers_observer_wins_and_sees_the_pairs(autojump_clock: MockClock) -> None:
    says = Says("Alice Liddell")
    stranger = Stranger(lambda mechanism: says if mechanism == "PLAIN" else None)
    async with open_book(plugins={"stranger": stranger, "sasl_identity": SaslIdentity()}) as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE, b"welcome")
        assert user(book) == "Alice Liddell"
        assert says.shown == [(ALICE, b"welcome")]


async def test_a_mechanism_that_a_stranger_leaves_to_others(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins(stranger=Stranger(lambda _: None))) as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE)
        assert user(book) == "alice"


async def test_without_a_source_of_identities_everybody_is_anonymous(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE)
        await beat(book)
        assert user(book) == ANONYMOUS
        assert not book.connection.info.authenticating


@pytest.mark.parametrize("wrong", [ValueError("oh no"), "", 5, "x" * (MAX_PRINCIPAL_CHARACTERS + 1), object()])
async def test_an_observer_that_fails_is_counted_and_names_nobody(wrong: object, autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins(stranger=Stranger(lambda _: Says(wrong)))) as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE)
        await beat(book)
        assert user(book) == ANONYMOUS
        assert book.shared.hooks.failures == {"stranger": 1}


async def test_a_plugin_that_fails_leaves_the_mechanism_to_others(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins(stranger=Stranger(lambda _: 1 / 0))) as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE)
        assert user(book) == "alice"
        assert book.shared.hooks.failures == {"stranger": 1}


class Gatekeeper:
    headrace_hooks = HOOK_VERSION

    def __init__(self, api_key: int) -> None:
        self.api_key = api_key

    @hookimpl
    def request_received(self, request: Request) -> Refuse | None:
        return Refuse(error_code=FAILED) if request.api_key == self.api_key else None


async def test_a_refused_handshake_has_not_begun(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins(gate=Gatekeeper(HANDSHAKE))) as book:
        await book.client.sends(request(HANDSHAKE, 0, 1, mechanism="PLAIN"))
        await book.client.receives()
        assert not book.connection.info.authenticating
        await beat(book)
        await exchange(book, ALICE)
        assert user(book) == ANONYMOUS


async def test_a_token_that_the_proxy_refuses_names_nobody(autojump_clock: MockClock) -> None:
    async with open_book(plugins=plugins(gate=Gatekeeper(AUTHENTICATE))) as book:
        await shake(book, "PLAIN")
        await book.client.sends(request(AUTHENTICATE, 2, 2, auth_bytes=ALICE))
        await book.client.receives()
        assert user(book) == ANONYMOUS


async def test_requests_that_are_kept_keep_no_secret(autojump_clock: MockClock) -> None:
    charges = Charges()
    async with open_book(plugins=plugins(charges)) as book:
        await shake(book, "PLAIN")
        await exchange(book, ALICE)
        await book.client.sends(
            request(HANDSHAKE, 1, 1, mechanism="PLAIN"), request(AUTHENTICATE, 2, 2, auth_bytes=BOB)
        )
        await book.broker.receives()
        await book.broker.receives()
        book.broker.socket.close()
        await book.client.receives_the_end()
        await trio.testing.wait_all_tasks_blocked()
        assert len(charges.completed) == 4
        for kept in charges.completed:
            assert kept.body is None
            assert kept.reply is kept.layout.action  # type: ignore[attr-defined]


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
