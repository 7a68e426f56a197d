"""The host name of a ClientHello: what Python's client sends, and any bytes."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.errors import ClientFault
from headrace.proxy.network.tls.client_hello import MAX_EXTENSIONS, server_name
from tests.security.tls.handshakes import client_hello


def hello(name: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = version
    return client_hello(context, name)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", ["broker-7.kafka.example.com", "a", None])
def test_what_pythons_client_asks_for(name: str | None, version: ssl.TLSVersion) -> None:
    assert server_name(hello(name, version)) == name


def test_a_hello_that_is_cut_off_names_nothing_or_the_same() -> None:
    whole = hello("broker-7.kafka.example.com")
    assert {server_name(whole[:size]) for size in range(len(whole))} <= {None, "broker-7.kafka.example.com"}


def with_extensions(count: int, name: str) -> bytes:
    """Return a hello with ``count`` extensions without content before the name that Python's client asks for."""
    whole = hello(name)
    at = 43 + 1 + whole[43]
    at += 2 + int.from_bytes(whole[at : at + 2], "big")
    at += 1 + whole[at]
    more = b"\xff\x01\x00\x00" * count
    length = int.from_bytes(whole[at : at + 2], "big") + len(more)
    return whole[:at] + length.to_bytes(2, "big") + more + whole[at + 2 :]


def test_a_hello_has_a_bounded_number_of_extensions() -> None:
    assert server_name(with_extensions(MAX_EXTENSIONS // 2, "a")) == "a"
    with pytest.raises(ClientFault, match="more than 100 extensions"):
        server_name(with_extensions(4_000, "a"))


@given(at=st.integers(0, 300), data=st.binary(max_size=20))
def test_any_bytes_are_read(at: int, data: bytes) -> None:
    whole = hello("broker-7.kafka.example.com")
    found = server_name(whole[:at] + data + whole[at + len(data) :])
    assert found is None or found.isascii()
