"""The hook that rewrites users: no request is charged to a name that it has not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.quota_callbacks.entities import ANONYMOUS, bounded_name
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.identities import UserSource
from tests.proxy.connection.opening.words import (
    AUTHENTICATE,
    HANDSHAKE,
    TERMINATING,
    Words,
    authenticate,
    beat,
)
from tests.proxy.playbook import open_book, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.quota_callbacks.requests import Connection, Request
    from tests.proxy.playbook import Book

SASL_AUTHENTICATION_FAILED = 58


class Rewrites:
    """Returns, or raises, what it was created with."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.asked: list[tuple[str, str, UserSource, str | None]] = []

    @hookimpl
    def rewrite_user(self, connection: Connection, user: str, source: UserSource) -> Any:
        self.asked.append((connection.user, user, source, connection.mechanism))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


class Charges:
    """Records the users that requests are charged to."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.users: set[str] = set()

    @hookimpl
    def request_received(self, request: Request) -> None:
        self.users.add(request.connection.user)


def plugins(outcome: Any) -> dict[str, Any]:
    return {"words": Words(), "identity": SaslIdentity(), "charges": Charges(), "rewrites": Rewrites(outcome)}


async def log_in_to_broker(book: Book) -> None:
    """Log in as alice to a broker that accepts it, without reading its last answer."""
    answer = reply(HANDSHAKE, 1, 1, mechanisms=["PLAIN"])
    assert await book.round_trip(request(HANDSHAKE, 1, 1, mechanism="PLAIN"), answer) == answer
    await book.client.sends(request(AUTHENTICATE, 2, 2, auth_bytes=b"\0alice\0correct-horse"))
    await book.broker.receives()
    await book.broker.sends(reply(AUTHENTICATE, 2, 2))


@pytest.mark.parametrize(
    ("outcome", "user"), [("team-a", "team-a"), (None, "alice"), ("n" * 256, bounded_name("n" * 256))]
)
async def test_a_user_whom_the_brokers_have_authenticated(
    outcome: str | None, user: str, autojump_clock: MockClock
) -> None:
    used = plugins(outcome)
    async with open_book(plugins=used) as book:
        book.forget_acceptance()
        await log_in_to_broker(book)
        await book.client.receives()
        await beat(book)
        assert book.connection.info.user == user
        assert used["charges"].users == {user}
        assert used["rewrites"].asked == [(ANONYMOUS, "alice", UserSource.BROKER, "PLAIN")]


@pytest.mark.parametrize("outcome", [ValueError("out of names"), SystemExit(), 7, "n" * 1025, ""])
async def test_nobody_is_served_whose_name_could_not_be_rewritten(outcome: Any, autojump_clock: MockClock) -> None:
    used = plugins(outcome)
    async with open_book(plugins=used) as book:
        book.forget_acceptance()
        with capture_logs() as lines:
            await log_in_to_broker(book)
            await book.client.receives_the_end()
        [line] = [each for each in lines if each["event"] == "connection closed"]
        rule = "is refused by the plugin rewrites" if outcome == "" else "the plugin rewrites failed to rewrite it"
        assert "the user alice" in line["reason"]
        assert rule in line["reason"]
        assert line["user"] == book.connection.info.user == ANONYMOUS
        assert book.shared.hooks.failures == ({} if outcome == "" else {"rewrites": 1})
        assert not used["charges"].users


async def test_a_user_whom_the_proxy_has_authenticated(autojump_clock: MockClock) -> None:
    used = plugins("team-a")
    async with open_book(plugins=used, sasl=TERMINATING) as book:
        assert (await authenticate(book, "alice"))["error_code"] == 0
        await beat(book)
        assert used["charges"].users == {"team-a"}
        assert used["rewrites"].asked == [(ANONYMOUS, "alice", UserSource.PROXY, "WORD")]


@pytest.mark.parametrize("outcome", [ValueError("out of names"), ""])
async def test_a_login_whose_user_is_not_rewritten_is_refused(outcome: Any, autojump_clock: MockClock) -> None:
    used = plugins(outcome)
    async with open_book(plugins=used, sasl=TERMINATING) as book:
        with capture_logs() as lines:
            answer = await authenticate(book, "alice")
            await book.client.receives_the_end()
        assert answer["error_code"] == SASL_AUTHENTICATION_FAILED
        [line] = [each for each in lines if each["event"] == "login refused"]
        assert line["user"] == "alice"
        assert "the plugin rewrites" in line["reason"]
        assert book.connection.info.user == ANONYMOUS
        assert book.shared.hooks.failures == ({} if outcome == "" else {"rewrites": 1})
        assert not book.upstream.brokers
