"""When accepting pauses: the number of connections that descriptors suffice for, and the memory of the process."""

from __future__ import annotations

import mmap
import resource
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs

from headrace.proxy.counters import Counters
from headrace.proxy.network import overload
from headrace.proxy.network.overload import (
    RESERVED,
    Memory,
    Overload,
    connections_with,
    default_max_memory_bytes,
    most_delayed,
    open_descriptors,
    raise_descriptor_limit,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

MIB = 2**20


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 4096, 65_536, 2**20])
@pytest.mark.parametrize("opened", [10, 20])
def test_whatever_clients_do_the_proxy_has_descriptors_left(descriptors: int, opened: int) -> None:
    count = connections_with(descriptors, opened)
    pipes = descriptors // 4
    assert 2 * count + pipes + most_delayed(descriptors) + opened + min(RESERVED, descriptors // 4) <= descriptors
    assert count >= 1


def test_the_recommended_limit_suffices_for_the_default_of_max_connections() -> None:
    """docs/deploying.md: 6 x max_connections + 1,000; the unit for systemd has 65,536."""
    assert connections_with(65_536, 60) >= 10_000
    assert all(connections_with(6 * count + 1000, 60) >= count for count in (1, 10, 100, 1000, 10_000))


def test_the_limit_of_open_files_is_what_the_process_may_have() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        assert raise_descriptor_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert 3 <= open_descriptors() < before[1]


def test_descriptors_are_short_once_connections_may_need_all_of_them() -> None:
    counters = Counters()
    limit = Overload(counters, descriptors=256, opened=20)
    counters.connections = limit.most_connections - 1
    assert limit.shortage(0.0) is None
    counters.connections += 1
    shortage = f"{limit.most_connections} connections need up to all of 256 open files (RLIMIT_NOFILE)"
    assert limit.shortage(0.0) == ("descriptors", shortage)
    counters.connections -= 1
    assert limit.shortage(0.0, paused=True) is None, "a place that is free is used at once"


def memory_of(limit: Overload, monkeypatch: pytest.MonkeyPatch, used: list[int]) -> None:
    monkeypatch.setattr(limit._memory, "resident_bytes", lambda _now_s: used[0])


def test_memory_is_short_above_the_limit_until_there_is_some_room(monkeypatch: pytest.MonkeyPatch) -> None:
    counters, used = Counters(), [100 * MIB]
    counters.connections = 1
    limit = Overload(counters, max_memory_bytes=100 * MIB)
    memory_of(limit, monkeypatch, used)
    assert limit.shortage(0.0) is None
    used[0] += 1
    reason = f"{100 * MIB + 1} bytes of memory are in use: limits.max_memory = {100 * MIB}"
    assert limit.shortage(0.0) == ("memory", reason)
    used[0] = 96 * MIB
    assert limit.shortage(0.0, paused=True) is not None
    assert limit.shortage(0.0) is None
    used[0] = 95 * MIB
    assert limit.shortage(0.0, paused=True) is None


def test_a_process_without_clients_accepts_whatever_memory_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Overload(Counters(), max_memory_bytes=MIB)
    memory_of(limit, monkeypatch, [2 * MIB])
    assert limit.shortage(0.0) is None


async def test_a_pause_makes_room_and_is_counted_and_logged_once_a_minute(autojump_clock: MockClock) -> None:
    counters, reasons = Counters(), list[str]()
    limit = Overload(counters, descriptors=256)
    limit.on_pause = reasons.append

    async def wait(seconds: float) -> None:
        counters.connections = limit.most_connections
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limit.wait_until_over)
            await trio.sleep(seconds)
            counters.connections -= 1

    with capture_logs() as logs:
        await wait(7.05)
        await wait(3.05)
    assert set(reasons) == {logs[0]["reason"]}
    assert 100 <= len(reasons) <= 104
    assert counters.accept_paused_s == {"descriptors": pytest.approx(10.2, abs=0.2)}
    assert [(each["event"], each["log_level"]) for each in logs] == [
        ("accepting is paused", "warning"),
        ("accepting has resumed", "info"),
    ]
    assert logs[1]["paused_s"] == pytest.approx(7.1, abs=0.2)


async def test_a_pause_for_memory_returns_what_was_freed_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters()
    counters.connections = 1
    limit = Overload(counters, max_memory_bytes=MIB)
    used = [2 * MIB]
    memory_of(limit, monkeypatch, used)
    monkeypatch.setattr(overload, "return_freed_memory", lambda: used.__setitem__(0, 0))
    with trio.fail_after(20):
        await limit.wait_until_over()
    assert used == [0]


async def test_a_pause_for_memory_that_lasts_has_clients_free_some(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters()
    counters.connections = 1
    limit = Overload(counters, max_memory_bytes=100 * MIB)
    used, asked = [105 * MIB], list[int]()

    def free(short_bytes: int, _reason: str) -> None:
        asked.append(short_bytes)
        used[0] -= short_bytes

    limit.on_lasting_shortage = free
    memory_of(limit, monkeypatch, used)
    monkeypatch.setattr(overload, "TRIM_S", 0.0)
    monkeypatch.setattr(overload, "return_freed_memory", lambda: None)
    with trio.fail_after(20):
        await limit.wait_until_over()
    assert asked == [10 * MIB], "not at once, and as much as is missing"


def test_the_memory_is_measured_now_and_then() -> None:
    memory = Memory()
    first = memory.resident_bytes(0.0)
    assert first > 10 * MIB
    taken = mmap.mmap(-1, 20 * MIB)  # not of the memory that was freed before
    taken.write(bytes(20 * MIB))
    assert memory.resident_bytes(0.05) == first
    assert memory.resident_bytes(0.2) > first + 10 * MIB
    taken.close()


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/\n", {"": "1000\n"}, 800),
        ("1:cpu:/\n0::/a.slice/b.service\n", {"a.slice/b.service": "max\n", "a.slice": "500\n", "": "1000\n"}, 400),
        ("0::/a.slice/b.service\n", {"a.slice/b.service": "100\n", "a.slice": "max\n"}, 80),
        ("0::/a.slice\n", {"a.slice": "max\n", "other": "100\n"}, 0),
        ("0::/missing\n", {}, 0),
        ("0::/../../..\n", {}, 0),
        ("4:memory:/x\n", {"x": "100\n"}, 0),
    ],
)
def test_the_default_is_a_share_of_the_lowest_limit(
    tmp_path: Path, own: str, limits: dict[str, str], expected: int
) -> None:
    for name, text in limits.items():
        group = tmp_path / "groups" / name
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(text)
    (tmp_path / "own").write_bytes(b"7:name=\xff:/\n" + own.encode())
    assert default_max_memory_bytes(tmp_path / "groups", tmp_path / "own") == expected
    assert default_max_memory_bytes(tmp_path / "groups", tmp_path / "missing") == 0
    if expected:
        (tmp_path / "groups" / "memory.high").write_text("50\n")
        assert default_max_memory_bytes(tmp_path / "groups", tmp_path / "own") == 40
