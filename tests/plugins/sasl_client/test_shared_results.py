"""Results that connections share: done once, kept for a time, dropped when there are too many."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.plugins.sasl_client.shared_results import SharedResults
from tests.clients.fronts import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable


def results(*, most: int = 8) -> SharedResults[str, str]:
    return SharedResults(most=most, kept_s=10.0, failure=ValueError, failure_kept_s=1.0, threads=2)


class Work:
    """Counts how often it is done."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = answers
        self.done = 0

    def __call__(self) -> str:
        answer = self.answers[min(self.done, len(self.answers) - 1)]
        self.done += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_thousand_at_once_have_it_done_once() -> None:
    shared, work, found = results(), Work("result"), []

    async def get() -> None:
        found.append(await shared.get("key", work))

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(get)
    assert found == ["result"] * 1000
    assert work.done == 1


async def test_it_is_done_again_after_its_time(autojump_clock: trio.testing.MockClock) -> None:
    shared, work = results(), Work("old", "new")
    assert await shared.get("key", work) == "old"
    await trio.sleep(9.9)
    assert await shared.get("key", work) == "old"
    await trio.sleep(0.2)
    assert await shared.get("key", work) == "new"
    assert await shared.get("other", work) == "new"
    assert work.done == 3


async def test_a_failure_is_kept_for_a_shorter_time(autojump_clock: trio.testing.MockClock) -> None:
    shared, work = results(), Work(ValueError("broken"), "mended")
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            await shared.get("key", work)
    assert work.done == 1
    await trio.sleep(1.1)
    assert await shared.get("key", work) == "mended"


async def test_other_exceptions_pass_and_are_not_kept() -> None:
    shared, work = results(), Work(KeyError("x"), "result")
    with pytest.raises(KeyError):
        await shared.get("key", work)
    assert await shared.get("key", work) == "result"


async def test_the_one_that_was_used_the_longest_time_ago_is_dropped() -> None:
    shared, works = results(most=2), {each: Work(each) for each in "abc"}
    for each in "abacab":
        assert await shared.get(each, works[each]) == each
    assert {each: work.done for each, work in works.items()} == {"a": 1, "b": 2, "c": 1}


async def test_a_cancelled_caller_leaves_the_work_to_the_next() -> None:
    shared, may_end, begun = results(), threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def blocked() -> str:
        token.run_sync_soon(begun.set)
        may_end.wait(DEADLINE_S)
        return "late"

    async def get(work: Callable[[], str], scope: trio.CancelScope) -> None:
        with scope:
            await shared.get("key", work)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(get, blocked, scope)
            await begun.wait()
            scope.cancel()
            assert await shared.get("key", Work("in time")) == "in time"
            may_end.set()
