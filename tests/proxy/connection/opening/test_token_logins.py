"""Clients that authenticate to a broker by a delegation token: who they are, and what waits until that is known."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trio
from structlog.testing import capture_logs

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.proxy.connection.opening.token_logins import adopt_late_owner
from headrace.proxy.connection.state import timeouts
from headrace.proxy.connection.state.authentication import REPEATED_AFTER_S
from headrace.proxy.connection.state.token_owners import (
    ATTEMPTS,
    LONGEST_INTERVAL_S,
    UNKNOWN_S,
    LookupFailed,
    TokenOwners,
)
from headrace.proxy.kafka_client.delegation_tokens import DelegationToken
from headrace.proxy.network.admission import Admission
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import ANONYMOUS
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from tests.proxy.connection.opening.words import beat
from tests.proxy.network.test_connection_rates import UNLIMITED
from tests.proxy.playbook import Book, framed, open_book, reply, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from headrace.quota_callbacks.identities import UserSource
    from headrace.quota_callbacks.requests import Connection, Request

API_VERSIONS, AUTHENTICATE, HANDSHAKE = ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_HANDSHAKE
HEARTBEAT, METADATA = ApiKey.HEARTBEAT, ApiKey.METADATA
SCRAM = "SCRAM-SHA-256"
FALLBACK = "somebody"
FIRST = (b"n,,n=token-1,r=x,tokenauth=true", b"r=xy,s=z,i=4096")
LAST = (b"c=biws,r=xy,p=proof", b"v=signature")
CONNECT_TIMEOUT_S = 10.0
UNKNOWN = "the owner of a delegation token is not known"


class Charges:
    """Records the user to whom each request is charged, and rewrites users as ``names`` has it."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.users: list[tuple[int, str]] = []
        self.names: dict[str, str] = {}

    @hookimpl
    def request_received(self, request: Request) -> None:
        self.users.append((request.api_key, request.connection.user))

    @hookimpl
    def rewrite_user(self, connection: Connection, user: str, source: UserSource) -> str | None:
        return self.names.get(user)


class Scene:
    """A book at whose broker clients have to authenticate, and the answers to lookups."""

    def __init__(self, book: Book, charges: Charges) -> None:
        self.book = book
        self.charges = charges
        self.tokens = {"token-1": DelegationToken(owner="alice", expires_ms=0)}
        self.failure: str | None = None
        self.asked = 0
        self.answer = trio.Event()
        self.answer.set()

    async def ask(self, _timeout_s: float) -> dict[str, DelegationToken]:
        self.asked += 1
        await self.answer.wait()
        if self.failure is not None:
            raise LookupFailed(self.failure, "failure")
        return self.tokens

    @property
    def user(self) -> str:
        return self.book.connection.info.user

    async def shake(self, version: int = 1, mechanism: str = SCRAM) -> None:
        answer = reply(HANDSHAKE, version, 1, mechanisms=[mechanism])
        assert await self.book.round_trip(request(HANDSHAKE, version, 1, mechanism=mechanism), answer) == answer

    async def send_token(self, token: bytes, answer: bytes, **fields: Any) -> None:
        asked = request(AUTHENTICATE, 2, 2, auth_bytes=token)
        answered = reply(AUTHENTICATE, 2, 2, auth_bytes=answer, **fields)
        assert await self.book.round_trip(asked, answered) == answered

    async def log_in(self, **fields: Any) -> None:
        """Authenticate by the token; ``fields`` are those of the broker's last answer."""
        await self.shake()
        await self.send_token(*FIRST)
        await self.send_token(*LAST, **fields)


@asynccontextmanager
async def open_scene(
    *, looks_up: bool = True, fallback: str | None = FALLBACK, refuses_unknown: bool = False
) -> AsyncIterator[Scene]:
    charges = Charges()
    options = {"sasl_identity": {} if fallback is None else {"fallback_user": fallback}}
    async with open_book(plugins={"sasl_identity": SaslIdentity(), "charges": charges}, options=options) as book:
        book.forget_acceptance()
        scene = Scene(book, charges)
        async with trio.open_nursery() as nursery:
            if looks_up:
                owners = TokenOwners(
                    scene.ask,
                    setting="upstream",
                    timeout_s=lambda: CONNECT_TIMEOUT_S,
                    not_visible="not visible",
                    refuses_unknown=refuses_unknown,
                )
                book.shared.token_owners = {"upstream": owners}
                nursery.start_soon(owners.run)
            yield scene
            nursery.cancel_scope.cancel()


def full_for_alice(scene: Scene, *, max_connection_rate_per_user: int = 0) -> Admission:
    """The limits on connections, with one connection of alice, which is the most."""
    limits = replace(UNLIMITED, max_connections_per_user=1, max_connection_rate_per_user=max_connection_rate_per_user)
    admission = Admission(limits, scene.book.shared.counters, Window())
    assert admission.admit_user("alice", scene.book.shared.clock()) is None
    return admission


async def test_the_owner_is_the_user_before_anything_is_charged(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        scene.answer = trio.Event()
        await scene.log_in()
        await scene.book.client.sends(request(HEARTBEAT, 4, 9), request(HEARTBEAT, 4, 10))
        await trio.testing.wait_all_tasks_blocked()
        assert scene.asked == 1
        assert scene.book.broker.receives_nothing()
        assert scene.charges.users == []
        scene.answer.set()
        assert await scene.book.broker.receives() == request(HEARTBEAT, 4, 9)
        assert await scene.book.broker.receives() == request(HEARTBEAT, 4, 10)
        assert scene.charges.users == [(HEARTBEAT, "alice")] * 2
        assert scene.book.shared.counters.lookups == 0, "the broker need not be asked whether it serves the client"


async def test_a_claimed_token_costs_no_lookup(autojump_clock: MockClock) -> None:
    """Nor does one that the broker refuses."""
    async with open_scene() as scene:
        await scene.shake()
        await scene.send_token(*FIRST)
        assert scene.book.connection.token_login is None
        await scene.send_token(LAST[0], b"", error_code=58, error_message="no")
        await trio.testing.wait_all_tasks_blocked()
        assert scene.asked == 0
        assert scene.user == ANONYMOUS


async def test_the_request_for_versions_that_follows_a_login_waits_too(autojump_clock: MockClock) -> None:
    """Java's clients send it at once; so the user is known although no other request follows for a while."""
    async with open_scene() as scene:
        await scene.log_in()
        answer = reply(API_VERSIONS, 3, 3)
        assert len(await scene.book.round_trip(request(API_VERSIONS, 3, 3), answer)) > 0
        assert scene.user == "alice"


async def test_an_owner_that_is_known_is_adopted_before_the_answer(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        await scene.book.shared.token_owners["upstream"].find("token-1")
        await scene.shake()
        await scene.send_token(*FIRST)
        assert scene.user == ANONYMOUS
        await scene.send_token(*LAST)
        assert scene.user == "alice"
        await beat(scene.book)
        assert scene.asked == 1


async def test_tokens_without_headers(autojump_clock: MockClock) -> None:
    """As clients did before Kafka 1.0."""
    async with open_scene() as scene:
        book = scene.book
        await scene.shake(0)
        for token, answer in (FIRST, LAST):
            assert await book.round_trip(framed(token), framed(answer)) == framed(answer)
        await beat(scene.book)
        assert scene.charges.users == [(HEARTBEAT, "alice")]


@pytest.mark.parametrize(("fallback", "counted_as"), [(FALLBACK, FALLBACK), (None, ANONYMOUS)])
async def test_a_token_that_no_broker_shows_counts_as_the_fallback_user(
    autojump_clock: MockClock, fallback: str | None, counted_as: str
) -> None:
    async with open_scene(fallback=fallback) as scene:
        scene.tokens = {}
        with capture_logs() as logged:
            await scene.log_in()
            await beat(scene.book)
        assert scene.charges.users == [(HEARTBEAT, counted_as)]
        assert scene.asked == ATTEMPTS
        [line] = [each for each in logged if each["event"] == UNKNOWN]
        assert (line["log_level"], line["reason"], line["counted_as"]) == ("warning", "not visible", counted_as)
        assert scene.book.shared.counters.token_owners_unknown == 1


async def test_a_slow_broker_delays_a_client_for_the_timeout(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        scene.answer = trio.Event()
        began_s = trio.current_time()
        with capture_logs() as logged:
            await scene.log_in()
            await beat(scene.book)
        assert trio.current_time() - began_s == pytest.approx(CONNECT_TIMEOUT_S + LONGEST_INTERVAL_S)
        assert scene.charges.users == [(HEARTBEAT, FALLBACK)]
        reasons = [each["reason"] for each in logged if each["event"] == UNKNOWN]
        assert reasons == ["no answer of a broker within upstream.connect_timeout = 10 s"]


async def test_a_failure_is_logged_with_its_cause(autojump_clock: MockClock) -> None:
    """A warning a minute, although addresses and numbers in the reason differ."""
    async with open_scene() as scene:
        scene.failure = "cannot connect"
        with capture_logs() as logged:
            await scene.log_in()
            await beat(scene.book)
            await trio.sleep(UNKNOWN_S)
            scene.failure = "cannot connect to another broker"
            scene.book.connection.authentication = None  # as on another connection
            await scene.log_in()
            await beat(scene.book)
        lines = [(each["log_level"], each["reason"]) for each in logged if each["event"] == UNKNOWN]
        assert lines == [("warning", "cannot connect"), ("debug", "cannot connect to another broker")]


async def test_a_client_cannot_delete_its_token_before_the_broker_is_asked(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        await scene.log_in()
        await trio.testing.wait_all_tasks_blocked()
        scene.tokens = {}
        await beat(scene.book)
        assert scene.charges.users == [(HEARTBEAT, "alice")]


@pytest.mark.parametrize("failure", [None, "cannot connect"])
async def test_one_whose_owner_is_not_known_is_not_served_if_it_is_to_be_refused(
    autojump_clock: MockClock, failure: str | None
) -> None:
    async with open_scene(refuses_unknown=True) as scene:
        scene.tokens, scene.failure = {}, failure
        with capture_logs() as logged:
            await scene.log_in()
            await scene.book.client.sends(request(HEARTBEAT, 4, 9))
            await scene.book.client.receives_the_end()
        assert scene.book.broker.receives_nothing()
        assert scene.charges.users == []
        assert scene.book.connection.reason == (
            f"upstream: the owner of the client's delegation token is not known ({failure or 'not visible'}), and"
            ' upstream.owner_lookup.unknown_owner = "refuse"'
        )
        assert [each["counted_as"] for each in logged if each["event"] == UNKNOWN] == [None]
        assert scene.book.shared.counters.token_owners_unknown == 1


async def test_one_that_sends_no_request_has_its_user_all_the_same(autojump_clock: MockClock) -> None:
    """And is not ended because its login took too long."""
    async with open_scene() as scene:
        connection = scene.book.connection
        scene.answer = trio.Event()
        await scene.log_in()
        adopt_late_owner(connection)
        assert scene.user == ANONYMOUS
        late_s = trio.current_time() + connection.limits.login_timeout_s + 1
        assert timeouts._waits_for_broker(connection), "the client has done all it has to do"
        scene.answer.set()
        await trio.testing.wait_all_tasks_blocked()
        adopt_late_owner(connection)
        assert scene.user == "alice"
        timeouts.end_if_overdue(connection, late_s)
        assert connection.reason is None


async def test_one_that_sends_no_request_and_has_no_owner_is_ended(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        connection = scene.book.connection
        scene.tokens = {}
        await scene.log_in()
        timeouts.end_if_overdue(connection, trio.current_time() + connection.limits.login_timeout_s + 1)
        assert connection.reason == (
            "upstream: the client sent no request, and the owner of its token was not found, within"
            " limits.login_timeout = 60 s"
        )


async def test_the_limits_of_the_owner_apply_to_one_that_sends_no_request(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        scene.book.shared.admission = admission = full_for_alice(scene, max_connection_rate_per_user=1)
        refused, now_s = None, scene.book.shared.clock()
        while refused is None or not refused.delay_s:
            refused = admission.admit_user("alice", now_s)
        admission.end_delay("alice")
        await scene.log_in()
        await trio.testing.wait_all_tasks_blocked()
        adopt_late_owner(scene.book.connection)
        await scene.book.client.receives_the_end()
        assert "user alice: limits.max_connection_rate_per_user = 1" in str(scene.book.connection.reason)
        assert not admission._delayed_by_user, "the place of a connection whose end is delayed is free again"


async def test_without_a_lookup_the_user_is_the_fallback_user_which_is_logged_once(autojump_clock: MockClock) -> None:
    async with open_scene(looks_up=False) as scene:
        with capture_logs() as logged:
            await scene.log_in(session_lifetime_ms=60_000)
            assert scene.user == FALLBACK
            await beat(scene.book)
            for setting in ("upstream", "listeners.other.upstream"):
                scene.book.upstream.setting = setting
                scene.book.connection.authentication = None  # as on another connection
                await scene.log_in()
        lines = [each for each in logged if each["log_level"] == "warning"]
        assert [(each["event"], each["counted_as"], each["setting"]) for each in lines] == [
            ("the owners of delegation tokens are not known", FALLBACK, f"{setting}.owner_lookup")
            for setting in ("upstream", "listeners.other.upstream")
        ]


async def test_one_who_authenticates_again_stays_who_it_is(autojump_clock: MockClock) -> None:
    """The broker has checked that the principal is the same (KIP-368), whatever the token."""
    async with open_scene() as scene:
        await scene.log_in(session_lifetime_ms=60_000)
        await beat(scene.book)
        scene.tokens = {}
        await trio.sleep(REPEATED_AFTER_S)
        await scene.shake()
        await scene.send_token(FIRST[0].replace(b"token-1", b"token-2"), FIRST[1])
        await scene.send_token(*LAST, session_lifetime_ms=60_000)
        await beat(scene.book)
        assert (scene.user, scene.asked) == ("alice", 1)


async def test_one_who_authenticates_by_a_password_meanwhile_is_that_user(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        scene.tokens = {}
        await scene.log_in(session_lifetime_ms=60_000)
        await trio.sleep(REPEATED_AFTER_S)
        await scene.shake(mechanism="PLAIN")
        await scene.send_token(b"\0alice\0secret", b"")
        await beat(scene.book)
        assert scene.charges.users == [(HEARTBEAT, "alice")]


async def test_the_owner_is_rewritten_as_other_users_are(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        scene.charges.names = {"alice": "alice@example.com"}
        await scene.log_in()
        await beat(scene.book)
        assert scene.user == "alice@example.com"


async def test_an_owner_that_a_plugin_refuses_is_not_served(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        scene.charges.names = {"alice": ""}
        await scene.log_in()
        await scene.book.client.sends(request(HEARTBEAT, 4, 9))
        await scene.book.client.receives_the_end()
        assert scene.book.broker.receives_nothing()
        assert scene.charges.users == []


async def test_the_limits_of_the_owner_apply(autojump_clock: MockClock) -> None:
    async with open_scene() as scene:
        scene.book.shared.admission = full_for_alice(scene)
        await scene.log_in()
        await scene.book.client.sends(request(HEARTBEAT, 4, 9))
        await scene.book.client.receives_the_end()
        assert scene.book.connection.reason == "client: user alice: limits.max_connections_per_user = 1 is reached"
        assert scene.book.broker.receives_nothing()


async def test_one_whom_the_broker_served_before_waits_too(autojump_clock: MockClock) -> None:
    """The brokers had served anybody until the client authenticated."""
    async with open_scene() as scene:
        scene.book.upstream.serves_anonymous = True
        assert scene.book.connection.update_accepted()
        scene.book.upstream.serves_anonymous = False
        await scene.log_in()
        await beat(scene.book)
        assert scene.user == "alice"
