"""The number of open connections, in total, by address and by user."""

from __future__ import annotations

from headrace.proxy.network.connection_counts import ConnectionCounts


def test_the_limits_in_total_and_per_address() -> None:
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


def test_users_are_counted_apart_from_addresses() -> None:
    counts = ConnectionCounts()
    counts.add("192.0.2.1")
    for _ in range(3):
        counts.add_user("192.0.2.1")
    assert counts.of_user("192.0.2.1") == 3
    assert counts.limit_reached("192.0.2.1", most=2, most_from_host=2) is None
    assert counts.limit_reached("192.0.2.1", most=2, most_from_host=1) == "max_connections_per_ip"
    counts.remove_user("192.0.2.1")
    assert counts.of_user("192.0.2.1") == 2


def test_addresses_and_users_without_connections_take_no_memory() -> None:
    counts = ConnectionCounts()
    for number in range(100):
        counts.add(f"192.0.2.{number}")
        counts.add_user(f"user-{number}")
    for number in range(100):
        counts.remove(f"192.0.2.{number}")
        counts.remove_user(f"user-{number}")
    assert counts.of_user("user-0") == 0
    assert counts.limit_reached("192.0.2.0", most=1, most_from_host=1) is None
    assert (counts._by_host, counts._by_user) == ({}, {})
