"""Splitting a stream into frames: any split into windows results in the same complete frames, in order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.frames import FrameScanner
from headrace.proxy.wire.heads import read_request_head

LIMIT = 100_000


@dataclass
class Driver:
    """Drives a scanner as a relay does, without sockets: keeps the tail, and records skipped and collected bytes."""

    collect: frozenset[int]
    scanner: FrameScanner = field(default_factory=FrameScanner)
    tail: bytes = b""
    passed: bytearray = field(default_factory=bytearray)
    heads: list[tuple[int, int, int, str]] = field(default_factory=list)
    collected: list[bytes] = field(default_factory=list)

    def receive(self, chunk: bytes) -> None:
        window = bytearray(self.tail + chunk)
        scanner = self.scanner
        scanner.feed(window, len(window))
        begin = 0
        if scanner.mid_frame:
            collecting = scanner.collecting
            frame = scanner.advance()
            if collecting:
                begin = scanner.position
                if frame is not None:
                    self.collected.append(frame)
        while not scanner.mid_frame and scanner.position < scanner.end:
            at = scanner.position
            head = read_request_head(window, at, scanner.end, LIMIT)
            if head is None:
                break
            self.heads.append((head.api_key, head.api_version, head.correlation_id, head.client_id))
            if head.api_key in self.collect:
                self.passed += window[begin:at]
                frame = scanner.collect(head.size, LIMIT, "limits.some")
                begin = scanner.position
                if frame is not None:
                    self.collected.append(frame)
            else:
                scanner.skip(head.size)
        self.passed += window[begin : scanner.position]
        self.tail = scanner.tail()


def request(api_key: int, version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    name = client_id.encode()
    header = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id.to_bytes(4, "big")
    frame = header + len(name).to_bytes(2, "big") + name + body
    return len(frame).to_bytes(4, "big") + frame


# Metadata v0 and Heartbeat v0: header v1, and no field of the body is read.
requests = st.lists(
    st.builds(
        request,
        st.sampled_from([3, 12]),
        st.just(0),
        st.integers(0, 2**31 - 1),
        st.text(max_size=20),
        st.binary(max_size=300),
    ),
    max_size=6,
)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[begin:end] for begin, end in itertools.pairwise(edges)]


@given(frames=requests, places=st.lists(st.integers(0, 2**16), max_size=12), collect=st.sets(st.sampled_from([3, 12])))
def test_any_split_gives_the_same_frames(frames: list[bytes], places: list[int], collect: set[int]) -> None:
    stream = b"".join(frames)
    whole, split = Driver(frozenset(collect)), Driver(frozenset(collect))
    whole.receive(stream)
    for chunk in cut(stream, places):
        split.receive(chunk)
    assert split.heads == whole.heads
    assert split.collected == whole.collected == [each for each in frames if each[5] in collect]
    assert split.passed == whole.passed == b"".join(each for each in frames if each[5] not in collect)
    assert split.tail == whole.tail == b""
    assert not split.scanner.mid_frame


@given(frames=requests.filter(bool), missing=st.integers(1, 40))
def test_a_truncated_stream_is_known_to_be_truncated(frames: list[bytes], missing: int) -> None:
    stream = b"".join(frames)
    missing = min(missing, len(frames[-1]) - 1)
    driver = Driver(frozenset())
    driver.receive(stream[:-missing])
    assert driver.tail or driver.scanner.left == missing


def test_a_message_too_long_to_be_collected_is_refused_before_it_is_read() -> None:
    scanner = FrameScanner()
    scanner.feed(bytearray(10), 10)
    with pytest.raises(MalformedFrame, match=r"a message of 51 bytes .* limits.some = 50"):
        scanner.collect(47, 50, "limits.some")


def test_bytes_that_bypass_the_window_are_counted() -> None:
    scanner = FrameScanner()
    scanner.feed(bytearray(10), 10)
    scanner.skip(1000)
    assert (scanner.position, scanner.left) == (10, 994)
    scanner.passed_outside(994)
    assert not scanner.mid_frame
