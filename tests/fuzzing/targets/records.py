"""Targets: usage records, traces for replay, and the output of ``headrace why``."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Final

from headrace.pipeline.analysis.what_if.traces import _parse_line
from headrace.plugins.usage_records.encoding import Encoder
from headrace.plugins.usage_records.rows import Losses, Seconds
from headrace.proxy.admin.why import format_page, printable
from headrace.proxy.hooks.decisions import Kind
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.records.replay import Change, Op, Replay, Usage
from headrace.quota_callbacks.records.trace_lines import BadLineError, parse, read, read_windows
from tests.fuzzing.choices import Choices


def _text(choices: Choices) -> str:
    """Return any text that a client id can be: also control characters, and lone surrogates."""
    raw = choices.take(choices.byte() % 24)
    return raw.decode("utf-8", choices.pick(("replace", "surrogateescape", "backslashreplace")))


def usage_rows(data: bytes) -> None:
    """Sum up requests and encode the records: JSON in one line each, whose sums are those of the requests."""
    choices = Choices(data)
    seconds = Seconds(1 + choices.byte() % 5, lambda _request: 0.5)
    encoder = Encoder("instance")
    encoder.cluster = choices.pick((None, "cluster"))
    requests = [_request(choices) for _ in range(choices.byte() % 16)]
    for request in requests:
        second = 1_700_000_000 + choices.byte() % 3
        seconds.add(request, second)
        if choices.flag():
            batches = [(_text(choices), 0, choices.byte(), -1) for _ in range(choices.byte() % 4)]
            sender = request.connection.user, request.client_id, request.api_key
            seconds.add_topics(*sender, batches)  # type: ignore[arg-type]
    rows, dropped = seconds.take(1_700_000_009)
    lines = [line for second, of_second in rows for line in encoder.lines(second, of_second)]
    lost = dropped or Losses()
    lines.append(encoder.lost(first_second=1, second=2, reason=_text(choices), losses=lost))
    lines.append(encoder.end())
    records = [json.loads(line) for line in lines]
    assert not any(b"\n" in line or b"\r" in line for line in lines)
    assert [record["sequence"] for record in records] == list(range(len(lines)))
    for name in ("requests", "request_bytes", "response_bytes"):
        found = sum(record.get(name, 0) for record in records)
        expected = len(requests) if name == "requests" else sum(getattr(request, name) for request in requests)
        assert found == expected, name


def _request(choices: Choices) -> Any:
    """Return a completed request, with the attributes that the records are made from."""
    quota = choices.pick((None, *QuotaKey))
    return SimpleNamespace(
        connection=SimpleNamespace(user=_text(choices), thread_ns=choices.number(), authenticating=False),
        client_id=_text(choices),
        api_key=choices.pick((ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.CREATE_TOPICS)),
        request_bytes=choices.number(),
        response_bytes=choices.number(),
        reply_s=choices.pick((None, 2.5)),
        forwarded_s=choices.pick((None, 1.5)),
        charged_thread_ns=choices.pick((None, 1000)),
        acks=choices.pick((None, 0, 1)),
        error=choices.pick((None, "closed")),
        refused_code=choices.pick((0, 89)),
        mutations=None,
        validate_only=False,
        topic_errors=None,
        new_producer_ids=choices.byte() % 3,
        reason=None if quota is None else SimpleNamespace(quota=quota),
        throttle_ms=choices.number(),
        is_token=False,
        exempt=False,
    )


VALUES: Final = (
    "0", "1", "-1", "1e400", "9" * 400, "9" * 5000, "null", "true", '"u"', '""', "[]", "{}", "NaN", "1.5",
    '"\\ud800"',
    '{"user": null}', '{"user": "u", "client-id": "c"}', '{"samples": 11, "seconds": 1}', '{"producer_byte_rate": 5}',
    '["producer_byte_rate"]', "[" * 900 + "]" * 900, str(2**63 - 1), str(2**63),
    '{"entity": {"user": "u"}, "remove": []}',
    '{"entity": {"user": "u"}, "set": {"request_percentage": 1e308}}',
)  # fmt: skip
MEMBERS: Final = (
    "t", "op", "user", "client_id", "amount", "strict", "alter", "window", "controller_window", "producer_id_window",
    "entity", "set", "remove", "other",
)  # fmt: skip


def _line(choices: Choices) -> str:
    if choices.flag():
        return choices.rest().decode("utf-8", "surrogateescape")
    members = []
    if choices.byte() < 200:
        members = ['"t": 1', '"user": "u"', f'"op": "{choices.pick(tuple(Op))}"']
    for _ in range(choices.byte() % 6):
        decision = choices.byte()
        value = VALUES[decision % len(VALUES)] if decision < 240 else choices.take(12).decode("latin-1")
        members.append(f'"{choices.pick(MEMBERS)}": {value}')
    return "{" + ", ".join(members) + "}"


_WINDOWS: Final = read_windows(
    parse('{"window": {"samples": 3, "seconds": 1}, "controller_window": {"samples": 3, "seconds": 1}}')
)


def trace_lines(data: bytes) -> None:
    """Read a line of a trace: an event or a quota change that replay accepts, or a `BadLineError` of one line."""
    line = _line(Choices(data))
    try:
        members = parse(line)
    except BadLineError as error:
        _check_fault(error)
        return
    for reading in (read_windows, read):
        try:
            entry = reading(members)
        except BadLineError as error:
            _check_fault(error)
            continue
        if isinstance(entry, Change):
            replay = Replay(_WINDOWS)
            replay.alter(entry)
        elif isinstance(entry, Usage):
            replay = Replay(_WINDOWS)
            replay.alter(_ANY_QUOTA)
            replay.charge(entry)
    event = _parse_line(2, line)
    assert len(event) == 10


_ANY_QUOTA: Final = read(
    parse(
        '{"t": 0, "alter": {"entity": {"user": "u"}, "set": {"producer_byte_rate": 5, "consumer_byte_rate": 5,'
        ' "request_percentage": 5, "controller_mutation_rate": 5, "producer_ids_rate": 5}}}'
    )
)
assert isinstance(_ANY_QUOTA, Change)


def _check_fault(error: BadLineError) -> None:
    text = str(error)
    assert text
    assert "\n" not in text


def why(data: bytes) -> None:
    """Print the decisions about clients with any names: lines without control characters."""
    choices = Choices(data)

    def row() -> dict[str, Any]:
        return {
            "kind": choices.pick(tuple(Kind)).value,
            "entity": _text(choices),
            "quota": choices.pick(tuple(QuotaKey)).value,
            "user": _text(choices),
            "client_id": _text(choices),
            "peer": "198.51.100.7:5000",
            "request": "Produce v9",
            "age_s": choices.number() / 10,
            "throttle_ms": choices.number(),
            "remaining_ms": choices.number(),
            "observed": choices.number() - 1000.0,
            "limit": choices.number() + 1.0,
            "rate": choices.number() / 7,
            "window_s": choices.pick((1, 60, 3600, 7)),
        }

    page = {
        "waiting": [row() for _ in range(choices.byte() % 4)],
        "decisions": [row() for _ in range(choices.byte() % 8)],
    }
    for line in format_page(page):
        assert line == printable(line), line
        line.encode()
