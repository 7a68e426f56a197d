"""What Kafka's tools print, what is typed on the command line, and the configuration of the peers."""

from __future__ import annotations

import click
import pytest

from benchmarks.bench.__main__ import ALL_PATHS, choose, make_peers, read_peer
from benchmarks.bench.errors import BenchError
from benchmarks.bench.peers import haproxy_config, kroxylicious_config
from benchmarks.bench.workloads import FULL, read_consumer, read_producer, scaled

PRODUCED = """\
100 records sent, 20.0 records/sec (0.02 MB/sec), 2.5 ms avg latency, 310.0 ms max latency.
12000 records sent, 25641.025641 records/sec (24.45 MB/sec), 180.27 ms avg latency, 310.00 ms max latency, 197 ms 50th.
"""
CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-01-02 10:00:00:000, 2026-01-02 10:00:02:000, 100.0000, 50.0000, 104857, 52428.5, 1000, 1000, 100.0000, 104857.0
"""


def test_the_producers_last_line_counts() -> None:
    assert read_producer(PRODUCED, 12_000) == 25641.025641


@pytest.mark.parametrize("printed", [PRODUCED, "", "java.lang.OutOfMemoryError"])
def test_a_producer_that_did_not_write_all_is_an_error(printed: str) -> None:
    with pytest.raises(BenchError, match="did not write 12001 records"):
        read_producer(printed, 12_001)


def test_the_consumers_rate_is_without_the_time_to_join_and_in_decimal_megabytes() -> None:
    rate, megabytes = read_consumer(CONSUMED, 104_857)
    assert rate == pytest.approx(104.8576)
    assert megabytes == pytest.approx(104.8576)


def test_a_consumer_that_did_not_read_all_is_an_error() -> None:
    with pytest.raises(BenchError, match="104857 of 200000"):
        read_consumer(CONSUMED, 200_000)
    with pytest.raises(BenchError, match="no table"):
        read_consumer("WARNING: exiting before consuming\n", 1)


def test_a_peer() -> None:
    given = read_peer("mine=127.0.0.1:9192:4711", relays=True)
    assert (given.name, given.address, given.pid, given.relays) == ("mine", ("127.0.0.1", 9192), 4711, True)


@pytest.mark.parametrize("text", ["", "mine", "mine=9192:1", "=a:1:1", "mine=a:b:1", "mine=a:1:b", "mine=:1:1"])
def test_what_is_no_peer(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected NAME=HOST:PORT:PID"):
        read_peer(text, relays=False)


@pytest.mark.parametrize("name", ALL_PATHS)
def test_a_peer_cannot_take_the_name_of_a_way(name: str) -> None:
    with pytest.raises(click.BadParameter, match="built-in path"):
        read_peer(f"{name}=127.0.0.1:9192:1", relays=False)


def test_the_broker_listens_for_each_relay_by_itself() -> None:
    given = [read_peer("a=h:1:1", relays=True), read_peer("b=h:2:2", relays=True), read_peer("c=h:3:3", relays=False)]
    peers = make_peers(given, 29092)
    assert [peers[name].fixed_port for name in "ab"] == [29093, 29094]
    assert [peers[name].relay_address for name in "abc"] == [("h", 1), ("h", 2), None]


def test_choices_keep_the_known_order() -> None:
    assert choose("c, a", ["a", "b", "c"], "path") == ["a", "c"]
    assert choose(None, ["a", "b"], "path") == ["a", "b"]
    with pytest.raises(click.BadParameter, match="no path d; there are a, b"):
        choose("a,d", ["a", "b"], "path")


def test_sizes_scale_and_have_a_least() -> None:
    assert scaled(1.0) == FULL
    half = scaled(0.5)
    assert (half.produce_records, half.small_requests, half.idle_connections) == (300_000, 30_000, 4000)
    assert scaled(0.0).connects == 200


def test_the_configurations_of_the_peers() -> None:
    plain = haproxy_config(1111, 2222, splice=False)
    assert "bind 127.0.0.1:1111" in plain
    assert "server broker 127.0.0.1:2222" in plain
    assert "splice" not in plain
    assert "option splice-auto" in haproxy_config(1111, 2222, splice=True)
    config = kroxylicious_config(3333, "127.0.0.1:4444")
    assert "bootstrapAddress: 127.0.0.1:3333" in config
    assert "nodeStartPort: 3334" in config
    assert "bootstrapServers: 127.0.0.1:4444" in config
