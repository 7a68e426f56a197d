import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.values import (
    NodeIds,
    is_loopback_host,
    is_wildcard_host,
    parse_host,
    parse_host_port,
    parse_node_ids,
)
from headrace.quota_callbacks.requests import Address

PORTS = st.integers(0, 65535)
HOSTS = st.ip_addresses().map(str) | st.from_regex(
    r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z]{1,5}){0,3}", fullmatch=True
)


@given(HOSTS, PORTS)
def test_an_address_written_reads_as_the_same(host: str, port: int) -> None:
    address = Address(host=host, port=port)
    assert parse_host_port(str(address)) == address


def test_ipv6_addresses_are_written_in_brackets() -> None:
    assert str(Address(host="::1", port=1)) == "[::1]:1"
    assert str(Address(host="127.0.0.1", port=1)) == "127.0.0.1:1"
    assert parse_host("[::1]") == parse_host("::1") == "::1"


@pytest.mark.parametrize("host", ["", "*", "0.0.0.0", "::", "[::]", "0:0:0:0:0:0:0:0", " * "])
def test_wildcards(host: str) -> None:
    assert is_wildcard_host(host)


@pytest.mark.parametrize("host", ["localhost", "0.0.0.1", "::1", "x.*"])
def test_what_is_no_wildcard(host: str) -> None:
    assert not is_wildcard_host(host)


def test_loopback() -> None:
    assert all(map(is_loopback_host, ("127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST.")))
    assert not any(map(is_loopback_host, ("10.0.0.1", "kafka", "::", "localhost.example.com")))


def test_a_host_may_be_253_characters_long() -> None:
    longest = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert parse_host(longest) == longest
    with pytest.raises(ValueError, match=r"^not a host name$"):
        parse_host(f"{longest}b")
    with pytest.raises(ValueError, match=r"^not a host name$"):
        parse_host("a" * 64)


def test_node_ids() -> None:
    node_ids = parse_node_ids("1001-1003, 0-1,7")
    assert node_ids == NodeIds(ranges=((0, 1), (7, 7), (1001, 1003)))
    assert str(node_ids) == "0-1,7,1001-1003"
    assert list(node_ids) == [0, 1, 7, 1001, 1002, 1003]
    assert len(node_ids) == 6
    assert node_ids.highest == 1003
    assert [node_id for node_id in (0, 1, 2, 6, 7, 8, 1000, 1003, 1004, -1) if node_id in node_ids] == [0, 1, 7, 1003]


@given(st.sets(st.integers(0, 200), min_size=1))
def test_node_ids_one_by_one(ids: set[int]) -> None:
    node_ids = parse_node_ids(",".join(map(str, ids)))
    assert list(node_ids) == sorted(ids)
    assert parse_node_ids(str(node_ids)) == node_ids
    assert all((node_id in node_ids) == (node_id in ids) for node_id in range(202))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=4))
def test_ranges_that_overlap_or_run_backwards_are_refused(ranges: list[tuple[int, int]]) -> None:
    covered = [node_id for first, last in ranges for node_id in range(first, last + 1)]
    good = all(first <= last for first, last in ranges) and len(covered) == len(set(covered))
    text = ",".join(f"{first}-{last}" for first, last in ranges)
    if good:
        assert list(parse_node_ids(text)) == sorted(covered)
    else:
        with pytest.raises(ValueError, match=r"is descending|is listed twice"):
            parse_node_ids(text)
