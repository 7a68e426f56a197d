"""Usage records in Parquet files: the same records with types, and what happens when a file cannot be converted."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import stat
import threading
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from structlog.testing import capture_logs

from headrace.plugins.usage_records import parquet, parquet_thread
from headrace.plugins.usage_records.encoding import Encoder
from headrace.plugins.usage_records.files import FileSink
from headrace.plugins.usage_records.options import UsageOptions
from headrace.plugins.usage_records.parquet import SCHEMA, convert
from headrace.plugins.usage_records.parquet_thread import MOST_WAITING, ParquetThread
from headrace.plugins.usage_records.plugin import open_sink
from headrace.plugins.usage_records.rows import Losses, Row
from headrace.quota_callbacks.options import read_options
from headrace.quota_callbacks.records.usage_records import LostRecord, UsageRecord
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import HEARTBEAT_REPLY, FakeBroker
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.plugins.usage_records.usage_rows import SecondBySecond, request, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIMITS: Final = {"rotate_s": 60, "rotate_bytes": 100_000, "keep_bytes": 1_000_000}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, too, what can be converted is."""
    monkeypatch.setattr(parquet_thread, "CLOSE_S", 60.0)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[FileSink]:
    made = FileSink(str(tmp_path), "a-1", **LIMITS, parquet=ParquetThread())
    yield made
    made.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def random_row(choose: random.Random) -> Row:
    row = Row()
    for name in ("requests", "errors", "request_bytes", "response_bytes", "mutations", "producer_ids", "thread_ns"):
        setattr(row, name, choose.choice((0, 1, choose.randrange(2**20), choose.randrange(2**62))))
    row.broker_s = choose.choice((0.0, choose.random(), choose.expovariate(1e-6)))
    for name in ("throttle_ms", "throttled", "refused"):
        if choose.random() < 0.3:
            keys = choose.sample(["producer_byte_rate", "request_percentage", "", "a.b", 'ä\n"\\'], choose.randrange(4))
            setattr(row, name, {key: choose.randrange(-(2**63), 2**63) for key in keys})
    return row


def lines_of(count: int, choose: random.Random) -> list[bytes]:
    """Lines of all kinds, with texts and numbers of all sorts."""
    encoder = Encoder("proxy-1")
    lines = []
    for number in range(count):
        texts = (None, "", "alice", "bär \x00\x1f\u2028\U0001f600", "x" * 300, "2026-11-26T00:00:00Z", "7", "null")
        user, client_id, topic = choose.choices(texts, k=3)
        encoder.cluster = choose.choice((None, "c"))
        lines += encoder.lines(number, {(user, client_id, choose.randrange(100), topic): random_row(choose)})
        if choose.random() < 0.05:
            losses = Losses()
            losses.add(random_row(choose))
            lines.append(encoder.lost(first_second=number, second=number, reason="No space left", losses=losses))
    return [*lines, encoder.end()]


def converted(tmp_path: Path, lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the rows of the Parquet file that is made of lines, with maps as dictionaries."""
    source, target = tmp_path / "lines", tmp_path / "parquet"
    source.write_bytes(b"".join(line + b"\n" for line in lines))
    with source.open("rb") as read, target.open("wb") as written:
        convert(read.fileno(), written.fileno(), is_stopping=lambda: False)
    table = pq.read_table(target)
    assert table.schema == SCHEMA
    maps = {field.name for field in SCHEMA if isinstance(field.type, pa.MapType)}
    return [
        {name: dict(value) if name in maps and value is not None else value for name, value in row.items()}
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize("block_bytes", [4096, parquet.BLOCK_BYTES])
def test_each_line_is_a_row_with_the_same_values(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "BLOCK_BYTES", block_bytes)
    lines = lines_of(300, random.Random(17))  # noqa: S311 -- the same in each run
    rows = converted(tmp_path, lines)
    assert rows == [dict.fromkeys(SCHEMA.names) | json.loads(line) for line in lines]


def test_the_columns_are_the_fields_of_all_kinds() -> None:
    assert set(SCHEMA.names) == UsageRecord.__required_keys__ | LostRecord.__required_keys__


@pytest.mark.parametrize("lines", [[b'{"kind":"end"}'], [b'{"kind":"usage","refused":{}}'], [b'{"refused":null}']])
def test_maps_that_are_empty_or_missing(lines: list[bytes], tmp_path: Path) -> None:
    assert converted(tmp_path, lines) == [dict.fromkeys(SCHEMA.names) | json.loads(lines[0])]


@pytest.mark.parametrize(
    "line",
    [
        b'{"user":"\\ud800"}',
        b'{"user":"\xff"}',
        b'{"refused":{"a":1.5}}',
        b'{"refused":{"a":9223372036854775808}}',
        b'{"refused":{"a":"b"}}',
        b'{"refused":[1]}',
        b'{"requests":9223372036854775808}',
        b'{"api_key":2147483648}',
        b'{"unknown":1}',
        b'{"user":"' + b"x" * 5000 + b'"}',
        b"{",
    ],
    ids=lambda line: line[:30].decode("utf-8", "replace"),
)
def test_what_would_not_be_the_same_is_not_converted(
    line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "BLOCK_BYTES", 4096)
    with pytest.raises(ValueError, match=r".{5}"):
        converted(tmp_path, [b'{"kind":"end"}', line])


# --- the files --------------------------------------------------------------------------------------------------------


def eventually(folder: Path, *expected: str) -> None:
    wait_until(lambda: names(folder) == sorted(expected), f"{expected} are in the folder")


def test_a_journal_becomes_a_parquet_file_when_it_is_complete(tmp_path: Path, sink: FileSink) -> None:
    lines = lines_of(1, random.Random(1))  # noqa: S311 -- the same in each run
    sink.write(lines, [], 0, 100.0)
    assert names(tmp_path) == [".usage-a-1-000000000000.part"]
    sink.tick(160.0)
    eventually(tmp_path, f"usage-a-1-000000000000-{len(lines) - 1:012}.parquet")
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert pq.read_table(path)["kind"].to_pylist() == ["usage", "end"]
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_the_last_file_is_converted_when_the_proxy_stops(tmp_path: Path) -> None:
    sink = open_sink(read_options(UsageOptions, {"folder": str(tmp_path), "format": "parquet"}, "usage_records"), "a-1")
    writing = SecondBySecond(seconds(), sink)
    writing.write(request())
    writing.thread._finish()
    (path,) = tmp_path.iterdir()
    assert path.name == "usage-a-1-000000000000-000000000001.parquet"
    assert pq.read_table(path, columns=["kind", "user"]).to_pylist() == [
        {"kind": "usage", "user": "alice"},
        {"kind": "end", "user": None},
    ]


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("broken", ["convert", "open_private"])
def test_where_a_file_cannot_be_converted_its_lines_are_finished(
    broken: str, tmp_path: Path, sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_thread, broken, no_space)
    with capture_logs() as logs:
        sink.write([b"{0}"], [], 0, 0.0)
        sink.close()
    assert names(tmp_path) == ["usage-a-1-000000000000-000000000000.jsonl"]
    assert [each["reason"] for each in logs] == ["No space left on device"]


def test_a_record_that_is_not_unicode_keeps_its_file_as_lines(tmp_path: Path, sink: FileSink) -> None:
    writing = SecondBySecond(seconds(), sink)
    writing.write(request(user="\ud800"))
    writing.thread._finish()
    assert names(tmp_path) == ["usage-a-1-000000000000-000000000001.jsonl"]


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path, sink: FileSink) -> None:
    target = tmp_path.parent / f"{tmp_path.name}-precious"
    target.write_bytes(b"precious")
    (tmp_path / ".usage-a-1-000000000000.parquet.tmp").symlink_to(target)
    sink.write([b'{"kind":"end"}'], [], 0, 0.0)
    sink.close()
    assert names(tmp_path) == ["usage-a-1-000000000000-000000000000.parquet"]
    assert target.read_bytes() == b"precious"
    assert not (tmp_path / names(tmp_path)[0]).is_symlink()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Conversions that wait until this is called."""
    goes_on = threading.Event()

    def waits(lines: int, parquet: int, *, is_stopping: Callable[[], bool]) -> None:
        assert goes_on.wait(60)
        convert(lines, parquet, is_stopping=is_stopping)

    monkeypatch.setattr(parquet_thread, "convert", waits)
    yield goes_on.set
    goes_on.set()


def test_a_journal_stays_hidden_and_locked_while_it_is_converted(
    held: Callable[[], None], tmp_path: Path, sink: FileSink
) -> None:
    sink.write([b'{"kind":"end"}'], [], 0, 0.0)
    sink.rotate()
    for _ in range(2):
        FileSink(str(tmp_path), "b-1", **LIMITS).tick(0.0)
        assert ".usage-a-1-000000000000.part" in names(tmp_path)
        assert not [name for name in names(tmp_path) if name.startswith("usage-")]
    held()
    eventually(tmp_path, "usage-a-1-000000000000-000000000000.parquet")


def test_writing_does_not_wait_and_few_journals_do(held: Callable[[], None], tmp_path: Path, sink: FileSink) -> None:
    for number in range(MOST_WAITING + 4):
        sink.write([b'{"kind":"end"}'], [], number, 0.0)
        sink.rotate()
        if number == 0:
            wait_until(sink._parquet._waiting.empty, "it is being converted")
    as_lines = [name for name in names(tmp_path) if name.endswith(".jsonl")]
    assert len(as_lines) == 3
    held()
    sink.close()
    assert sum(name.endswith(".parquet") for name in names(tmp_path)) == MOST_WAITING + 1
    assert len(names(tmp_path)) == MOST_WAITING + 4


def test_what_cannot_be_converted_in_time_is_finished_as_lines(
    tmp_path: Path, sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_thread, "CLOSE_S", 0.0)
    sink.write([b'{"kind":"end"}'], [], 0, 0.0)
    sink.close()
    assert names(tmp_path) == ["usage-a-1-000000000000-000000000000.jsonl"]


@pytest.mark.parametrize(("is_named", "expected"), [(False, "jsonl"), (True, "parquet")])
def test_a_process_that_was_killed_while_it_converted(is_named: bool, expected: str, tmp_path: Path) -> None:
    """Its journal is finished as lines, unless the Parquet file has its name already."""
    (tmp_path / ".usage-dead-1-000000000005.part").write_bytes(b'{"kind":"usage"}\n{"kind":"end"}\n')
    if is_named:
        (tmp_path / "usage-dead-1-000000000005-000000000006.parquet").write_bytes(b"PAR1")
    else:
        (tmp_path / ".usage-dead-1-000000000005.parquet.tmp").write_bytes(b"PAR1")
    FileSink(str(tmp_path), "next-1", **LIMITS)
    assert names(tmp_path) == [f"usage-dead-1-000000000005-000000000006.{expected}"]


def test_the_oldest_files_of_both_formats_are_removed(tmp_path: Path, sink: FileSink) -> None:
    for number, suffix in enumerate(("parquet", "jsonl", "parquet")):
        path = tmp_path / f"usage-old-1-{number:012}-{number:012}.{suffix}"
        path.write_bytes(b"x" * 400_000)
        os.utime(path, (number, number))
    sink.tick(0.0)
    assert names(tmp_path) == [f"usage-old-1-{1:012}-{1:012}.jsonl", f"usage-old-1-{2:012}-{2:012}.parquet"]
    assert sink.removed == 1


# --- a proxy ----------------------------------------------------------------------------------------------------------


def beat_and_wait(proxy: ProxyProcess, client: RawClient) -> None:
    """A request, until its record is written."""
    written = proxy.metric("headrace_usage_records_total")
    assert client.call(messages.HEARTBEAT, 1, messages.heartbeat_body()) == HEARTBEAT_REPLY
    wait_until(lambda: proxy.metric("headrace_usage_records_total") > written, "the record is written")


def test_a_killed_proxys_written_records_are_in_its_files_once(tmp_path: Path) -> None:
    config = f'[plugins.options.usage_records]\nfolder = "{tmp_path}/usage"\nformat = "parquet"\nrotate_s = 1\n'
    folder = tmp_path / "usage"
    with FakeBroker({}) as broker:
        with ProxyProcess(broker.address, config=config) as proxy, RawClient(proxy.port, client_id="app") as client:
            beat_and_wait(proxy, client)
            wait_until(lambda: any(folder.glob("usage-*.parquet")), "the file is converted")
            beat_and_wait(proxy, client)
            proxy.signal(signal.SIGKILL)
            proxy.wait(60)
        with ProxyProcess(broker.address, config=config) as proxy:
            with RawClient(proxy.port, client_id="app") as client:
                beat_and_wait(proxy, client)
            assert proxy.stop() == 0
    assert not list(folder.glob(".*"))
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.iterdir()):
        is_parquet = path.suffix == ".parquet"
        rows += pq.read_table(path).to_pylist() if is_parquet else map(json.loads, path.read_bytes().splitlines())
    by_instance = [
        [row for row in rows if row["instance"] == name] for name in sorted({row["instance"] for row in rows})
    ]
    assert [[row["sequence"] for row in each] for each in by_instance] == [
        list(range(len(each))) for each in by_instance
    ]
    beats = [sum(row["requests"] for row in each if row.get("api_key") == messages.HEARTBEAT) for each in by_instance]
    assert beats == [2, 1]
    assert [each[-1]["kind"] for each in by_instance] == ["usage", "end"]
