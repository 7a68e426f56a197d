"""The thread that writes usage records: losses, their reports, and that no error ends it."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import trio

from headrace.plugins.usage_records.pending_losses import MOST_REASONS, OTHER_REASONS
from headrace.plugins.usage_records.rows import Row
from headrace.plugins.usage_records.writer_thread import to_next_second_s
from headrace.quota_callbacks.records.usage_records import LostRecord
from tests.faults.waiting import wait_until
from tests.plugins.usage_records.usage_rows import FETCH, SecondBySecond, request, seconds, writer_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headrace.plugins.usage_records.writer_thread import LineContent


class Kept:
    """A sink that keeps lines, and fails on request."""

    removed = 0

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.fails: Exception | None = None
        self.lost_after_all: list[tuple[str, LineContent]] = []
        self.contents: list[LineContent] = []
        self.accepts_loss_records = True
        self.closed = False

    def write(self, lines: list[bytes], contents: Sequence[LineContent], first: int, now_s: float) -> int:
        if self.fails is not None:
            raise self.fails
        assert json.loads(lines[0])["sequence"] == first
        self.lines += map(json.loads, lines)
        self.contents += contents
        return len(lines)

    def tick(self, now_s: float) -> list[tuple[str, LineContent]]:
        lost, self.lost_after_all = self.lost_after_all, []
        return lost

    def close(self) -> None:
        self.closed = True


FULL = OSError(errno.ENOSPC, "No space left on device")


class Writing(SecondBySecond):
    """A thread's work, a second at a time."""

    def __init__(self) -> None:
        self.kept = Kept()
        super().__init__(seconds(), self.kept)

    @property
    def recorded(self) -> list[tuple[str, int]]:
        return [(each["kind"], each["sequence"]) for each in self.kept.lines]


def test_lost_records_are_reported_as_soon_as_writing_succeeds() -> None:
    writing = Writing()
    writing.kept.fails = FULL
    writing.write(request())
    assert (writing.recorded, writing.thread.lost, writing.thread.written) == ([], 1, 0)
    writing.kept.fails = None
    writing.write(request())
    assert writing.recorded == [("usage", 0), ("lost", 1)], "what was never written has no number"
    lost = writing.kept.lines[1]
    assert (lost["records"], lost["requests"], lost["request_bytes"], lost["response_bytes"]) == (1, 1, 100, 40)
    assert lost["reason"] == "No space left on device"
    assert set(lost) == LostRecord.__required_keys__


def test_losses_of_any_duration_are_reported_in_one_mark_for_each_reason() -> None:
    writing = Writing()
    for number in range(1500):
        writing.kept.fails = FULL if number % 3 else ValueError(f"of {number % 2}")
        writing.write(request(), request(FETCH, request_bytes=10))
    writing.kept.fails = None
    writing.write()
    assert writing.recorded == [("lost", 0), ("lost", 1), ("lost", 2)]
    marks = {each["reason"]: each for each in writing.kept.lines}
    assert {reason: mark["records"] for reason, mark in marks.items()} == {
        "No space left on device": 2000,
        "ValueError: of 0": 500,
        "ValueError: of 1": 500,
    }
    assert sum(mark["request_bytes"] for mark in marks.values()) == 1500 * 110
    assert sum(mark["requests"] for mark in marks.values()) == writing.thread.lost == 3000
    assert all(mark["first_second"] <= mark["second"] for mark in marks.values())


def test_reasons_are_bounded_and_nothing_is_forgotten() -> None:
    writing = Writing()
    for number in range(2 * MOST_REASONS):
        writing.kept.fails = ValueError(str(number))
        writing.write(request())
    writing.kept.fails = None
    writing.write()
    assert len(writing.kept.lines) == MOST_REASONS + 1
    reasons = {each["reason"]: each["records"] for each in writing.kept.lines}
    assert reasons[OTHER_REASONS] == MOST_REASONS
    assert sum(reasons.values()) == 2 * MOST_REASONS


def test_a_batch_that_was_accepted_and_then_lost_is_reported_with_its_sums() -> None:
    writing = Writing()
    writing.write(request(request_bytes=70))
    writing.kept.lost_after_all = [("Local: Message timed out", writing.kept.contents[0])]
    writing.write()
    lost = writing.kept.lines[1]
    assert (lost["sequence"], lost["records"], lost["requests"], lost["request_bytes"]) == (1, 1, 1, 70)
    writing.kept.lost_after_all = [("Local: Message timed out", writing.kept.contents[1])]
    writing.write()
    again = writing.kept.lines[2]
    assert again == {**lost, "sequence": 2}, "a mark that is lost is written again"
    assert writing.thread.lost == 1


def test_a_mark_waits_until_the_one_before_was_answered() -> None:
    writing = Writing()
    writing.kept.accepts_loss_records = False
    writing.kept.lost_after_all = [("gone", Row())]
    writing.write()
    assert writing.recorded == []
    writing.kept.lost_after_all = [("gone", Row())]
    writing.kept.accepts_loss_records = True
    writing.write()
    assert [each["records"] for each in writing.kept.lines] == [2]


def test_records_are_written_when_their_second_has_ended() -> None:
    for now_ns in (0, 1, 999_999_999, 1_790_000_412_300_000_000):
        then_ns = now_ns + round(to_next_second_s(now_ns) * 1e9)
        assert then_ns // 10**9 == now_ns // 10**9 + 1
        assert then_ns % 10**9 < 10_000_000


def test_closing_writes_what_is_left_and_the_end() -> None:
    sums, kept = seconds(), Kept()

    def no_loop(_function: object) -> None:
        raise RuntimeError("the event loop is ending")

    thread = writer_thread(sums, kept, no_loop)
    thread.start()
    sums.add(request(), 7)
    thread.close()
    thread.close()
    assert [each["kind"] for each in kept.lines] == ["usage", "end"]
    assert kept.closed


def test_no_exception_of_a_destination_ends_the_thread() -> None:
    sums, kept = seconds(), Kept()

    def run_on_loop(take: Callable[[], Awaitable[None]]) -> None:
        trio.run(take)

    thread = writer_thread(sums, kept, run_on_loop, 8)
    kept.fails = ZeroDivisionError("a mistake")
    sums.add(request(), 7)
    thread.start()
    wait_until(lambda: thread.lost == 1, "the loss is counted")
    kept.fails = None
    wait_until(lambda: len(kept.lines) == 1, "and recorded, by the same thread")
    assert kept.lines[0]["reason"] == "ZeroDivisionError: a mistake"
    thread.close()
    assert [each["kind"] for each in kept.lines] == ["lost", "end"]
