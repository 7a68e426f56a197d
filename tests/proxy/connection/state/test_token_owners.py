"""The owners of delegation tokens: what is asked of brokers, how often, what is remembered and how long one waits."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs

from headrace.proxy.connection.state import token_owners
from headrace.proxy.connection.state.token_owners import (
    ATTEMPTS,
    INTERVAL_S,
    LONGEST_INTERVAL_S,
    PAUSE_RATIO,
    SHORTEST_S,
    UNKNOWN_S,
    LookupFailed,
    TokenOwners,
)
from headrace.proxy.kafka_client.delegation_tokens import DelegationToken
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from trio.testing import MockClock

TIMEOUT_S = 10.0
LIFETIME_S = 3600.0
NOT_VISIBLE = "no broker shows the token"


def token(owner: str, lifetime_s: float = LIFETIME_S) -> DelegationToken:
    """A token that expires after a time, by a clock that shows 0 at the beginning."""
    return DelegationToken(owner=owner, expires_ms=round((trio.current_time() + lifetime_s) * 1000))


@dataclass(slots=True, kw_only=True)
class Brokers:
    """Answers of brokers: ``tokens``, or ``failure``, after some seconds."""

    tokens: dict[str, DelegationToken] = field(default_factory=dict)
    failure: str | None = None
    error: Exception | None = None
    delay_s: float = 0.0
    asked_s: list[float] = field(default_factory=list)

    async def ask(self, timeout_s: float) -> dict[str, DelegationToken]:
        assert timeout_s == TIMEOUT_S
        self.asked_s.append(trio.current_time())
        await trio.sleep(self.delay_s)
        if self.failure is not None:
            raise LookupFailed(self.failure, "failure")
        if self.error is not None:
            raise self.error
        return self.tokens


@asynccontextmanager
async def lookups(brokers: Brokers) -> AsyncIterator[TokenOwners]:
    owners = TokenOwners(
        brokers.ask,
        setting="upstream",
        timeout_s=lambda: TIMEOUT_S,
        not_visible=NOT_VISIBLE,
        wall_ms=lambda: round(trio.current_time() * 1000),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owners.run)
        yield owners
        nursery.cancel_scope.cancel()


async def find_all(owners: TokenOwners, token_ids: Iterable[str]) -> dict[str, str]:
    """Return the owner of each token, or why it is not known; all are looked up at once."""
    found = {}

    async def find(token_id: str) -> None:
        try:
            found[token_id] = await owners.find(token_id)
        except LookupFailed as failed:
            found[token_id] = str(failed)

    async with trio.open_nursery() as nursery:
        for each in token_ids:
            nursery.start_soon(find, each)
    return found


async def test_one_request_is_for_all_who_wait_and_for_all_tokens(autojump_clock: MockClock) -> None:
    brokers = Brokers(tokens={str(number): token(f"user-{number}") for number in range(5)}, delay_s=1.0)
    async with lookups(brokers) as owners:
        assert owners.known("1") is None
        assert await find_all(owners, "123") == {"1": "user-1", "2": "user-2", "3": "user-3"}
        assert owners.known("4") == await owners.find("4") == "user-4"
        assert len(brokers.asked_s) == 1


async def test_who_comes_during_a_request_has_the_next_one(autojump_clock: MockClock) -> None:
    """The answer may be older than the token."""
    brokers = Brokers(tokens={"a": token("alice")}, delay_s=1.0)
    async with lookups(brokers) as owners, trio.open_nursery() as nursery:
        nursery.start_soon(owners.find, "a")
        await trio.sleep(0.5)
        brokers.tokens = {"a": token("alice"), "b": token("bob")}
        assert await owners.find("b") == "bob"
        assert len(brokers.asked_s) == 2
        assert brokers.asked_s[1] - brokers.asked_s[0] == pytest.approx(1.0 + PAUSE_RATIO * 1.0, abs=0.01)


async def test_a_token_that_is_deleted_after_it_was_wanted_has_an_owner(autojump_clock: MockClock) -> None:
    """The client need not have sent a request before."""
    brokers = Brokers(tokens={"a": token("alice")}, delay_s=1.0)
    async with lookups(brokers) as owners:
        owners.want("a")
        await trio.sleep(0.5)
        assert await owners.find("a") == "alice", "no further request is needed"
        brokers.tokens = {}
        owners.want("a")
        await trio.sleep(LONGEST_INTERVAL_S)
        assert await owners.find("a") == "alice"
        assert len(brokers.asked_s) == 1


async def test_what_was_not_found_a_moment_ago_is_not_wanted_again(autojump_clock: MockClock) -> None:
    brokers = Brokers()
    async with lookups(brokers) as owners:
        await find_all(owners, "a")
        asked = len(brokers.asked_s)
        owners.want("a")
        await trio.sleep(UNKNOWN_S - 1)
        assert len(brokers.asked_s) == asked


async def test_what_is_wanted_takes_bounded_memory(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that log in and hang up leave the ids of their tokens until the next request."""
    monkeypatch.setattr(token_owners, "MAX_WANTED", 3)
    brokers = Brokers(tokens={"9": token("alice")})
    async with lookups(brokers) as owners:
        for number in range(10):
            owners.want(str(number))
        assert len(owners._next.tokens) == 3
        assert await owners.find("9") == "alice"


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, INTERVAL_S), (1.0, PAUSE_RATIO), (5.0, LONGEST_INTERVAL_S)])
async def test_answers_that_take_long_are_asked_for_more_rarely(
    autojump_clock: MockClock, took_s: float, pause_s: float
) -> None:
    """And clients wait for the next one all the same."""
    brokers = Brokers(tokens={"a": token("alice")}, delay_s=took_s)
    async with lookups(brokers) as owners:
        assert await owners.find("a") == "alice"
        brokers.tokens["new"] = token("bob")
        assert await owners.find("new") == "bob"
    assert brokers.asked_s[1] - brokers.asked_s[0] == pytest.approx(took_s + pause_s, abs=0.01)


async def test_clients_do_not_wait_until_all_tokens_are_remembered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_owners, "SLICE", 1)
    brokers = Brokers(tokens={str(number): token("alice") for number in range(100)})
    async with lookups(brokers) as owners:
        assert await owners.find("99") == "alice"
        assert len(owners) < 100
        await trio.sleep(1)
        assert len(owners) == 100


async def test_an_owner_is_forgotten_when_its_token_has_expired(autojump_clock: MockClock) -> None:
    brokers = Brokers(tokens={"a": token("alice"), "short": token("bob", -1)})
    async with lookups(brokers) as owners:
        await find_all(owners, ["a", "short"])
        await trio.sleep(SHORTEST_S - 1)
        assert owners.known("short") == "bob", "the clocks may differ"
        await trio.sleep(2)
        assert owners.known("short") is None
        await trio.sleep(LIFETIME_S - SHORTEST_S - 2)
        assert owners.known("a") == "alice"
        await trio.sleep(2)
        assert owners.known("a") is None


async def test_a_token_that_appears_late_is_asked_for_again(autojump_clock: MockClock) -> None:
    brokers = Brokers()
    async with lookups(brokers) as owners, trio.open_nursery() as nursery:
        nursery.start_soon(owners.find, "a")
        await trio.sleep(INTERVAL_S / 2)
        brokers.tokens = {"a": token("alice")}
        assert await owners.find("a") == "alice"
        assert len(brokers.asked_s) == 2


async def test_a_token_that_is_not_visible_is_not_asked_for_at_once_again(autojump_clock: MockClock) -> None:
    brokers = Brokers()
    async with lookups(brokers) as owners:
        for times in (1, 2):
            for _ in range(3):  # only the first one waits
                assert await find_all(owners, ["a"]) == {"a": NOT_VISIBLE}
            assert len(brokers.asked_s) == ATTEMPTS * times
            await trio.sleep(UNKNOWN_S)
        brokers.tokens = {"b": token("bob")}
        assert await owners.find("b") == "bob", "other tokens are asked for meanwhile"


async def test_after_a_failure_nobody_waits_for_a_while(autojump_clock: MockClock) -> None:
    brokers = Brokers(failure="refused", delay_s=3.0)
    async with lookups(brokers) as owners:
        began_s = trio.current_time()
        assert await find_all(owners, "ab") == {"a": "refused", "b": "refused"}
        assert await find_all(owners, "c") == {"c": "refused"}
        assert trio.current_time() - began_s == 3.0
        brokers.failure, brokers.tokens = None, {"c": token("carol")}
        await trio.sleep(UNKNOWN_S)
        assert await owners.find("c") == "carol"
        assert owners.requests == {"answered": 1, "failed": 1}
        assert owners.requests_s == 6.0


async def test_a_failure_is_for_those_who_came_meanwhile_too(autojump_clock: MockClock) -> None:
    """Otherwise they would wait for another request, which may take as long."""
    brokers = Brokers(failure="refused", delay_s=TIMEOUT_S)
    async with lookups(brokers) as owners, trio.open_nursery() as nursery:
        nursery.start_soon(find_all, owners, "a")
        await trio.sleep(1)
        assert await find_all(owners, "b") == {"b": "refused"}
        assert trio.current_time() - brokers.asked_s[0] == TIMEOUT_S
        assert len(brokers.asked_s) == 1


async def test_an_unexpected_error_ends_nothing(autojump_clock: MockClock) -> None:
    brokers = Brokers(error=KeyError("tokens"))
    async with lookups(brokers) as owners:
        with capture_logs() as logged:
            assert await find_all(owners, "a") == {"a": "internal error: KeyError"}
        assert [each["log_level"] for each in logged] == ["error"]
        brokers.error, brokers.tokens = None, {"a": token("alice")}
        await trio.sleep(UNKNOWN_S)
        assert await owners.find("a") == "alice"


async def test_each_connection_has_an_error_of_its_own(autojump_clock: MockClock) -> None:
    """One that was raised again and again would keep the frames of all that raised it."""
    brokers = Brokers(failure="refused")
    async with lookups(brokers) as owners:
        errors = []
        for _ in range(2):
            with pytest.raises(LookupFailed) as caught:
                await owners.find("a")
            errors.append(caught.value)
        assert errors[0] is not errors[1]


async def test_nobody_waits_longer_than_the_timeout(autojump_clock: MockClock) -> None:
    brokers = Brokers(delay_s=100.0)
    async with lookups(brokers) as owners:
        began_s = trio.current_time()
        found = await find_all(owners, "a")
        assert found == {"a": "no answer of a broker within upstream.connect_timeout = 10 s"}
        assert trio.current_time() - began_s == TIMEOUT_S + LONGEST_INTERVAL_S


async def test_one_who_gives_up_takes_nothing_from_others(autojump_clock: MockClock) -> None:
    brokers = Brokers(tokens={"a": token("alice")}, delay_s=1.0)
    async with lookups(brokers) as owners, trio.open_nursery() as nursery:
        nursery.start_soon(owners.find, "a")
        with trio.move_on_after(0.5):
            await owners.find("a")
        assert await owners.find("a") == "alice"


async def test_names_that_cannot_be_users_are_not_known(autojump_clock: MockClock) -> None:
    brokers = Brokers(tokens={"a": token(""), "b": token("x" * (MAX_PRINCIPAL_CHARACTERS + 1))})
    async with lookups(brokers) as owners:
        assert await find_all(owners, "ab") == {"a": NOT_VISIBLE, "b": NOT_VISIBLE}


async def test_the_memory_is_bounded(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that clients use stay, and those that nobody waits for are not added."""
    monkeypatch.setattr(token_owners, "MAX_OWNERS", 10)
    monkeypatch.setattr(token_owners, "MAX_UNKNOWN", 2)
    monkeypatch.setattr(token_owners, "SLICE", 3)
    brokers = Brokers(tokens={str(number): token(f"user-{number}") for number in range(30)})
    async with lookups(brokers) as owners:
        for number in (25, 29, 27):
            assert await owners.find(str(number)) == f"user-{number}"
            await trio.sleep(INTERVAL_S / 2)  # until the others are remembered
            assert len(owners) == 10
        assert len(brokers.asked_s) == 3
        assert [owners.known(each) for each in ("25", "29", "27")] == ["user-25", "user-29", "user-27"]
        unknown = await find_all(owners, ["x", "y", "z"])
        assert set(unknown.values()) == {NOT_VISIBLE}
        assert len(owners._unknown) == 2
