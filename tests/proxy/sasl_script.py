"""Scripts of SASL at a broker: handshakes, tokens and their answers, and what plugins see of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from tests.proxy.playbook import Book, reply, request

if TYPE_CHECKING:
    from headrace.quota_callbacks.requests import Request

METADATA, HEARTBEAT, API_VERSIONS = ApiKey.METADATA, ApiKey.HEARTBEAT, ApiKey.API_VERSIONS
HANDSHAKE, AUTHENTICATE = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE
FAILED, ILLEGAL_STATE, UNSUPPORTED_MECHANISM = 58, 34, 33
ALICE = b"\0alice\0correct-horse"
BOB = b"\0bob\0battery-staple"
LIFETIME_MS = 60_000


class Charges:
    """Records the user that each request is charged to, and whether it is part of an authentication."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.requests: list[tuple[int, str, bool]] = []
        self.replies: list[tuple[int, str]] = []
        self.completed: list[Request] = []

    @hookimpl
    def request_received(self, request: Request) -> None:
        connection = request.connection
        self.requests.append((request.api_key, connection.user, connection.authenticating))

    @hookimpl
    def response_received(self, request: Request) -> None:
        self.replies.append((request.api_key, request.connection.user))

    @hookimpl
    def request_completed(self, request: Request) -> None:
        self.completed.append(request)


def plugins(charges: Charges | None = None, **more: Any) -> dict[str, Any]:
    return {"sasl_identity": SaslIdentity(), "charges": charges or Charges(), **more}


def user(book: Book) -> str:
    return book.connection.info.user


async def shake(book: Book, mechanism: str, *, version: int = 1, error: int = 0, number: int = 1) -> None:
    answer = reply(HANDSHAKE, version, number, error_code=error, mechanisms=[mechanism])
    asked = request(HANDSHAKE, version, number, mechanism=mechanism)
    assert await book.round_trip(asked, answer) == answer


async def exchange(
    book: Book, token: bytes, answer: bytes = b"", *, version: int = 2, error: int = 0, **fields: Any
) -> None:
    """Send a SaslAuthenticate and its answer, and check that the client gets that answer."""
    asked = request(AUTHENTICATE, version, 7, auth_bytes=token)
    answered = reply(AUTHENTICATE, version, 7, error_code=error, auth_bytes=answer, **fields)
    assert await book.round_trip(asked, answered) == answered


async def beat(book: Book, number: int = 9) -> None:
    answer = reply(HEARTBEAT, 4, number)
    assert await book.round_trip(request(HEARTBEAT, 4, number), answer) == answer
