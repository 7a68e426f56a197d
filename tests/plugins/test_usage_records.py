"""Usage records: sums of a second, files, losses, and what the proxy writes of real requests' ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from plugins.usage_records.encoding import Encoder
from plugins.usage_records.files import FileSink, _finished_files
from plugins.usage_records.options import read_options
from plugins.usage_records.plugin import UsageRecords, instance_name
from plugins.usage_records.rows import WAITING_SECONDS, Row, Seconds
from plugins.usage_records.untold import MOST_REASONS, OTHER_REASONS
from plugins.usage_records.writer_thread import WriterThread, to_next_second_s
from quota_callbacks.hookspecs import PluginContext
from quota_callbacks.requests import Address, Connection, Request, TopicMutation
from quota_callbacks.usage_records import SCHEMA_VERSION, LostRecord, UsageRecord
from quota_callbacks.verdicts import Reason
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from plugins.usage_records.writer_thread import Held

PRODUCE, FETCH, CREATE_TOPICS = 0, 1, 19
REASON = Reason(quota="producer_byte_rate", entity="user=alice", observed=2.0, limit=1.0)


def request(api_key: int = PRODUCE, user: str = "alice", client_id: str = "app", **members: Any) -> Request:
    connection = Connection(connection_id=1, peer=Address(host="127.0.0.1", port=1), user=user)
    made = Request(connection, api_key, 9, 1, client_id, members.pop("request_bytes", 100), 10.0)
    made.forwarded_s, made.reply_s, made.completed_s, made.response_bytes = 10.0, 10.25, 10.5, 40
    for name, value in members.items():
        setattr(made, name, value)
    return made


def seconds(max_rows: int = 10) -> Seconds:
    return Seconds(max_rows, lambda each: 0.5 * (1 + each.api_key))


def only(rows: dict[Any, Row]) -> Row:
    assert len(rows) == 1
    return next(iter(rows.values()))


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_seconds_requests_are_one_row_for_each_sender_and_api() -> None:
    sums = seconds()
    for made in (request(), request(request_bytes=50), request(FETCH), request(client_id="other")):
        sums.add(made, 7)
    taken, dropped = sums.take(8)
    assert dropped is None
    ((second, rows),) = taken
    assert second == 7
    assert set(rows) == {("alice", "app", 0, None), ("alice", "app", 1, None), ("alice", "other", 0, None)}
    row = rows["alice", "app", 0, None]
    assert (row.requests, row.request_bytes, row.response_bytes) == (2, 150, 80)
    assert (row.thread_ns, row.broker_s) == (1_000_000, 0.5)


def test_the_present_second_is_not_taken() -> None:
    sums = seconds()
    sums.add(request(), 7)
    assert sums.take(7) == ([], None)
    sums.add(request(), 7)
    assert only(sums.take(8)[0][0][1]).requests == 2


def test_what_has_no_reply_costs_no_broker_time() -> None:
    sums = seconds()
    sums.add(request(error="upstream closed", reply_s=None, completed_s=None, response_bytes=0), 7)
    row = only(sums.take(8)[0][0][1])
    assert (row.requests, row.errors, row.thread_ns, row.broker_s) == (1, 1, 0, 0.0)


def test_the_proxys_own_time_belongs_to_the_next_request_that_is_answered() -> None:
    sums = seconds()
    made = request()
    made.connection.thread_ns = 300
    lost = Request(made.connection, PRODUCE, 9, 2, "app", 100, 10.0)
    lost.forwarded_s = 10.0
    sums.add(lost, 7)
    sums.add(made, 7)
    assert only(sums.take(8)[0][0][1]).thread_ns == 500_300
    assert made.connection.thread_ns == 0


def test_what_was_charged_is_told_and_not_taken_again() -> None:
    sums = seconds()
    made = request(charged_thread_ns=70)
    made.connection.thread_ns = 300
    sums.add(made, 7)
    assert only(sums.take(8)[0][0][1]).thread_ns == 70
    assert made.connection.thread_ns == 300, "to be charged with the next one"


@pytest.mark.parametrize(
    "exempt",
    [{"api_key": PRODUCE, "acks": 0, "reply_s": None}, {"api_key": 27}, {"api_key": 36, "authenticating": True}],
)
def test_what_is_exempt_takes_no_thread_time(exempt: dict[str, Any]) -> None:
    sums = seconds()
    made = request(**exempt)
    made.connection.thread_ns = 300
    sums.add(made, 7)
    assert (only(sums.take(8)[0][0][1]).thread_ns, made.connection.thread_ns) == (0, 0)


def test_throttles_and_refusals_are_told_by_quota_and_shadows_are_not() -> None:
    sums = seconds()
    sums.add(request(throttle_ms=300, reason=REASON), 7)
    sums.add(request(throttle_ms=200, reason=REASON, refused_code=89), 7)
    sums.add(request(observed_ms=900, reason=REASON), 7)
    row = only(sums.take(8)[0][0][1])
    assert row.throttle_ms == {"producer_byte_rate": 500}
    assert row.throttled == {"producer_byte_rate": 2}
    assert row.refused == {"producer_byte_rate": 1}
    assert row.errors == 1


def test_mutations_that_the_broker_refused_do_not_count() -> None:
    sums = seconds()
    mutations = (TopicMutation(topic="new", partitions=3), TopicMutation(topic="there", partitions=6))
    sums.add(request(CREATE_TOPICS, mutations=mutations, topic_errors={"new": 0, "there": 36}), 7)
    sums.add(request(CREATE_TOPICS, mutations=mutations, validate_only=True), 7)
    sums.add(request(CREATE_TOPICS, mutations=mutations, forwarded_s=None, refused_code=89), 7)
    assert only(sums.take(8)[0][0][1]).mutations == 3


def test_bytes_by_topic_leave_totals_as_they_are() -> None:
    sums = seconds()
    sums.add(request(request_bytes=1000), 7)
    identity = bytes(range(16))
    sums.add_topics("alice", "app", PRODUCE, [("a", 0, 300, 5), ("a", 1, 200, 5), (identity, 0, 100, -1)])
    rows = sums.take(8)[0][0][1]
    assert {name[3]: row.request_bytes for name, row in rows.items()} == {None: 400, "a": 500, identity.hex(): 100}
    assert sum(row.requests for row in rows.values()) == 1


def test_bytes_of_topics_beyond_max_rows_stay_with_their_sender() -> None:
    sums = seconds(max_rows=2)
    sums.add(request(request_bytes=1000), 7)
    sums.add_topics("alice", "app", PRODUCE, [("a", 0, 300, 5), ("b", 0, 500, 5), ("a", 1, 100, 5)])
    rows = sums.rows
    assert {name: row.request_bytes for name, row in rows.items()} == {
        ("alice", "app", 0, None): 600,
        ("alice", "app", 0, "a"): 400,
    }
    assert sums.unattributed == 0
    sums.add(request(client_id="late", request_bytes=1000), 7)
    sums.add_topics("alice", "late", PRODUCE, [("a", 0, 300, 5)])
    assert rows[None, None, 0, None].request_bytes == 1000
    assert sums.unattributed == 1, "counted once"


def test_beyond_max_rows_only_the_sender_is_not_told() -> None:
    sums = seconds(max_rows=3)
    for number in range(10):
        sums.add(request(PRODUCE if number % 2 else FETCH, client_id=f"c{number}"), 7)
    rows = sums.take(8)[0][0][1]
    known = {("alice", "c0", 1, None), ("alice", "c1", 0, None), ("alice", "c2", 1, None)}
    assert set(rows) == known | {(None, None, 0, None), (None, None, 1, None)}
    assert sum(row.requests for row in rows.values()) == 10
    assert sums.unattributed == 7


def test_when_nobody_takes_them_seconds_are_dropped_and_counted() -> None:
    sums = seconds(max_rows=1)
    for second in range(WAITING_SECONDS + 5):
        sums.add(request(), second)
    taken, dropped = sums.take(WAITING_SECONDS + 5)
    assert [second for second, _ in taken] == list(range(WAITING_SECONDS))
    assert dropped is not None
    assert (dropped.records, dropped.requests, dropped.request_bytes, dropped.response_bytes) == (5, 5, 500, 200)
    assert sums.take(99) == ([], None)


# --- encoding ---------------------------------------------------------------------------------------------------------


def test_a_line_has_the_fields_of_a_record_and_numbers_follow() -> None:
    sums = seconds()
    sums.add(request(user="bär \ud800", new_producer_ids=2), 7)
    encoder = Encoder("proxy-1")
    encoder.cluster = "c"
    ((second, rows),) = sums.take(8)[0]
    (line,) = encoder.lines(second, rows)
    told = json.loads(line)
    assert set(told) == UsageRecord.__required_keys__
    assert told["user"] == "bär \ud800"
    assert (told["schema"], told["kind"], told["sequence"], told["second"]) == (SCHEMA_VERSION, "usage", 0, 7)
    assert (told["cluster"], told["thread_ms"], told["broker_ms"], told["producer_ids"]) == ("c", 0.5, 250.0, 2)
    assert json.loads(encoder.end()) == {"schema": 1, "kind": "end", "instance": "proxy-1", "sequence": 1}


# --- files ------------------------------------------------------------------------------------------------------------


def sink(folder: Path, instance: str = "a-1", **limits: int) -> FileSink:
    return FileSink(str(folder), instance, **({"rotate_s": 60, "rotate_bytes": 10_000, "keep_bytes": 100_000} | limits))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    files = sink(tmp_path / "made")
    files.write([b"{0}", b"{1}"], [], 0, 100.0)
    assert names(tmp_path / "made") == [".usage-a-1-000000000000.part"]
    files.write([b"{2}"], [], 2, 130.0)
    files.tick(159.9)
    assert names(tmp_path / "made") == [".usage-a-1-000000000000.part"]
    files.tick(160.0)
    (path,) = (tmp_path / "made").iterdir()
    assert path.name == "usage-a-1-000000000000-000000000002.jsonl"
    assert path.read_bytes() == b"{0}\n{1}\n{2}\n"
    files.write([b"{3}"], [], 3, 161.0)
    files.close()
    assert names(tmp_path / "made")[1] == "usage-a-1-000000000003-000000000003.jsonl"


def test_a_large_file_is_finished_at_once(tmp_path: Path) -> None:
    files = sink(tmp_path, rotate_bytes=8)
    files.write([b"12345678"], [], 0, 0.0)
    files.tick(0.0)
    assert names(tmp_path) == ["usage-a-1-000000000000-000000000000.jsonl"]


def test_what_a_dead_writer_left_is_finished_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    living = sink(tmp_path, "alive-1")
    living.write([b"{0}"], [], 0, 0.0)
    (tmp_path / ".usage-dead-1-000000000005.part").write_bytes(b'{"a":5}\n{"a":6}\n{"a')
    (tmp_path / ".usage-dead-1-000000000009.part").write_bytes(b'{"a')
    assert sink(tmp_path, "next-1").recovered == 1
    assert names(tmp_path) == [".usage-alive-1-000000000000.part", "usage-dead-1-000000000005-000000000006.jsonl"]
    assert (tmp_path / names(tmp_path)[1]).read_bytes() == b'{"a":5}\n{"a":6}\n'
    living.close()


def finished(folder: Path, count: int, size: int = 100) -> None:
    """Files of somebody's, the oldest first."""
    for number in range(count):
        path = folder / f"usage-old-1-{number:012}-{number:012}.jsonl"
        path.write_bytes(b"x" * size)
        os.utime(path, (number, number))


def test_the_oldest_files_are_removed_and_that_is_no_loss(tmp_path: Path) -> None:
    finished(tmp_path, 4)
    files = sink(tmp_path, keep_bytes=250)
    assert files.tick(0.0) == ()
    assert files.removed == 2
    assert names(tmp_path) == [f"usage-old-1-{number:012}-{number:012}.jsonl" for number in (2, 3)]


def test_what_others_have_removed_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look into the folder and the removal, another worker removes the oldest two, and stats fail."""
    finished(tmp_path, 5)
    files = sink(tmp_path, keep_bytes=200)
    looked = _finished_files(tmp_path)

    def looked_and_overtaken(folder: Path) -> list[tuple[int, str, int]]:
        for _, path, _ in looked[:2]:
            Path(path).unlink()
        return looked

    monkeypatch.setattr("plugins.usage_records.files._finished_files", looked_and_overtaken)
    files.tick(0.0)
    assert files.removed == 1
    assert len(names(tmp_path)) == 2


def test_two_workers_of_a_folder_remove_and_count_each_file_once(tmp_path: Path) -> None:
    finished(tmp_path, 300)
    workers = [sink(tmp_path, f"w{number}-1", keep_bytes=100) for number in range(2)]
    begin = threading.Barrier(2)
    errors: list[BaseException] = []

    def look(files: FileSink) -> None:
        begin.wait()
        try:
            files.tick(0.0)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=look, args=(files,)) for files in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sum(files.removed for files in workers) == 299
    assert len(names(tmp_path)) == 1


def test_the_folder_is_looked_at_after_a_file_was_finished_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sink(tmp_path, rotate_s=60)
    files.tick(0.0)
    looks: list[Path] = []
    monkeypatch.setattr("plugins.usage_records.files._finished_files", lambda folder: looks.append(folder) or [])
    monkeypatch.setattr("plugins.usage_records.files._parts", lambda folder: looks.append(folder) or [])
    files.write([b"{0}"], [], 0, 0.0)
    for second in range(60):
        files.tick(float(second))
    assert looks == []
    for second in range(60, 120):
        files.tick(float(second))
    assert looks == [tmp_path, tmp_path]


def test_a_living_proxy_takes_up_what_another_left_when_it_finishes_a_file(tmp_path: Path) -> None:
    files = sink(tmp_path)
    files.write([b"{0}"], [], 0, 0.0)
    (tmp_path / ".usage-dead-1-000000000005.part").write_bytes(b'{"a":5}\n{"a')
    files.tick(60.0)
    assert files.recovered == 1
    assert "usage-dead-1-000000000005-000000000005.jsonl" in names(tmp_path)


def test_a_file_that_was_taken_for_a_dead_writers_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a writer's open and its lock, somebody who starts in the folder finds it empty and removes it."""
    files, real = sink(tmp_path), fcntl.flock

    def overtaken(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        sink(tmp_path, "starts-1")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    files.write([b"{0}"], [], 0, 0.0)
    files.close()
    assert names(tmp_path) == ["usage-a-1-000000000000-000000000000.jsonl"]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sink(tmp_path)
    files.write([b"{0}"], [], 0, 0.0)
    real = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) < 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:5])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        files.write([b"{1234567}"], [], 1, 0.0)
    monkeypatch.undo()
    files.write([b"{2}"], [], 1, 0.0)
    files.close()
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == b"{0}\n{2}\n"


def test_the_pages_way_to_name_what_a_killed_proxy_left(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "usage-records.md").read_text(encoding="utf-8")
    ((first, rest),) = re.findall(r"```sh\n(cd .*?)\n(.*?)```", page, re.DOTALL)
    assert first == "cd /var/lib/headrace/usage"
    (tmp_path / ".usage-dead-1-000000000005.part").write_bytes(b'{"a":5}\n{"a')
    subprocess.run(["sh", "-ec", rest], cwd=tmp_path, check=True)
    assert names(tmp_path) == ["usage-dead-1-000000000005-killed.jsonl"]
    assert [path for _, path, _ in _finished_files(tmp_path)] == [str(path) for path in tmp_path.iterdir()]


# --- the thread -------------------------------------------------------------------------------------------------------


class Kept:
    """A sink that keeps lines, and fails when it is told to."""

    removed = 0

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.fails: Exception | None = None
        self.lost_after_all: list[tuple[str, Held]] = []
        self.held: list[Held] = []
        self.takes_marks = True
        self.closed = False

    def write(self, lines: list[bytes], held: Sequence[Held], first: int, now_s: float) -> None:
        if self.fails is not None:
            raise self.fails
        assert json.loads(lines[0])["sequence"] == first
        self.lines += map(json.loads, lines)
        self.held += held

    def tick(self, now_s: float) -> list[tuple[str, Held]]:
        lost, self.lost_after_all = self.lost_after_all, []
        return lost

    def close(self) -> None:
        self.closed = True


FULL = OSError(errno.ENOSPC, "No space left on device")


class Writing:
    """A thread's work, a second at a time."""

    def __init__(self) -> None:
        self.sums, self.kept = seconds(), Kept()
        self.thread = WriterThread(
            self.sums, self.kept, Encoder("a-1"), present_second=lambda: 0, run_on_loop=lambda _: None
        )
        self.second = 0

    def write(self, *requests: Request) -> None:
        for made in requests:
            self.sums.add(made, self.second)
        self.second += 1
        self.thread._note(self.sums.take(self.second))
        self.thread._write_taken()

    @property
    def told(self) -> list[tuple[str, int]]:
        return [(each["kind"], each["sequence"]) for each in self.kept.lines]


def test_what_could_not_be_written_is_told_as_soon_as_it_can_be() -> None:
    writing = Writing()
    writing.kept.fails = FULL
    writing.write(request())
    assert (writing.told, writing.thread.lost, writing.thread.written) == ([], 1, 0)
    writing.kept.fails = None
    writing.write(request())
    assert writing.told == [("usage", 0), ("lost", 1)], "what was never written has no number"
    lost = writing.kept.lines[1]
    assert (lost["records"], lost["requests"], lost["request_bytes"], lost["response_bytes"]) == (1, 1, 100, 40)
    assert lost["reason"] == "No space left on device"
    assert set(lost) == LostRecord.__required_keys__


def test_however_long_it_goes_on_losses_are_told_in_one_mark_for_each_reason() -> None:
    writing = Writing()
    for number in range(1500):
        writing.kept.fails = FULL if number % 3 else ValueError(f"of {number % 2}")
        writing.write(request(), request(FETCH, request_bytes=10))
    writing.kept.fails = None
    writing.write()
    assert writing.told == [("lost", 0), ("lost", 1), ("lost", 2)]
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
    told = {each["reason"]: each["records"] for each in writing.kept.lines}
    assert told[OTHER_REASONS] == MOST_REASONS
    assert sum(told.values()) == 2 * MOST_REASONS


def test_what_was_taken_and_is_lost_after_all_is_told_with_what_it_held() -> None:
    writing = Writing()
    writing.write(request(request_bytes=70))
    writing.kept.lost_after_all = [("Local: Message timed out", writing.kept.held[0])]
    writing.write()
    lost = writing.kept.lines[1]
    assert (lost["sequence"], lost["records"], lost["requests"], lost["request_bytes"]) == (1, 1, 1, 70)
    writing.kept.lost_after_all = [("Local: Message timed out", writing.kept.held[1])]
    writing.write()
    again = writing.kept.lines[2]
    assert again == {**lost, "sequence": 2}, "a mark that is lost is told again"
    assert writing.thread.lost == 1


def test_a_mark_waits_until_the_one_before_was_answered() -> None:
    writing = Writing()
    writing.kept.takes_marks = False
    writing.kept.lost_after_all = [("gone", Row())]
    writing.write()
    assert writing.told == []
    writing.kept.lost_after_all = [("gone", Row())]
    writing.kept.takes_marks = True
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

    thread = WriterThread(sums, kept, Encoder("a-1"), present_second=lambda: 0, run_on_loop=no_loop)
    thread.start()
    sums.add(request(), 7)
    thread.close()
    thread.close()
    assert [each["kind"] for each in kept.lines] == ["usage", "end"]
    assert kept.closed


def test_a_place_that_raises_whatever_it_likes_does_not_end_the_thread() -> None:
    sums, kept = seconds(), Kept()

    def run_on_loop(take: Callable[[], Awaitable[None]]) -> None:
        trio.run(take)

    thread = WriterThread(sums, kept, Encoder("a-1"), present_second=lambda: 8, run_on_loop=run_on_loop)
    kept.fails = ZeroDivisionError("a mistake")
    sums.add(request(), 7)
    thread.start()
    wait_until(lambda: thread.lost == 1, "the loss is counted")
    kept.fails = None
    wait_until(lambda: len(kept.lines) == 1, "and told, by the same thread")
    assert kept.lines[0]["reason"] == "ZeroDivisionError: a mistake"
    thread.close()
    assert [each["kind"] for each in kept.lines] == ["lost", "end"]


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"foldr": "x"}, "usage_records.foldr: there is no such option; there are folder, topic"),
        ({"folder": "x", "topic": "t"}, "has both folder and topic; expected one place"),
        ({"topic": "t"}, "topic is 't' without bootstrap_servers"),
        ({"folder": ""}, "folder is ''; expected a text that is not empty"),
        ({"folder": "x", "max_rows": 0}, "max_rows is 0; expected a whole number of rows from 1 to 1000000"),
        ({"folder": "x", "rotate_s": True}, "rotate_s is True; expected a whole number of seconds"),
        ({"folder": "x", "topics": 1}, "topics is 1; expected true or false"),
        ({"folder": "x", "client": {}}, "client is for a topic alone"),
        ({"bootstrap_servers": "b:1", "rotate_s": 1}, "rotate_s is for files (folder) alone"),
        ({"folder": "x", "rotate_bytes": 10**9, "keep_bytes": 10**8}, "keep_bytes is 100000000; expected at least"),
        ({"bootstrap_servers": "b:1", "client": {"a": []}}, "expected a table of librdkafka's settings"),
    ],
)
def test_wrong_options_are_named(table: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=r"plugins\.options\.usage_records") as caught:
        read_options(table)
    assert said in str(caught.value)


def test_nothing_is_written_unless_it_is_told_where_to() -> None:
    assert not read_options({}).enabled
    assert read_options({"folder": "x"}).enabled
    assert read_options({"bootstrap_servers": "b:1"}).topic == "headrace-usage"


# --- the plugin -------------------------------------------------------------------------------------------------------


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[UsageRecords]:
    made = UsageRecords()
    made.configure(
        PluginContext(options={"folder": str(tmp_path), "name": "here"}, quotas=None, request_time_ms=lambda _: 1.0)  # type: ignore[arg-type]
    )
    yield made
    made.close()


def test_the_end_of_every_request_and_no_more(plugin: UsageRecords) -> None:
    assert all(interest.end_only for interest in plugin.request_interest())
    assert UsageRecords().request_interest() == ()


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    context = PluginContext(options={"folder": str(tmp_path / "file" / "below")}, quotas=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"folder is '.*below': Not a directory; expected a folder"):
        UsageRecords().configure(context)


def test_an_instance_has_a_name_of_its_own() -> None:
    assert instance_name("host", None, 1_000_000_000) == "host-1000"
    assert instance_name("host", 3, 1_000_000_000) == "host-3-1000"
