import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.quota_callbacks.units import format_duration, format_size, parse_duration_s, parse_size_bytes


@pytest.mark.parametrize(
    ("raw", "duration_s"),
    [
        *(("500ms", 0.5), ("10s", 10.0), ("5m", 300.0), ("1h", 3600.0), ("2d", 172800.0), ("0s", 0.0)),
        *(("1.5h", 5400.0), ("0.1ms", 0.0001), ("10 s", 10.0), (10, 10.0), (0.25, 0.25), (0, 0.0)),
    ],
)
def test_durations(raw: object, duration_s: float) -> None:
    assert parse_duration_s(raw) == duration_s


@pytest.mark.parametrize(
    "raw",
    [
        *(
            "",
            "s",
            "10",
            "10S",
            "10  s",
            " 10s",
            "10s\n",
            "1h30m",
            "-1s",
            "1e3s",
            ".5s",
            "1.s",
            "٣s",
            "10us",
            "9" * 20 + "s",
        ),
        *(-1, float("nan"), float("inf"), True, None, [], b"10s"),
    ],
)
def test_what_is_no_duration(raw: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_s(raw)


@pytest.mark.parametrize(
    ("raw", "size_bytes"),
    [
        *(("1B", 1), ("1kB", 1000), ("1KiB", 1024), ("2MB", 2_000_000), ("2MiB", 2_097_152), ("1GB", 10**9)),
        *(("1GiB", 2**30), ("1.5KiB", 1536), ("0.001kB", 1), ("64 MiB", 2**26), ("0B", 0), (0, 0), (17, 17)),
    ],
)
def test_sizes(raw: object, size_bytes: int) -> None:
    assert parse_size_bytes(raw) == size_bytes


@pytest.mark.parametrize(
    "raw", ["", "1", "1K", "1KB", "1mb", "1Mib", "1.5B", "0.0001kB", "-1B", "1e3B", "1TiB", -1, 1.0, True, None, []]
)
def test_what_is_no_size(raw: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size_bytes(raw)


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        *((0.0, "0s"), (0.0005, "0.0005s"), (0.5, "500ms"), (1.0, "1s"), (90.0, "90s"), (600.0, "10m"), (3600.0, "1h")),
        *((86400.0, "1d"), (1e-9, "0.000000001s"), (1.5, "1500ms"), (100000.0, "100000s")),
    ],
)
def test_durations_as_written(duration_s: float, text: str) -> None:
    assert format_duration(duration_s) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        *(
            (0, "0B"),
            (1, "1B"),
            (1000, "1kB"),
            (1024, "1KiB"),
            (104857600, "100MiB"),
            (10**9, "1GB"),
            (2**31 - 1, "2147483647B"),
        ),
        *((1024000, "1000KiB"), (5 * 2**30, "5GiB")),
    ],
)
def test_sizes_as_written(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@given(st.floats(1e-9, 1e15) | st.integers(0, 10**12).map(float) | st.integers(0, 10**9).map(lambda ms: ms / 1000))
def test_a_duration_written_reads_as_the_same(duration_s: float) -> None:
    assert parse_duration_s(format_duration(duration_s)) == duration_s


@given(st.integers(0, 2**63 - 1) | st.integers(0, 2**20).map(lambda kibibytes: kibibytes * 1024))
def test_a_size_written_reads_as_the_same(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@given(st.integers(0, 10**15), st.sampled_from(["B", "kB", "KiB", "MB", "MiB", "GB", "GiB"]))
def test_a_unit_is_a_factor(count: int, unit: str) -> None:
    assert parse_size_bytes(f"{count}{unit}") == count * parse_size_bytes(f"1{unit}")


@given(st.integers(0, 10**6), st.integers(0, 999))
def test_decimals_are_exact(whole: int, thousandths: int) -> None:
    assert parse_duration_s(f"{whole}.{thousandths:03}s") == (whole * 1000 + thousandths) / 1000
