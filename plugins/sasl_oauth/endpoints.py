"""Which URLs keys and tokens may be requested from, and how such a URL appears in messages. Pure."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

LONGEST_URL: Final = 2048
"""Longest URL in characters that is accepted; servers and proxies refuse longer ones."""


def check_url(url: str) -> None:
    """Raise `ValueError` with the reason if ``url`` may not be used. Keys and secrets need HTTPS, but for loopback."""
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"a URL has at most {LONGEST_URL} characters, all of them printable ASCII without spaces")
    parts = _split(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a user name and password in the URL would appear in messages; they are not accepted")
    if parts.fragment:
        raise ValueError("the URL has a fragment (#), which is never sent")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError("without encryption anyone on the way could replace the answer: http is for loopback only")


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("the URL does not begin with https:// and a host")
    try:
        port = parts.port
    except ValueError:  # whose text quotes what is behind the colon, which may be a password
        port = 0
    if port == 0:
        raise ValueError("the port is not a number from 1 to 65535")
    return parts


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is this machine: ``localhost`` or an address of the loopback interface."""
    if host.lower() == "localhost":  # RFC 6761, section 6.3
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_encrypted(url: str) -> bool:
    """Return whether requests to ``url`` use TLS."""
    return url[:6].lower() == "https:"


def shown(url: str) -> str:
    """Return ``url`` without its query, which may contain a secret, for messages."""
    return url.partition("?")[0]
