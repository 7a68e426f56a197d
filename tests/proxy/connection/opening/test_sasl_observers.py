"""Plugins that observe authentications: principals that cannot be observed, observers that fail, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.plugins.sasl_identity.observers import UnseenIdentity
from headrace.proxy.connection.state.shared_state import Limits
from headrace.quota_callbacks.entities import ANONYMOUS
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from headrace.quota_callbacks.verdicts import Refuse
from tests.proxy.playbook import framed, open_book, reply, request
from tests.proxy.sasl_script import (
    ALICE,
    API_VERSIONS,
    AUTHENTICATE,
    BOB,
    FAILED,
    HANDSHAKE,
    HEARTBEAT,
    Charges,
    beat,
    exchange,
    plugins,
    shake,
    user,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from headrace.quota_callbacks.identities import AuthenticationObserver
    from headrace.quota_callbacks.requests import Connection, Request


class Stranger:
    """A plugin that observes a mechanism with an observer of the test."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, observe: Callable[[str], Any]) -> None:
        self.observe = observe

    @hookimpl
    def authentication_started(self, connection: Connection, mechanism: str) -> AuthenticationObserver | None:
        observer: AuthenticationObserver | None = self.observe(mechanism)
        return observer


class FakeObserver:
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


# --- principals that cannot be observed ---


async def test_who_is_served_has_been_accepted(autojump_clock: MockClock) -> None:
    stranger = Stranger(lambda _: UnseenIdentity("somebody", pytest.fail))
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


async def test_gssapi_without_headers_ends_without_an_answer(autojump_clock: MockClock) -> None:
    """The broker does not answer the last token, and the client continues with ordinary requests."""
    charges = Charges()
    stranger = Stranger(lambda _: UnseenIdentity("kerberos", pytest.fail, ends_empty=True))
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
    says = FakeObserver("Alice Liddell")
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
    async with open_book(plugins=plugins(stranger=Stranger(lambda _: FakeObserver(wrong)))) as book:
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
