"""Limits on connections, in one process and across workers that share their counts."""

from __future__ import annotations

import mmap
import random
from typing import TYPE_CHECKING

from headrace.proxy.network import connection_counts
from headrace.proxy.network.connection_counts import PART_BYTES, ROWS_A_GROUP, ConnectionCounts, WorkerConnections

if TYPE_CHECKING:
    import pytest

MANY = 2**31


def workers(count: int) -> tuple[list[WorkerConnections], list[ConnectionCounts]]:
    memory = mmap.mmap(-1, count * PART_BYTES)
    parts = [WorkerConnections(memory, 0, workers=count, number=number) for number in range(count)]
    return parts, [ConnectionCounts(part) for part in parts]


def test_one_process_holds_both_limits() -> None:
    counts = ConnectionCounts()
    for _ in range(3):
        assert counts.limit_reached("a", most=4, most_from_host=3) is None
        counts.add("a")
    assert counts.limit_reached("a", most=4, most_from_host=3) == "max_connections_per_ip"
    assert counts.limit_reached("a", most=4, most_from_host=0) is None
    assert counts.limit_reached("b", most=4, most_from_host=3) is None
    counts.add("b")
    assert counts.limit_reached("c", most=4, most_from_host=3) == "max_connections"
    counts.remove("a")
    assert counts.limit_reached("a", most=4, most_from_host=3) is None


def test_workers_hold_them_together() -> None:
    _, (one, two, three) = workers(3)
    one.add("a")
    two.add("a")
    two.add("b")
    assert [each.limit_reached("a", most=MANY, most_from_host=2) for each in (one, two, three)] == [
        "max_connections_per_ip"
    ] * 3
    assert [each.limit_reached("b", most=MANY, most_from_host=2) for each in (one, two, three)] == [None] * 3
    assert [each.limit_reached("c", most=3, most_from_host=2) for each in (one, two, three)] == ["max_connections"] * 3
    two.remove("a")
    assert three.limit_reached("a", most=3, most_from_host=2) is None


def test_a_worker_that_is_gone_has_no_connections() -> None:
    parts, (one, two) = workers(2)
    two.add("b")
    for _ in range(5):
        one.add("a")
    parts[0].clear()
    assert parts[1].of_others() == parts[1].of_others_from("a") == 0
    assert parts[0].of_others() == parts[0].of_others_from("b") == 1


def test_what_is_shown_is_what_is_there() -> None:
    choose = random.Random(1)  # noqa: S311
    parts, counts = workers(2)
    hosts = [f"192.0.2.{number}" for number in range(40)]
    there = dict.fromkeys(hosts, 0)
    for _ in range(5000):
        host = choose.choice(hosts)
        if there[host] and choose.random() < 0.5:
            counts[0].remove(host)
            there[host] -= 1
        else:
            counts[0].add(host)
            there[host] += 1
    assert {host: parts[1].of_others_from(host) for host in hosts} == there
    assert parts[1].of_others() == sum(there.values())
    for host, count in there.items():
        for _ in range(count):
            counts[0].remove(host)
    assert parts[1].of_others() == 0
    assert parts[1]._memory[:] == bytes(2 * PART_BYTES), "rows are free again"


def test_addresses_beyond_a_group_are_counted_by_their_own_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_counts, "GROUPS", 1)
    parts, counts = workers(2)
    hosts = [f"192.0.2.{number}" for number in range(ROWS_A_GROUP + 1)]
    for host in hosts:
        counts[0].add(host)
    assert [parts[1].of_others_from(host) for host in hosts] == [1] * ROWS_A_GROUP + [0]
    assert parts[1].of_others() == len(hosts)
    assert counts[0].limit_reached(hosts[-1], most=MANY, most_from_host=1) == "max_connections_per_ip"
    counts[0].remove(hosts[0])
    counts[0].add(hosts[-1])
    assert parts[1].of_others_from(hosts[-1]) == 2, "there is room by now"
