"""The header of PROXY protocol v2: what HAProxy sends is read, round trips, and every way in which bytes are wrong."""

from __future__ import annotations

import ipaddress
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.errors import MalformedFrame, OtherProtocol, UnencodableValue
from headrace.proxy.wire.proxy_protocol import (
    FIXED_BYTES,
    MAX_HEADER_BYTES,
    SIGNATURE,
    Endpoint,
    ProxyHeader,
    crc32c,
    read_header,
    write_header,
)

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 20
LOCAL, PROXY = 0x20, 0x21
TCP4, UDP4, TCP6, UNIX_STREAM, UNIX_DATAGRAM = 0x11, 0x12, 0x21, 0x31, 0x32
V4 = bytes([192, 0, 2, 1, 198, 51, 100, 7]) + (56324).to_bytes(2, "big") + (9093).to_bytes(2, "big")
V6 = ipaddress.ip_address("2001:db8::1").packed + ipaddress.ip_address("2001:db8::2").packed + b"\1\2\3\4"


def header(command: int, family: int, *parts: bytes, size: int | None = None) -> bytes:
    body = b"".join(parts)
    return SIGNATURE + bytes([command, family]) + (len(body) if size is None else size).to_bytes(2, "big") + body


def tlv(kind: int, value: bytes) -> bytes:
    return bytes([kind]) + len(value).to_bytes(2, "big") + value


def endpoint(address: str, port: int) -> Endpoint:
    return Endpoint(address=ipaddress.ip_address(address), port=port)


def checked(command: int, family: int, addresses: bytes, *others: bytes) -> bytes:
    """A header with a checksum between the addresses and other TLVs."""
    blank = header(command, family, addresses, tlv(3, bytes(4)), *others)
    return header(command, family, addresses, tlv(3, crc32c(blank).to_bytes(4, "big")), *others)


def read(data: bytes) -> ProxyHeader:
    found = read_header(data)
    assert found is not None
    return found


def size_of(data: bytes) -> int:
    """The number of bytes of the header, by its field of the length."""
    return FIXED_BYTES + int.from_bytes(data[FIXED_BYTES - 2 : FIXED_BYTES], "big")


CLIENT4, SERVER4 = endpoint("192.0.2.1", 56324), endpoint("198.51.100.7", 9093)
CLIENT6, SERVER6 = endpoint("2001:db8::1", 0x0102), endpoint("2001:db8::2", 0x0304)


def test_addresses_are_read() -> None:
    assert read(header(PROXY, TCP4, V4)) == ProxyHeader(source=CLIENT4)
    assert read(header(PROXY, TCP6, V6)) == ProxyHeader(source=CLIENT6)


def test_a_mapped_address_is_that_of_ipv4() -> None:
    mapped = bytes(10) + b"\xff\xff" + V4[:4] + bytes(10) + b"\xff\xff" + V4[4:8] + V4[8:]
    assert read(header(PROXY, TCP6, mapped)) == ProxyHeader(source=CLIENT4)


def test_connections_without_an_address() -> None:
    without = {
        "a health check": header(LOCAL, 0),
        "a health check with addresses": header(LOCAL, TCP4, V4),
        "a health check of an unknown family": header(LOCAL, 0xFF, b"abc"),
        "an unspecified family": header(PROXY, 0, b"anything"),
        "an unspecified family with a transport": header(PROXY, 0x01),
        "an unspecified transport": header(PROXY, 0x10, V4),
        "a UNIX socket": header(PROXY, UNIX_STREAM, bytes(216)),
        "a UNIX socket with a TLV": header(PROXY, UNIX_DATAGRAM, bytes(216), tlv(4, b"")),
        "datagrams": header(PROXY, UDP4, V4),
    }
    for label, data in without.items():
        assert read(data) == ProxyHeader(source=None), label


def test_bytes_of_the_client_follow() -> None:
    for data in (header(PROXY, TCP4, V4), header(LOCAL, 0), header(PROXY, TCP6, V6, tlv(5, bytes(128)))):
        assert read(data + b"\0\0\0\x10the first frame") == read(data)
        assert read_header(data[:-1]) is None


def test_tlvs_are_skipped() -> None:
    tlvs = (tlv(1, b"h2"), tlv(2, b"broker-1.example"), tlv(4, b""), tlv(0x20, bytes(40)), tlv(0xEE, bytes(300)))
    data = header(PROXY, TCP4, V4, *tlvs)
    assert read(data) == ProxyHeader(source=CLIENT4)
    assert read_header(data[:-1]) is None


def test_the_checksum_is_verified() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the polynomial
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 7143 appendix A.4
    data = checked(PROXY, TCP6, V6, tlv(2, b"name"))
    assert read(data).source == CLIENT6
    kind_at = FIXED_BYTES + len(V6)
    for at in range(FIXED_BYTES, len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if at == kind_at:  # then there is no checksum
            assert read(changed).source == CLIENT6
        else:
            with pytest.raises(MalformedFrame):
                read_header(changed)
    for wrong in (tlv(3, b""), tlv(3, bytes(5)), tlv(3, bytes(4))):
        with pytest.raises(MalformedFrame, match="checksum"):
            read_header(header(PROXY, TCP4, V4, wrong))
    with pytest.raises(MalformedFrame, match="two checksums"):
        read_header(checked(PROXY, TCP4, V4, tlv(3, bytes(4))))


MALFORMED = {
    "the end of the signature": (SIGNATURE[:-1] + b"\r" + bytes(4), "no header of PROXY protocol version 2"),
    "a Kafka frame": (b"\0\0\0\x20\0\x12\0\3", "no header of PROXY protocol version 2"),
    "version 1": (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", "version 1 of the PROXY protocol"),
    "version 3": (SIGNATURE + b"\x31", "version 3 of the PROXY protocol, in place of version 2"),
    "command 2": (header(0x22, TCP4, V4), "no command 2"),
    "family 4": (header(PROXY, 0x41, V4), "no address family 4 with transport 1"),
    "transport 3": (header(PROXY, 0x13, V4), "no address family 1 with transport 3"),
    "no room for IPv4": (header(PROXY, TCP4, V4[:-1]), "27 bytes has no room for addresses of family 1"),
    "no room for IPv6": (header(PROXY, TCP6, V4), "28 bytes has no room for addresses of family 2"),
    "no room for UNIX": (header(PROXY, UNIX_STREAM, bytes(215)), "231 bytes has no room for addresses of family 3"),
    "half a TLV": (header(PROXY, TCP4, V4, b"\4\0"), "2 bytes after the last TLV"),
    "a long TLV": (header(PROXY, TCP4, V4, b"\4\0\2a"), "the TLV 0x04 of a header of the PROXY protocol is longer"),
    "too long": (header(LOCAL, 0, size=MAX_HEADER_BYTES - 15), f"4097 bytes is longer than {MAX_HEADER_BYTES}"),
    "far too long": (header(PROXY, TCP4, size=0xFFFF), f"65551 bytes is longer than {MAX_HEADER_BYTES}"),
}
OTHERS = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP": b"GET / HTTP/1.1\r\n",
}


def test_malformed_headers_are_refused_with_their_reason() -> None:
    for label, (data, reason) in MALFORMED.items():
        with pytest.raises(MalformedFrame, match=reason) as found:
            read_header(data)
        assert not isinstance(found.value, OtherProtocol), label


def test_other_protocols_are_named() -> None:
    for protocol, data in OTHERS.items():
        with pytest.raises(OtherProtocol) as found:
            read_header(data)
        assert found.value.protocol == protocol


def test_the_longest_header() -> None:
    data = header(PROXY, TCP4, V4, tlv(4, bytes(MAX_HEADER_BYTES - 31)))
    assert len(data) == MAX_HEADER_BYTES
    assert read(data + b"more") == ProxyHeader(source=CLIENT4)
    assert read_header(data[:-1]) is None


def verdict(data: bytes) -> ProxyHeader | str | None:
    try:
        return read_header(bytearray(data))
    except MalformedFrame as error:
        return str(error)


starts = st.sampled_from(
    [SIGNATURE, SIGNATURE + b"\x21\x11", SIGNATURE + b"\x20\0", b"", b"PROXY ", b"\x16\x03\x01", b"\r\n"]
)
random_headers = st.one_of(
    st.builds(lambda start, rest: start + rest, starts, st.binary(max_size=300)),
    st.builds(
        header,
        st.sampled_from([LOCAL, PROXY, 0x22]),
        st.sampled_from([0, TCP4, UDP4, TCP6, UNIX_STREAM, 0x44]),
        st.sampled_from([V4, V6, bytes(216), b""]),
        st.binary(max_size=8) | st.builds(tlv, st.integers(0, 255), st.binary(max_size=5)),
    ),
    st.sampled_from([data for data, _ in MALFORMED.values()]),
)


@given(random_headers)
def test_any_split_has_the_same_result(data: bytes) -> None:
    """Each beginning needs more bytes, or has already the result of the whole."""
    results = [verdict(data[:size]) for size in range(len(data) + 1)]
    decided = [result for result in results if result is not None]
    assert all(result == decided[0] for result in decided)
    first = next((size for size, result in enumerate(results) if result is not None), None)
    if isinstance(decided[0] if decided else None, ProxyHeader):
        assert isinstance(decided[0], ProxyHeader)
        assert size_of(data) == first


addresses = st.ip_addresses()
endpoints = st.builds(lambda address, port: Endpoint(address=address, port=port), addresses, st.integers(0, 65535))


@given(endpoints, endpoints, st.binary(max_size=20))
def test_what_is_written_is_read(source: Endpoint, destination: Endpoint, following: bytes) -> None:
    data = write_header(source, destination)
    both_ipv4 = source.address.version == destination.address.version == 4
    assert len(data) == (28 if both_ipv4 else 52)
    packed = [_packed(each, mapped=not both_ipv4) for each in (source, destination)]
    ports = [each.port.to_bytes(2, "big") for each in (source, destination)]
    assert data == header(PROXY, TCP4 if both_ipv4 else TCP6, *packed, *ports)
    address = getattr(source.address, "ipv4_mapped", None) or source.address
    assert read(data + following) == ProxyHeader(source=Endpoint(address=address, port=source.port))


def _packed(endpoint: Endpoint, *, mapped: bool) -> bytes:
    packed = endpoint.address.packed
    return bytes(10) + b"\xff\xff" + packed if mapped and len(packed) == 4 else packed


def test_what_is_written() -> None:
    assert write_header(CLIENT4, SERVER4) == header(PROXY, TCP4, V4)
    assert write_header(CLIENT6, SERVER6) == header(PROXY, TCP6, V6)
    assert write_header(None, None) == header(LOCAL, 0)
    mixed = write_header(CLIENT4, SERVER6)
    assert read(mixed) == ProxyHeader(source=CLIENT4)
    assert mixed[FIXED_BYTES + 10 : FIXED_BYTES + 16] == b"\xff\xff" + V4[:4]


def test_what_cannot_be_written() -> None:
    for source, destination in ((CLIENT4, None), (None, SERVER4)):
        with pytest.raises(UnencodableValue, match="two addresses or none"):
            write_header(source, destination)
    for port in (-1, 65536):
        with pytest.raises(UnencodableValue, match=f"{port} is not a port"):
            write_header(CLIENT4, Endpoint(address=SERVER4.address, port=port))


# --- HAProxy ---

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
CONFIGURATION = """\
global
    maxconn 1000
defaults
    mode tcp
    timeout connect 10s
    timeout client 10s
    timeout server 10s
    unique-id-format %[uuid()]
frontend clients
    bind fd@{listener}
    default_backend receiver
backend receiver
    server receiver 127.0.0.1:{port} send-proxy-v2 {options}
"""


def from_haproxy(directory: Path, family: socket.AddressFamily, options: str) -> tuple[bytes, Endpoint, Endpoint]:
    """The bytes that HAProxy sends for a connection with the bytes ``hello``; its client's address, and its own."""
    assert HAPROXY is not None
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with (
        socket.create_server((host, 0), family=family) as listener,
        socket.create_server(("127.0.0.1", 0)) as receiver,
    ):
        receiver.settimeout(DEADLINE_S)
        port = receiver.getsockname()[1]
        file = directory / "haproxy.cfg"
        file.write_text(CONFIGURATION.format(listener=listener.fileno(), port=port, options=options), encoding="ascii")
        with subprocess.Popen([HAPROXY, "-db", "-f", str(file)], pass_fds=[listener.fileno()]) as program:
            try:
                with socket.create_connection(listener.getsockname()[:2], DEADLINE_S) as client:
                    client.sendall(b"hello")
                    client.shutdown(socket.SHUT_WR)
                    sender, _ = receiver.accept()
                    with sender, sender.makefile("rb") as stream:
                        sender.settimeout(DEADLINE_S)
                        data = stream.read()
                    source = endpoint(*client.getsockname()[:2])
                    return data, source, endpoint(*listener.getsockname()[:2])
            finally:
                program.terminate()
                program.wait(DEADLINE_S)


@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
def test_the_headers_of_haproxy(tmp_path: Path) -> None:
    families = [socket.AF_INET, socket.AF_INET6] if socket.has_dualstack_ipv6() else [socket.AF_INET]
    for family in families:
        for options in ("", "proxy-v2-options crc32c,unique-id"):
            data, source, destination = from_haproxy(tmp_path, family, options)
            size = size_of(data)
            assert read(data) == ProxyHeader(source=source)
            assert data[size:] == b"hello"
            if options:
                assert size > len(write_header(source, destination)) + 36  # the checksum and a UUID
                with pytest.raises(MalformedFrame, match="does not match its checksum"):
                    read_header(data[: size - 1] + bytes([data[size - 1] ^ 1]))
            else:
                assert data[:size] == write_header(source, destination)
