"""What bounds a request, and which proxies of the environment it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from headrace.plugins.sasl_oauth.endpoints import LONGEST_URL, check_url, shown
from headrace.plugins.sasl_oauth.http_requests import TIMEOUT_S, RequestError, request, tls_context
from tests.plugins.sasl_oauth.identity_provider import identity_provider

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.plugins.sasl_oauth.identity_provider import Authority, IdentityProvider

NO_PROXY_THERE = "http://127.0.0.1:1"


async def test_a_server_that_does_not_answer(
    mock_clock: MockClock, provider: IdentityProvider, authority: Authority
) -> None:
    provider.hold()
    errors: list[str] = []

    async def ask() -> None:
        try:
            await request("GET", f"{provider.url}/?hidden", tls=tls_context(str(authority.file)))
        except RequestError as error:
            errors.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.to_thread.run_sync(provider.wait_for, 1)
        mock_clock.jump(TIMEOUT_S)
    assert errors == [f"{provider.url}/ did not answer within 10 s"]


def test_requests_in_several_event_loops(provider: IdentityProvider, authority: Authority) -> None:
    provider.serves(b"{}")

    async def ask() -> bytes:
        return (await request("GET", provider.url, tls=tls_context(str(authority.file)))).body

    assert [trio.run(ask) for _ in range(3)] == [b"{}"] * 3


async def test_proxies_are_used_for_https_only(
    provider: IdentityProvider, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, NO_PROXY_THERE)
    with pytest.raises(RequestError, match="cannot be reached"):
        await request("GET", provider.url, tls=tls_context(str(authority.file)))
    with identity_provider() as plain:
        plain.serves(b"{}")
        assert (await request("GET", plain.url, tls=tls_context(None))).status == 200
    monkeypatch.setenv("NO_PROXY", "localhost")
    provider.serves(b"{}")
    assert (await request("GET", provider.url, tls=tls_context(str(authority.file)))).status == 200


@pytest.mark.parametrize("proxy", ["unknown://127.0.0.1:1", "socks5://127.0.0.1:1"])
async def test_a_proxy_that_cannot_be_used(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(RequestError, match=r"cannot be reached: .*([Pp]roxy|socks|refused)"):
        await request("GET", "https://idp.example.com", tls=tls_context(None))


@pytest.mark.parametrize(
    "url",
    [
        "https://idp.example.com/keys?a=b",
        "HTTPS://idp.example.com:8443",
        "http://localhost:8080/keys",
        "http://127.0.0.2/",
        "http://[::1]:80/",
    ],
)
def test_urls_that_may_be_used(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://idp.example.com/keys", "http is for loopback only"),
        ("http://192.0.2.1/", "http is for loopback only"),
        ("http://localhost.example.com/", "http is for loopback only"),
        ("http://127.0.0.1.example.com/", "http is for loopback only"),
        ("https://user:password@idp.example.com/", "a user name and password"),
        ("http://127.0.0.1@idp.example.com/", "a user name and password"),
        ("https://idp.example.com/#keys", "a fragment"),
        ("file:///etc/keys", "does not begin with https://"),
        ("idp.example.com", "does not begin with https://"),
        ("https://", "does not begin with https://"),
        ("", "does not begin with https://"),
        ("https://idp.example.com:0/", "the port is not a number from 1 to 65535"),
        ("https://idp.example.com:99999/", "[Pp]ort"),
        ("https://[::1/", "IPv6"),
        ("https://idp.example.com/\n", "printable ASCII"),
        ("https://idp.example.com/a b", "printable ASCII"),
        (f"https://idp.example.com/{'a' * LONGEST_URL}", f"at most {LONGEST_URL} characters"),
    ],
)
def test_urls_that_may_not_be_used(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_url(url)


def test_the_query_is_not_shown() -> None:
    assert shown("https://idp.example.com/keys?key=secret") == "https://idp.example.com/keys"
