"""HTTP requests to an identity provider, with bounded time and size.

Each request has a client of its own, which is closed with it: nothing is shared between event loops, and a request is
made once per token or refresh of keys. Redirects are not followed: they could lead a secret elsewhere. Proxies of the
environment (``HTTPS_PROXY``, ``NO_PROXY``) are used for HTTPS only, since a proxy sees what is not encrypted.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httpx  # noqa: ASYNC127 -- the package of the extra oauth; whether httpx2 replaces it is decided there
import trio

from headrace.plugins.sasl_oauth.endpoints import is_encrypted, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S: Final = 10.0
"""Time for a request, from connecting to the last byte of the answer. Kafka's clients have 10 s for connecting
(``sasl.login.connect.timeout.ms``) and as long for reading."""

LONGEST_ANSWER_BYTES: Final = 256 * 1024
"""Largest answer that is read: a set of 100 RSA keys with certificates, or a token of any usual size."""


class RequestError(Exception):
    """A request has failed. ``str()`` names the URL, without its query, and the reason; it contains no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request, with any status."""

    status: int
    body: bytes = field(repr=False)


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return the settings of TLS: the authorities in ``ca_file``, or those of the system. Blocks: it reads files.

    Raises `OSError`, of which `ssl.SSLError` is a kind.
    """
    return ssl.create_default_context(cafile=ca_file)


async def request(
    method: str,
    url: str,
    *,
    tls: ssl.SSLContext,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Answer:
    """Send a request, and return its answer. Raises `RequestError`. A cancelled request is aborted."""
    try:
        with trio.fail_after(timeout_s):
            return await _request(method, url, tls, {"Accept": "application/json", **(headers or {})}, content)
    except trio.TooSlowError:
        raise RequestError(f"{shown(url)} did not answer within {timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise RequestError(f"{shown(url)} cannot be reached: {_reason(error)}") from error


async def _request(
    method: str, url: str, tls: ssl.SSLContext, headers: Mapping[str, str], content: bytes | None
) -> Answer:
    client = _client_for(url, tls)
    plain = {**headers, "Accept-Encoding": "identity"}  # a compressed answer could become much longer than it is sent
    async with client, client.stream(method, url, headers=plain, content=content) as answer:
        body = bytearray()
        with trio.CancelScope() as reading:
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > LONGEST_ANSWER_BYTES:
                    reading.cancel()  # leaving the loop would abandon httpx's nested generators
        if len(body) > LONGEST_ANSWER_BYTES:
            raise RequestError(f"{shown(url)} sent more than {LONGEST_ANSWER_BYTES} bytes")
        return Answer(status=answer.status_code, body=bytes(body))


def _client_for(url: str, tls: ssl.SSLContext) -> httpx.AsyncClient:
    try:
        return httpx.AsyncClient(
            verify=tls,
            timeout=None,  # noqa: S113 -- the caller's deadline is for the whole request
            follow_redirects=False,
            trust_env=is_encrypted(url),
        )
    except (ValueError, httpx.InvalidURL, ImportError) as error:
        # httpx quotes the URL of a proxy, or a part of it, which may have a password.
        reason = str(error) if isinstance(error, ImportError) else "it is not a URL that can be used"
        raise RequestError(f"{shown(url)} cannot be reached: the proxy in HTTPS_PROXY or ALL_PROXY: {reason}") from None


def _reason(error: Exception) -> str:
    """Return the innermost description of what went wrong: httpx describes failures of TLS by an empty text."""
    reason = type(error).__name__
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, BaseExceptionGroup):
        reason = str(cause) or reason
        cause = cause.__cause__ or cause.__context__
    return reason
