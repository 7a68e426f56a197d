"""Usage records: sums of a second, lines, options, and what the plugin wants to see."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from headrace.plugins.usage_records.encoding import Encoder
from headrace.plugins.usage_records.options import UsageOptions
from headrace.plugins.usage_records.plugin import UsageRecords, open_sink
from headrace.plugins.usage_records.rows import WAITING_SECONDS, Row
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.options import read_options
from headrace.quota_callbacks.records.usage_records import SCHEMA_VERSION, UsageRecord
from headrace.quota_callbacks.requests import Request, TopicMutation
from tests.plugins.usage_records.usage_rows import CREATE_TOPICS, FETCH, PRODUCE, REASON, request, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


def test_charged_thread_time_is_recorded_and_the_rest_is_kept() -> None:
    sums = seconds()
    made = request(charged_thread_ns=70)
    made.connection.thread_ns = 300
    sums.add(made, 7)
    assert only(sums.take(8)[0][0][1]).thread_ns == 70
    assert made.connection.thread_ns == 300, "to be charged with the next one"


@pytest.mark.parametrize(
    "exempt",
    [{"api_key": PRODUCE, "acks": 0, "reply_s": None}, {"api_key": ApiKey.SASL_AUTHENTICATE, "authenticating": True}],
)
def test_what_is_exempt_takes_no_thread_time(exempt: dict[str, Any]) -> None:
    sums = seconds()
    made = request(**exempt)
    made.connection.thread_ns = 300
    sums.add(made, 7)
    assert (only(sums.take(8)[0][0][1]).thread_ns, made.connection.thread_ns) == (0, 0)


def test_throttles_and_refusals_are_recorded_by_quota_and_observed_ones_are_not() -> None:
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


def test_beyond_max_rows_only_the_sender_is_left_out() -> None:
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
    record = json.loads(line)
    assert set(record) == UsageRecord.__required_keys__
    assert record["user"] == "bär \ud800"
    assert (record["schema"], record["kind"], record["sequence"], record["second"]) == (SCHEMA_VERSION, "usage", 0, 7)
    assert (record["cluster"], record["thread_ms"], record["broker_ms"], record["producer_ids"]) == ("c", 0.5, 250.0, 2)
    assert json.loads(encoder.end()) == {"schema": 1, "kind": "end", "instance": "proxy-1", "sequence": 1}


# --- options ----------------------------------------------------------------------------------------------------------


def options_of(table: dict[str, object]) -> UsageOptions:
    return read_options(UsageOptions, table, "usage_records")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"foldr": "x"}, "usage_records.foldr: unknown key; did you mean plugins.options.usage_records.folder?"),
        ({"folder": "x", "topic": "t"}, "usage_records.folder: expected either a folder or a topic, not both"),
        ({"topic": "t"}, 'topic = "t": expected bootstrap_servers, too'),
        ({"folder": ""}, 'folder = "": expected a text that is not empty'),
        ({"folder": "x", "max_rows": 0}, "max_rows = 0: expected a whole number of rows from 1 to 1000000"),
        ({"folder": "x", "rotate_s": True}, "rotate_s = true: expected a whole number of seconds"),
        ({"folder": "x", "topics": 1}, "topics = 1: expected true or false"),
        ({"folder": "x", "format": "csv"}, 'format = "csv": expected "jsonl" or "parquet"'),
        ({"bootstrap_servers": "b:1", "format": "parquet"}, "format: only applies to files (folder)"),
        ({"folder": "x", "client": {}}, "client: only applies to a topic"),
        ({"bootstrap_servers": "b:1", "rotate_s": 1}, "rotate_s: only applies to files (folder)"),
        ({"folder": "x", "rotate_bytes": 10**9, "keep_bytes": 10**8}, "keep_bytes = 100000000: expected at least"),
        ({"folder": "x", "rotate_bytes": "1kB"}, 'rotate_bytes = "1kB": expected a size such as "64MiB"'),
        ({"bootstrap_servers": "b:1", "client": {"a": []}}, "expected a table of librdkafka's settings"),
    ],
)
def test_wrong_options_are_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=r"plugins\.options\.usage_records") as caught:
        options_of(table)
    assert message in str(caught.value)


def test_sizes_may_have_units() -> None:
    options = options_of({"folder": "x", "rotate_bytes": "1MiB", "keep_bytes": 2 * 10**6})
    assert (options.rotate_bytes, options.keep_bytes) == (2**20, 2 * 10**6)


def test_everything_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(ValueError, match="max_rows") as caught:
        options_of({"folder": "", "max_rows": 0, "foldr": "x"})
    assert len(str(caught.value).splitlines()) == 3


def test_a_secret_of_the_client_may_come_from_a_file_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n", encoding="utf-8")
    client = {"sasl.username": "me", "sasl.password_file": str(file), "enable.ssl.certificate.verification": False}
    options = options_of({"bootstrap_servers": "b:1", "client": client})
    assert {name: value.get_secret_value() for name, value in options.client.items()} == {
        "sasl.username": "me",
        "sasl.password": "hunter2",
        "enable.ssl.certificate.verification": "false",
    }
    assert "hunter2" not in f"{options} {options!r}"


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"sasl.password_file": "/nowhere/x"}, 'client."sasl.password_file" = ***: cannot be read: no such'),
        ({"sasl.password_file": 5}, "= ***: expected the path of a file that holds the secret"),
        ({"sasl.password_file": "/dev/zero"}, "= ***: cannot be read: not an ordinary file"),
        ({"sasl.password_file": "/dev/null", "sasl.password": "hunter2"}, 'either this or "sasl.password"'),
        ({"sasl.password": ["hunter2"]}, "usage_records.client: expected a table of librdkafka's settings"),
        ({"sasl.password": {"env": "NOT_SET"}}, '"sasl.password" = ***: the variable NOT_SET: the variable is not set'),
        ({"sasl.password": {"value": "hunter2"}}, '"sasl.password" = ***: a secret is not written into the config'),
        ({"sasl.password": {"file": 7}}, '"sasl.password".file = ***: expected a non-empty string'),
        ({"sasl.password": "hunter2"}, '"sasl.password" = ***: a secret is not written into the configuration'),
        ({"ssl.key.password": "hunter2"}, '"ssl.key.password" = ***: a secret is not written'),
        ({"ssl.keystore.password": "hunter2"}, '"ssl.keystore.password" = ***: a secret is not written'),
        ({"ssl.key.pem": "hunter2"}, '"ssl.key.pem" = ***: a secret is not written'),
        ({"sasl.oauthbearer.client.secret": "hunter2"}, 'client.secret" = ***: a secret is not written'),
        (
            {"sasl.oauthbearer.assertion.private.key.passphrase": "hunter2"},
            'passphrase" = ***: a secret is not written',
        ),
    ],
)
def test_a_secret_that_cannot_be_had_is_named_and_not_shown(client: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="client") as caught:
        options_of({"bootstrap_servers": "b:1", "client": client})
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("source", [{"file": "password"}, {"env": "PASSWORD"}, {"command": ["echo", "hunter2"]}])
def test_a_secret_of_the_client_may_come_from_any_source(
    source: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PASSWORD", "hunter2")
    (tmp_path / "password").write_text("hunter2\n", encoding="utf-8")
    options = options_of({"bootstrap_servers": "b:1", "client": {"sasl.password": source, "ssl.ca.pem": "public"}})
    assert options.client["sasl.password"].get_secret_value() == "hunter2"
    assert options.client["ssl.ca.pem"].get_secret_value() == "public"
    assert "hunter2" not in f"{options} {options!r}"


def test_librdkafka_refuses_a_setting_without_its_secret(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hunter2", encoding="utf-8")
    client = {"ssl.key.pem": {"file": str(file)}, "security.protocol": "ssl"}
    options = options_of({"bootstrap_servers": "b:1", "client": client})
    with pytest.raises(ValueError, match=r"^plugins\.options\.usage_records\.client: ") as caught:
        open_sink(options, "x")
    assert "hunter2" not in str(caught.value)


def test_nothing_is_written_without_a_folder_or_a_topic() -> None:
    assert not options_of({}).enabled
    assert options_of({"folder": "x"}).enabled
    assert options_of({"bootstrap_servers": "b:1"}).topic == "headrace-usage"


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
    with pytest.raises(ValueError, match=r'folder = "/.*: not a directory; expected a writable folder'):
        UsageRecords().configure(context)


def test_a_folder_that_is_there_and_cannot_be_written_is_named() -> None:
    context = PluginContext(options={"folder": "/proc"}, quotas=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r'folder = "/proc": .*; expected a writable folder'):
        UsageRecords().configure(context)


def test_options_that_are_only_checked_start_nothing(tmp_path: Path) -> None:
    threads = threading.active_count()
    for options in ({"folder": str(tmp_path / "usage")}, {"bootstrap_servers": "127.0.0.1:1"}):
        plugin = UsageRecords()
        plugin.configure(PluginContext(options=options, quotas=None, dry=True))  # type: ignore[arg-type]
        assert threading.active_count() == threads
        plugin.close()
    assert list(tmp_path.iterdir()) == []
