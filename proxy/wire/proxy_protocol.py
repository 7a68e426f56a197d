"""The header of PROXY protocol version 2, with which a load balancer states the address of its client.

`read_header` reads it from the first bytes of a connection, `write_header` writes it for a broker. Whether a sender is
trusted is the caller's question: a header is as true as its sender. Version 1, which is text, is refused.

Source: HAProxy's ``proxy-protocol.txt`` section 2.2; RFC 9260 appendix A for CRC32c.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import Final

from headrace.proxy.wire.errors import MalformedFrame, OtherProtocol, UnencodableValue
from headrace.proxy.wire.other_protocols import HTTP, NEEDED_BYTES, TLS, other_protocol

Buffer = bytes | bytearray | memoryview
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
FIXED_BYTES: Final = 16
"""Signature, version and command, family and transport, length of the rest."""
MAX_HEADER_BYTES: Final = 4096
"""Maximum length of a header that is accepted. The specification promises 536 bytes at most; TLS certificate names and
unique ids in TLVs can exceed that. HAProxy's own limit is the size of its buffer, 16 KiB."""

_VERSION: Final = 2
_VERSION_1: Final = b"PROX"  # followed by Y
_LOCAL, _PROXY = 0, 1
_UNSPECIFIED, _IPV4, _IPV6, _UNIX = range(4)
_NO_TRANSPORT, _STREAM, _DATAGRAM = range(3)
_ADDRESSES: Final = {
    _IPV4: struct.Struct(">4s4sHH"),
    _IPV6: struct.Struct(">16s16sHH"),
    _UNIX: struct.Struct("108s108s"),
}
_TLV: Final = struct.Struct(">BH")
_CRC32C_TYPE: Final = 0x03
_CRC32C_BYTES: Final = 4
_PORTS: Final = range(65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An IP address and a port."""

    address: IpAddress
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyHeader:
    """A header that was read."""

    source: Endpoint | None
    """The client; ``None`` if the connection is the sender's own, such as a health check, or did not come by TCP. Then
    the addresses of the connection itself count. An IPv4 address that is mapped to IPv6 is given as IPv4."""


def read_header(buffer: Buffer) -> ProxyHeader | None:
    """Return the header that the bytes begin with, or ``None`` if more bytes are needed.

    Raises `MalformedFrame` for all other bytes, from the fourth on; it is an `OtherProtocol` if they are TLS or HTTP.
    TLVs are skipped, except for the checksum, which is verified.
    """
    data = bytes(buffer[:MAX_HEADER_BYTES])
    _check_signature(data)
    if len(data) < FIXED_BYTES:
        return None
    command, family, transport = data[12] & 0x0F, data[13] >> 4, data[13] & 0x0F
    if command not in (_LOCAL, _PROXY):
        raise MalformedFrame(f"the PROXY protocol has no command {command}")
    size = FIXED_BYTES + int.from_bytes(data[14:16], "big")
    if size > MAX_HEADER_BYTES:
        raise MalformedFrame(f"a header of the PROXY protocol of {size} bytes is longer than {MAX_HEADER_BYTES}")
    if command == _PROXY and (family > _UNIX or transport > _DATAGRAM):
        raise MalformedFrame(f"the PROXY protocol has no address family {family} with transport {transport}")
    if len(data) < size:
        return None
    if command == _LOCAL or family == _UNSPECIFIED or transport == _NO_TRANSPORT:  # what follows has to be skipped
        return ProxyHeader(source=None)
    return _read_addresses(data[:size], family, transport)


def _check_signature(data: bytes) -> None:
    """Raise `MalformedFrame` unless the bytes begin with the signature and the version, as far as there are any."""
    known = min(len(data), len(SIGNATURE))
    if data[:known] != SIGNATURE[:known] and known >= NEEDED_BYTES:
        protocol = other_protocol(bytearray(data), 0, known)
        if protocol in (TLS, HTTP):
            raise OtherProtocol(protocol)
        if data.startswith(_VERSION_1):
            raise MalformedFrame("version 1 of the PROXY protocol, in place of version 2")
        raise MalformedFrame("no header of PROXY protocol version 2")
    if len(data) > len(SIGNATURE) and data[known] >> 4 != _VERSION:
        raise MalformedFrame(f"version {data[known] >> 4} of the PROXY protocol, in place of version {_VERSION}")


def _read_addresses(header: bytes, family: int, transport: int) -> ProxyHeader:
    addresses = _ADDRESSES[family]
    if len(header) < FIXED_BYTES + addresses.size:
        raise MalformedFrame(
            f"a header of the PROXY protocol of {len(header)} bytes has no room for addresses of family {family}"
        )
    _check_tlvs(header, FIXED_BYTES + addresses.size)
    if family == _UNIX or transport != _STREAM:
        return ProxyHeader(source=None)
    source, _, port, _ = addresses.unpack_from(header, FIXED_BYTES)
    return ProxyHeader(source=Endpoint(address=_unmapped(source), port=port))


def _unmapped(packed: bytes) -> IpAddress:
    address = ipaddress.ip_address(packed)
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def _check_tlvs(header: bytes, at: int) -> None:
    """Check that the TLVs fill the header, and the checksum if it is among them."""
    checked = False
    while at < len(header):
        if len(header) - at < _TLV.size:
            raise MalformedFrame(f"{len(header) - at} bytes after the last TLV of a header of the PROXY protocol")
        kind, size = _TLV.unpack_from(header, at)
        at += _TLV.size
        if size > len(header) - at:
            raise MalformedFrame(f"the TLV {kind:#04x} of a header of the PROXY protocol is longer than the header")
        if kind == _CRC32C_TYPE:
            if checked:  # each takes up to half a millisecond
                raise MalformedFrame("two checksums in a header of the PROXY protocol")
            _check_checksum(header, at, size)
            checked = True
        at += size


def _check_checksum(header: bytes, at: int, size: int) -> None:
    if size != _CRC32C_BYTES:
        raise MalformedFrame(f"a checksum of {size} bytes in a header of the PROXY protocol")
    stated = int.from_bytes(header[at : at + size], "big")
    if stated != crc32c(header[:at] + bytes(size) + header[at + size :]):
        raise MalformedFrame("a header of the PROXY protocol does not match its checksum")


def write_header(source: Endpoint | None, destination: Endpoint | None) -> bytes:
    """Return the header for a connection of ``source`` to ``destination``; without both, that of a LOCAL connection.

    If only one address is IPv6, the other is written as an IPv4-mapped one. Raises `UnencodableValue` for a port that
    does not fit, and if only one endpoint is given.
    """
    if source is None and destination is None:
        return SIGNATURE + bytes([_VERSION << 4 | _LOCAL, _UNSPECIFIED, 0, 0])
    if source is None or destination is None:
        raise UnencodableValue("a header of the PROXY protocol has two addresses or none")
    for endpoint in (source, destination):
        if endpoint.port not in _PORTS:
            raise UnencodableValue(f"{endpoint.port} is not a port")
    addresses = source.address, destination.address
    family = _IPV4 if all(address.version == 4 for address in addresses) else _IPV6
    packed = (address.packed if family == _IPV4 else _as_ipv6(address) for address in addresses)
    body = _ADDRESSES[family].pack(*packed, source.port, destination.port)
    fixed = bytes([_VERSION << 4 | _PROXY, family << 4 | _STREAM]) + len(body).to_bytes(2, "big")
    return SIGNATURE + fixed + body


def _as_ipv6(address: IpAddress) -> bytes:
    return address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed


def _crc32c_table() -> tuple[int, ...]:
    """Return the remainders of each byte by the polynomial of CRC32c, with the lowest bit first."""
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
        table.append(remainder)
    return tuple(table)


_CRC32C_TABLE: Final = _crc32c_table()


def crc32c(data: bytes) -> int:
    """Return the CRC32c (Castagnoli) of some bytes: 0.1 ms for a KiB."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = remainder >> 8 ^ _CRC32C_TABLE[(remainder ^ byte) & 0xFF]
    return remainder ^ 0xFFFFFFFF
