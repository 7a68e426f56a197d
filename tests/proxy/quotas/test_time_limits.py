"""Following a store: its answers come in time, or an error does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import pytest
import trio

from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.follower import StoreFollower
from headrace.proxy.quotas.store import Author, Snapshot, StoreTimeoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

    from headrace.proxy.quotas.store import Alteration, Change, ImportState

AUTHOR = Author(principal="alice", address="192.0.2.1")
TIMEOUT_S, STORE_TIMEOUT_S = 10.0, 9.0


class StoreWithoutAnswer:
    """A store that is opened, and does not answer any more."""

    async def open(self) -> Snapshot:
        return Snapshot(sequence=0, quotas={})

    async def changes_since(self, _sequence: int) -> Sequence[Change] | None:
        return await self._time_out()

    async def alter(self, _alterations: Sequence[Alteration], _author: Author) -> Sequence[Change]:
        return await self._time_out()

    async def snapshot(self) -> Snapshot:
        return await self._time_out()

    async def audit(self, *, limit: int, before: int | None = None) -> Sequence[Change]:
        return await self._time_out()

    async def import_state(self) -> ImportState:
        return await self._time_out()

    async def set_import_state(self, _state: ImportState) -> None:
        await self._time_out()

    async def close(self) -> None:
        pass

    async def _time_out(self) -> Never:
        await trio.sleep(STORE_TIMEOUT_S)
        raise StoreTimeoutError("the disk does not answer")


async def error_of(follower: StoreFollower) -> tuple[str, float]:
    """The error of a question, and the seconds until it came."""
    start = trio.current_time()
    with pytest.raises(StoreTimeoutError) as caught:
        await follower.catch_up()
    return str(caught.value), trio.current_time() - start


async def test_the_stores_error_names_the_cause_and_no_answer_comes_later_than_the_timeout(
    autojump_clock: MockClock,
) -> None:
    follower = StoreFollower(StoreWithoutAnswer(), QuotaDefinitions(lambda *_: None, lambda: None), TIMEOUT_S)
    await follower.open()
    errors: list[tuple[str, float]] = []

    async def ask() -> None:
        errors.append(await error_of(follower))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
    expected = "the store of quotas did not answer within 10 s; see client_quotas.timeout"
    assert errors == [("the disk does not answer", STORE_TIMEOUT_S), (expected, TIMEOUT_S)]


async def test_an_alteration_has_one_deadline_for_all_its_questions(autojump_clock: MockClock) -> None:
    follower = StoreFollower(StoreWithoutAnswer(), QuotaDefinitions(lambda *_: None, lambda: None), TIMEOUT_S)
    await follower.open()
    deadline = follower.deadline()
    await trio.sleep(4)
    with pytest.raises(StoreTimeoutError):
        await follower.alter([], AUTHOR, deadline)
    assert trio.current_time() == deadline
