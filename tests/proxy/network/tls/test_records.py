"""Where records end, however the bytes are cut, and how much a peer may send without data."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.network.tls.records import (
    COUNTED_BYTES,
    HEADER_BYTES,
    MAX_ANSWER_BYTES,
    MAX_EMPTY_BYTES,
    MAX_EMPTY_RECORDS,
    SLICE_BYTES,
    SLICE_RECORDS,
    PeerLimits,
    RecordEnds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size)


def slices(ends: RecordEnds, data: bytes) -> Iterator[int]:
    """Yield the size of each slice."""
    at = end = 0
    while at < len(data):
        if at == end:
            size, end = ends.slices(memoryview(data), at)
            assert at < end <= len(data)
            assert size <= SLICE_BYTES or ends.records <= 1
        at += size
        assert at <= end
        yield size


@given(
    sizes=st.lists(st.sampled_from([0, 1, 22, 300, 5000, 9000, 16_401, 65_535]), max_size=80),
    cuts=st.lists(st.integers(0, 70_000), max_size=20),
)
def test_each_record_is_counted_once_however_the_bytes_are_cut(sizes: Sequence[int], cuts: Sequence[int]) -> None:
    data = b"".join(map(record, sizes))
    borders = [0]
    for size in sizes:
        borders.append(borders[-1] + 5 + size)
    ends, at, found = RecordEnds(), 0, 0
    for cut in sorted({min(each, len(data)) for each in cuts} | {len(data)}):
        for size in slices(ends, data[at:cut]):
            at += size
            found += ends.records
            assert ends.records <= SLICE_RECORDS
            begin = borders[bisect_right(borders, at) - 1]
            assert (ends.is_incomplete, ends.begun) == (at > begin, at - begin)
            assert ends.missing == (borders[borders.index(begin) + 1] - at if at - begin >= HEADER_BYTES else 0)
    assert found == len(sizes)


def test_a_slice_has_a_bound_on_its_records_and_on_its_bytes() -> None:
    assert list(slices(RecordEnds(), record(22) * 100)) == [27 * SLICE_RECORDS] * 3 + [27 * 4]
    assert list(slices(RecordEnds(), record(5000) * 7)) == [3 * 5005, 3 * 5005, 5005]


def test_a_full_record_is_one_slice_although_it_is_longer() -> None:
    """In two parts, OpenSSL would need two calls for it."""
    assert list(slices(RecordEnds(), record(16_401) * 2 + record(10))) == [16_406, 16_406, 15]


def test_records_without_data_are_counted_by_the_bytes_that_were_received() -> None:
    limits = PeerLimits()
    limits.count_records(MAX_EMPTY_RECORDS, 0)
    assert limits.count_data(0, 10, 0) is None
    limits.count_records(1, COUNTED_BYTES)
    assert limits.count_data(0, 10, 0) == "TLS: too many records without data, such as changes of keys"
    limits.count_records(1, COUNTED_BYTES + 1)
    assert limits.count_data(0, 10, 0) is None


def test_records_with_data_count_for_nothing() -> None:
    """Also if several reads were needed for a record."""
    limits = PeerLimits()
    for _ in range(1000):
        limits.count_records(1, 0)
        assert limits.count_data(2, 40, 20) is None
    limits.count_records(MAX_EMPTY_RECORDS + 1, 0)
    assert limits.count_data(0, 10, 0) is not None, "reads in excess of records are no credit"


@pytest.mark.parametrize(("consumed", "count", "too_many"), [(24, 1, True), (60, 15, False), (20_000, 16_384, False)])
def test_bytes_without_data(consumed: int, count: int, *, too_many: bool) -> None:
    limits = PeerLimits()
    reasons = set()
    for _ in range(2 * MAX_EMPTY_BYTES // 20):
        limits.count_records(1, 0)
        reasons.add(limits.count_data(1, consumed, count))
    assert (reasons != {None}) is too_many


def test_answers_that_tls_has_to_give() -> None:
    limits = PeerLimits()
    assert limits.count_answer(MAX_ANSWER_BYTES, 0) is None
    assert limits.count_answer(1, 0) == "TLS: too many requests for new keys, or for a renegotiation"
    assert limits.count_answer(1, COUNTED_BYTES + 1) is None
