"""The demo's arithmetic, its table and its verdict, without brokers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import trio
from rich.console import Console

from examples.demo.measuring import Series
from examples.demo.proxy_pages import parse_page
from examples.demo.reports import Report, parse_settings, read_report
from examples.demo.scenario import CLIENTS, MIB, proxy_config
from examples.demo.table import MOST_BARS, Row, State, draw, sparkline
from examples.demo.throttle_watch import ThrottleWatch
from examples.demo.verdict import ClientOutcome, Outcome, faults, mib, paragraph
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address, Connection, Request

GOOD = ClientOutcome(
    client_id="misbehaving",
    library="librdkafka 2",
    verb="sent",
    limit=2.0 * MIB,
    rate=2.03 * MIB,
    muted_share=0.71,
    throttled_requests=12,
    longest_throttle_s=1.04,
    throttle_times=1234,
    most_in_flight=3000,
    ignores_throttling=True,
    lost_connections=0,
    problem=None,
)


def outcome(**changes: object) -> Outcome:
    client = dataclasses.replace(GOOD, **changes)  # type: ignore[arg-type]
    return Outcome(smoothing_s=12, clients=[client], throttled_requests=730, proxy_errors=0)


def test_a_paragraph_has_the_numbers_of_the_run() -> None:
    assert paragraph(outcome()) == (
        "This is what came through Headrace in the last 23 s (means over Kafka's 11 s window, averaged over 12 s)."
        " misbehaving (librdkafka 2) was allowed 2 MiB/s and sent 2.03 MiB/s; its connections were muted 71% of the"
        " time, for up to 1.0 s at once. It received 1,234 throttle times and ignored them, with up to 3,000 requests"
        " in flight, but stayed within its limit. 730 requests were throttled in all; no client was disconnected. Every"
        " limit held, and no client reported an error."
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 2.21 * MIB}, "misbehaving was 10% above its limit of 2 MiB/s"),
        ({"rate": 3.0 * MIB}, "misbehaving was 50% above its limit of 2 MiB/s"),
        ({"rate": 0.0}, "misbehaving sent nothing"),
        ({"problem": "ended by itself with status 1: oh"}, "misbehaving ended by itself with status 1: oh"),
        ({"lost_connections": 1}, "1 connection of misbehaving were closed"),
    ],
)
def test_what_does_not_hold_is_said(changes: dict[str, object], message: str) -> None:
    assert faults(outcome(**changes)) == [message]
    assert f"FAILED: {message}." in paragraph(outcome(**changes))
    assert "Every limit held" not in paragraph(outcome(**changes))


def test_who_is_not_held_is_not_said_to_be() -> None:
    assert "stayed within its limit" not in paragraph(outcome(rate=3.0 * MIB))


def test_faults_of_the_proxy_are_said() -> None:
    switched = dataclasses.replace(outcome(), enforcing=False, proxy_errors=2)
    assert faults(switched) == [
        "the enforcement of quotas was switched off",
        "the proxy counted 2 connection errors",
    ]


def test_a_client_without_a_limit_has_no_limit_to_overshoot() -> None:
    free = outcome(limit=None, rate=900.0 * MIB)
    assert faults(free) == []
    assert "had no limit and sent 900 MiB/s" in paragraph(free)


@pytest.mark.parametrize(("value", "shown"), [(2.0, "2"), (2.034, "2.03"), (41.26, "41.3"), (478.4, "478"), (0, "0")])
def test_rates_are_shown_with_the_digits_that_say_something(value: float, shown: str) -> None:
    assert mib(value * MIB) == shown


def test_a_series_gives_rates_and_means() -> None:
    series = Series()
    for second, total in ((10.0, 0), (11.0, 100), (12.0, 100), (14.0, 500)):
        series.add(second, total)
    assert series.total == 500
    assert series.total_at(9.0) == 0
    assert series.total_at(13.0) == 300
    assert series.rate(14.0, 2.0) == 200
    assert series.rate(14.0, 10.0) == 50, "silence before the first sample"
    assert series.per_second(14.0, 4) == [100, 0, 200, 200]


@pytest.mark.parametrize("period_s", [11.2, 11.6, 12.0, 12.4])
@pytest.mark.parametrize("end_s", [60.0, 62.3, 65.1, 68.8])
def test_a_smoothed_rate_does_not_depend_on_where_bursts_fall(period_s: float, end_s: float) -> None:
    series = Series()
    for burst in range(8):
        series.add(burst * period_s + 0.5, burst * 1000)
        series.add(burst * period_s + 1.5, burst * 1000 + 1000)
    assert series.smoothed(end_s, 11, 12) == pytest.approx(1000 / period_s, rel=0.05)


def test_a_sparkline_shows_everything_above_nothing() -> None:
    assert sparkline([0, 0.001, 50, 100]) == " ▁▄█"
    assert sparkline([0, 0]) == "  "


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [80, 81, 99, 100, 101, 120, 200])
def test_the_table_fits_the_screen(width: int, ascii_only: bool) -> None:
    rows = [
        Row(
            client=client,
            state=state,
            now_rate=99.4 * MIB,
            mean_rate=1134.0 * MIB,
            muted_share=1.0,
            throttled_requests=12345,
            longest_throttle_s=12.3,
            bars=[1.0] * MOST_BARS,
        )
        for client, state in zip(CLIENTS, State, strict=True)
    ]
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(draw(rows, title="1 of 30 s", width=width, ascii_only=ascii_only))
    shown = captured.get()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert ("each" in shown) is not ascii_only
    assert shown.isascii() or not ascii_only


def test_the_configuration_limits_the_clients_that_the_table_lists() -> None:
    text = proxy_config(Path("/usage"))
    for client in CLIENTS:
        assert (f'client-id = "{client.client_id}"' in text) == (client.limit is not None)


def test_a_report_survives_its_line_and_nothing_else_is_one() -> None:
    report = Report(
        at_s=1.5, moved_bytes=2, throttles=3, longest_throttle_ms=4, most_in_flight=5, errors=6, last_error="seven"
    )
    line = (
        '{"at_s":1.5,"moved_bytes":2,"throttles":3,"longest_throttle_ms":4,"most_in_flight":5,"errors":6,'
        '"last_error":"seven"}'
    )
    assert read_report(line) == report
    assert read_report("Traceback (most recent call last):") is None


def test_settings_are_pairs() -> None:
    assert parse_settings(["a=1", "b=c=d"]) == {"a": "1", "b": "c=d"}
    with pytest.raises(ValueError, match="expected name=value"):
        parse_settings(["a"])


async def test_the_plugin_adds_up_mutes_without_counting_twice(autojump_clock: trio.testing.MockClock) -> None:
    watch, connection = ThrottleWatch(), Connection(connection_id=7, peer=Address(host="h", port=1))
    begin_s = trio.current_time()

    def completed(at_s: float, throttle_ms: int) -> None:
        request = Request(connection, ApiKey.PRODUCE, 13, 1, "client", 100, begin_s + at_s)
        request.throttle_ms = throttle_ms
        request.throttled_s = begin_s + at_s if throttle_ms else None
        watch.request_completed(request)

    def value(name: str) -> float:
        return next(metric.value for metric in watch.collect_metrics() if metric.name == f"demo_{name}")

    completed(0.0, 0)
    assert value("data_connections") == 1
    completed(0.0, 2000)
    completed(1.0, 3000)  # overlaps: muted from 0 to 4
    assert value("muted_seconds") == 0.0, "what lies ahead is not counted"
    assert value("muted_data_connections") == 1
    await trio.sleep(3)
    assert value("muted_seconds") == pytest.approx(3.0)
    watch.connection_closed(connection)
    await trio.sleep(5)
    assert value("muted_seconds") == pytest.approx(3.0)
    assert value("throttled_requests") == 2
    assert value("longest_throttle_seconds") == 3.0
    assert value("lost_connections") == 1
    assert value("data_connections") == 0


def test_the_metrics_page_is_read() -> None:
    values = {
        "throttled_requests_total": 5,
        "longest_throttle_seconds": 1.5,
        "muted_seconds_total": 2.5,
        "data_connections": 3,
        "muted_data_connections": 1,
        "lost_connections_total": 0,
    }
    lines = [f'headrace_demo_{name}{{client_id="c"}} {value}' for name, value in values.items()]
    lines += ['headrace_throttled_requests_total{quota="a"} 3', 'headrace_throttled_requests_total{quota="b"} 4']
    lines += ["headrace_enforcement_enabled 0", 'headrace_errors_total{fault="client"} 2']
    page = parse_page("\n".join(lines) + "\n", at_s=1.0)
    assert (page.throttled_requests, page.errors, page.enforcing) == (7, 2, False)
    client = page.client("c")
    assert (client.throttled_requests, client.muted_s, client.connections, client.muted_connections) == (5, 2.5, 3, 1)
    assert page.client("unknown").throttled_requests == 0
