"""The estimate of a broker's handler time, its table, and the benchmark that parses a broker's log and fits costs."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import request_cost_log
from benchmarks.request_cost_fit import LEAST_MS, Point, fit, off_by, point
from benchmarks.request_cost_log import LoggedRequest, RequestLog, parse_line
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.builtin.request_costs import DEFAULT_COSTS, FALLBACK_COST, RequestCost, estimate_ms

PRODUCE, FETCH, METADATA, HEARTBEAT = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.HEARTBEAT
COSTS = {PRODUCE: RequestCost(base_ms=0.5, per_kib_ms=0.25), HEARTBEAT: RequestCost(base_ms=0.125)}
PAGE = Path(__file__).parents[3] / "docs" / "request-costs.md"


def test_a_base_and_a_price_per_kib_of_request_and_reply() -> None:
    assert estimate_ms(PRODUCE, 3072, 1024, None, COSTS) == 0.5 + 4 * 0.25
    assert estimate_ms(PRODUCE, 0, 512, None, COSTS) == 0.5 + 0.125
    assert estimate_ms(HEARTBEAT, 1 << 20, 1 << 20, None, COSTS) == 0.125


def test_never_more_than_the_broker_had_it() -> None:
    assert estimate_ms(PRODUCE, 4096, 0, 1.25, COSTS) == 1.25
    assert estimate_ms(PRODUCE, 4096, 0, 0.0, COSTS) == 0.0
    assert estimate_ms(PRODUCE, 4096, 0, 30_000.0, COSTS) == 1.5


def test_an_api_that_the_table_lacks() -> None:
    expected = FALLBACK_COST.base_ms + 2 * FALLBACK_COST.per_kib_ms
    assert estimate_ms(9999, 1024, 1024, None) == expected
    assert estimate_ms(METADATA, 1024, 1024, None, COSTS) == expected


@pytest.mark.parametrize("api_key", sorted(API_NAMES))
def test_every_api_costs_something(api_key: int) -> None:
    small, large = (estimate_ms(api_key, size, size, None) for size in (64, 100 << 20))
    assert 0 < small <= large < math.inf
    assert small < 5


def test_the_table_names_apis_that_there_are() -> None:
    assert set(DEFAULT_COSTS) <= set(API_NAMES)


@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.API_VERSIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ],
)
def test_what_clients_send_most_is_measured(api_key: int) -> None:
    assert api_key in DEFAULT_COSTS


def test_a_large_produce_costs_more_than_a_small_one_but_bytes_are_fetched_for_nothing() -> None:
    """Produced records are validated; fetched ones are copied from file to socket in the network thread."""
    assert estimate_ms(PRODUCE, 1 << 20, 60, None) > 5 * estimate_ms(PRODUCE, 1 << 10, 60, None)
    assert estimate_ms(FETCH, 100, 1 << 20, None) < 2 * estimate_ms(FETCH, 100, 1 << 10, None)


@pytest.mark.parametrize("value", [-0.001, math.nan, math.inf])
def test_a_cost_is_a_finite_number(value: float) -> None:
    with pytest.raises(ValueError, match="base_ms is"):
        RequestCost(base_ms=value)
    with pytest.raises(ValueError, match="per_kib_ms is"):
        RequestCost(base_ms=1, per_kib_ms=value)


@given(
    st.sampled_from([*DEFAULT_COSTS, 9999]),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.none() | st.floats(0, 1e9),
)
def test_between_nothing_and_what_was_observed(
    api_key: int, request_bytes: int, response_bytes: int, observed_ms: float | None
) -> None:
    ms = estimate_ms(api_key, request_bytes, response_bytes, observed_ms)
    assert 0 <= ms <= (math.inf if observed_ms is None else observed_ms)
    assert ms <= estimate_ms(api_key, request_bytes + 1, response_bytes, None)


def test_the_page_has_the_table() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (\w+) \| ([0-9.]+) \| ([0-9.]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    documented = {int(key): (name, float(base), float(slope)) for key, name, base, slope in rows}
    assert documented == {key: (API_NAMES[key], cost.base_ms, cost.per_kib_ms) for key, cost in DEFAULT_COSTS.items()}


# Log lines of a 4.3.1 broker and its controller for one request, without the request and the reply.
REST = (
    '"requestHeader":{"requestApiKey":20,"requestApiVersion":6,"correlationId":79828,'
    '"clientId":"headrace-request-costs","requestApiKeyName":"DELETE_TOPICS"},'
)
BROKER_LINE = (
    "13:01:55.892 [data-plane-kafka-network-thread-0-PLAINTEXT-PLAINTEXT-1] DEBUG kafka.request.logger - "
    'Completed request:{"isForwarded":false,'
    + REST
    + '"totalTimeMs":45.746,"requestQueueTimeMs":0.876,"localTimeMs":0.141,"remoteTimeMs":44.14,"throttleTimeMs":0,'
    '"responseQueueTimeMs":0.038,"sendTimeMs":0.549,"securityProtocol":"PLAINTEXT","principal":"User:ANONYMOUS",'
    '"listener":"PLAINTEXT","clientInformation":{"softwareName":"headrace","softwareVersion":"1"}}\n'
)
CONTROLLER_LINE = (
    "13:01:55.891 [data-plane-kafka-network-thread-0-CONTROLLER-PLAINTEXT-2] DEBUG kafka.request.logger - "
    'Completed request:{"isForwarded":true,'
    + REST
    + '"totalTimeMs":43.387,"requestQueueTimeMs":0.031,"localTimeMs":8.377,"remoteTimeMs":27.619,"throttleTimeMs":0,'
    '"responseQueueTimeMs":7.243,"sendTimeMs":0.115,"securityProtocol":"PLAINTEXT","principal":"User:ANONYMOUS",'
    '"listener":"CONTROLLER","clientInformation":{"softwareName":"unknown","softwareVersion":"unknown"}}\n'
)
CLIENT_ID = "headrace-request-costs"


def test_a_line_of_the_request_log() -> None:
    assert parse_line(BROKER_LINE) == LoggedRequest(
        api_key=ApiKey.DELETE_TOPICS,
        client_id=CLIENT_ID,
        correlation_id=79828,
        local_ms=0.141,
        total_ms=45.746,
        forwarded=False,
    )
    forwarded = parse_line(CONTROLLER_LINE)
    assert forwarded is not None
    assert forwarded.forwarded
    assert parse_line("12:57:54.779 [main] INFO kafka.server.KafkaRaftServer - started\n") is None


def test_what_the_controller_did_is_added(tmp_path: Path) -> None:
    path = tmp_path / "node-0.log"
    path.write_text(BROKER_LINE.replace("79828", "1"))
    log = RequestLog(path, CLIENT_ID)
    others = BROKER_LINE.replace(CLIENT_ID, "somebody else")
    path.write_text(path.read_text() + others + CONTROLLER_LINE + BROKER_LINE)
    assert log.handler_ms([79828]) == {79828: pytest.approx(0.141 + 8.377)}


def test_a_request_that_is_not_logged_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_cost_log, "LINES_TIMEOUT_S", 0.05)
    path = tmp_path / "node-0.log"
    path.touch()
    log = RequestLog(path, CLIENT_ID)
    path.write_text(BROKER_LINE.replace("79828", "1") + BROKER_LINE.rstrip())  # the second is still being written
    with pytest.raises(TimeoutError, match="1 of 2 requests"):
        log.handler_ms([1, 79828])


def points(*rows: tuple[float, float]) -> list[Point]:
    return [point(f"{kib} KiB", [kib, kib], [ms, ms]) for kib, ms in rows]


def test_a_line_through_points_and_past_an_outlier() -> None:
    cost = fit(points((1, 1.5), (10, 6), (100, 51), (3, 20), (1000, 501)))
    assert cost.base_ms == pytest.approx(1)
    assert cost.per_kib_ms == pytest.approx(0.5)
    assert off_by(cost, points((10, 3))[0]) == pytest.approx(1)
    assert off_by(cost, points((10, 12))[0]) == pytest.approx(-1)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(0.1, 1), (0.11, 3), (0.12, 2)], id="all of one size"),
        pytest.param([(1, 2), (1000, 2.1), (2000, 2.05)], id="hardly rising"),
        pytest.param([(1, 4), (1000, 2), (2000, 1)], id="falling"),
    ],
)
def test_a_flat_line(rows: list[tuple[float, float]]) -> None:
    cost = fit(points(*rows))
    assert cost.per_kib_ms == 0
    assert cost.base_ms == pytest.approx(sorted(ms for _, ms in rows)[1])


def test_two_points_of_one_size_are_met_halfway_in_proportion() -> None:
    assert fit(points((1, 1), (1, 4))).base_ms == pytest.approx(2)


@given(st.lists(st.tuples(st.floats(0.05, 2000), st.floats(0, 50)), min_size=1, max_size=8))
def test_no_line_is_worse_than_a_flat_one_and_none_begins_below_the_logs_step(rows: list[tuple[float, float]]) -> None:
    measured = points(*rows)
    cost = fit(measured)
    middle = RequestCost(base_ms=2 ** statistics.median(math.log2(each.ms) for each in measured))
    worst = sum(abs(off_by(middle, each)) for each in measured)
    # A slope close to 0 is set to 0, with the same base.
    assert sum(abs(off_by(cost, each)) for each in measured) <= worst + 1e-6
    assert cost.base_ms >= LEAST_MS * (1 - 1e-9)
    assert cost.per_kib_ms >= 0


def test_the_point_is_the_median_of_its_samples() -> None:
    measured = point("w", [1, 2, 9], [5, 1, 3])
    assert (measured.kib, measured.ms, measured.samples) == (2, 3, 3)
    assert measured.lower_ms < measured.ms < measured.upper_ms
    assert point("w", [1, 1], [0, 0]).ms == LEAST_MS
