"""Ports that no other process gets."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from testbed.errors import PortsExhaustedError
from testbed.processes import ports
from testbed.processes.ports import HOST, free_port_block, reserve_ports, usable_ports
from tests.testbed.callers import caller, printed_by, run_caller

if TYPE_CHECKING:
    from pathlib import Path

# Reserves every block of a narrow range, so that neighbours must meet.
RESERVE = """
import json, sys
from testbed.processes import ports
ports.usable_ports = lambda: range({start}, {stop})
firsts = []
try:
    while True:
        firsts.append(ports.free_port_block(5))
except ports.PortsExhaustedError:
    print(json.dumps(firsts), flush=True)
sys.stdin.read()
"""


def bindable_stretch(size: int) -> range:
    block = reserve_ports(size)
    block.release()
    return block.ports


def test_blocks_are_free_apart_and_outside_the_ephemeral_range() -> None:
    low, high = (int(word) for word in ports.EPHEMERAL_RANGE_FILE.read_text().split())
    taken: set[int] = set()
    for _ in range(20):
        first = free_port_block(10)
        block = set(range(first, first + 10))
        assert block.isdisjoint(taken)
        assert not any(low <= port <= high for port in block)
        taken |= block
        for port in block:
            with socket.socket() as listener:
                listener.bind((HOST, port))


def test_two_processes_never_get_the_same_port() -> None:
    stretch = bindable_stretch(100)
    code = RESERVE.format(start=stretch.start, stop=stretch.stop)
    with caller(code) as one, caller(code) as other:
        mine, theirs = (
            {port for first in printed_by(process) for port in range(first, first + 5)} for process in (one, other)
        )
    assert mine.isdisjoint(theirs)
    assert len(mine | theirs) >= 50  # a block at random places can leave gaps of four
    # Both are gone, and their ports are to be had again.
    again = run_caller(code.replace("sys.stdin.read()", ""))
    assert len(again) * 5 >= 50


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    stretch = bindable_stretch(3)
    monkeypatch.setattr(ports, "usable_ports", lambda: stretch)
    with socket.socket() as listener:
        listener.bind((HOST, stretch.start))
        with reserve_ports(2) as block:
            assert block.first == stretch.start + 1
        with pytest.raises(PortsExhaustedError, match=r"no 3 consecutive free ports in ports \d+ to \d+; end other"):
            reserve_ports(3)
    with reserve_ports(3) as block:
        assert block.ports == stretch


def test_a_released_port_can_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stretch = bindable_stretch(1)
    monkeypatch.setattr(ports, "usable_ports", lambda: stretch)
    first = reserve_ports()
    with pytest.raises(PortsExhaustedError):
        reserve_ports()
    first.release()
    first.release()
    with reserve_ports() as second:
        assert second.first == first.first


@pytest.mark.parametrize(
    ("ephemeral", "usable"),
    [
        ("32768\t60999\n", range(12000, 32768)),
        ("1024\t60999\n", range(61000, 65536)),
        ("10000\t12500\n", range(12501, 65536)),
        ("nonsense", range(12000, 49152)),
    ],
)
def test_the_stretch_lies_beside_the_ephemeral_range(
    ephemeral: str, usable: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "range"
    file.write_text(ephemeral)
    monkeypatch.setattr(ports, "EPHEMERAL_RANGE_FILE", file)
    assert usable_ports() == usable


def test_without_a_free_range_of_ports_the_error_names_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "usable_ports", lambda: range(0))
    with pytest.raises(PortsExhaustedError, match="since the ephemeral range leaves none"):
        reserve_ports(1)
