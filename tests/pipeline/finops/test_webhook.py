"""Posting alerts to a real HTTP server: headers, repetitions, redirects, and a server that does not answer."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from headrace.pipeline.errors import InputError, OutputError
from headrace.pipeline.finops.webhook import ATTEMPTS, FIRST_PAUSE_S, check_webhook, post
from tests.pipeline.finops.http_server import Receiver, receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENT = '{"alerts": []}'


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with receiver() as running:
        yield running


def test_a_document_is_posted_with_a_token(server: Receiver) -> None:
    post(server.url, DOCUMENT, "s3cret", pytest.fail)
    post(server.url, DOCUMENT, None, pytest.fail)
    (method, headers, document), (_, without, _) = server.received
    assert (method, document) == ("POST", {"alerts": []})
    assert (headers["content-type"], headers["authorization"]) == ("application/json", "Bearer s3cret")
    assert "authorization" not in without


@pytest.mark.parametrize("answers", [[503, 429], [0, 500], [408]])
def test_a_failure_that_may_go_away_is_repeated_after_a_pause(server: Receiver, answers: list[int]) -> None:
    server.answers = list(answers)
    pauses: list[float] = []
    post(server.url, DOCUMENT, None, pauses.append)
    assert len(server.received) == len(answers) + 1
    assert pauses == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S][: len(answers)]


def test_after_some_attempts_it_fails_and_the_message_has_no_secret(server: Receiver) -> None:
    server.answers = [500] * 9
    with pytest.raises(OutputError) as error:
        post(server.url, DOCUMENT, "s3cret", lambda _: None)
    assert str(error.value) == f"--webhook http://127.0.0.1:{server.server_port}: HTTP status 500"
    assert len(server.received) == ATTEMPTS


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 400, 401, 404])
def test_redirects_and_refusals_are_final(server: Receiver, status: int) -> None:
    server.answers = [status]
    with pytest.raises(OutputError, match=f"HTTP status {status}"):
        post(server.url, DOCUMENT, "s3cret", pytest.fail)
    assert [method for method, _, _ in server.received] == ["POST"]


def test_a_server_that_is_not_there_and_one_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr("headrace.pipeline.finops.webhook.TIMEOUT_S", 0.05)
        with pytest.raises(OutputError, match="timed out"):
            post(f"http://127.0.0.1:{port}/", DOCUMENT, None, lambda _: None)
    with pytest.raises(OutputError, match=f"--webhook http://127.0.0.1:{port}: connection refused"):
        post(f"http://127.0.0.1:{port}/", DOCUMENT, None, lambda _: None)


@pytest.mark.parametrize(
    ("url", "token", "expected"),
    [
        ("ftp://host/x", None, "expected an address that begins with http:// or https://"),
        ("file:///etc/passwd", None, "expected an address"),
        ("http://", None, "expected an address"),
        ("http://host:x/", None, "expected an address"),
        ("https://host/a b", None, "expected an address"),
        ("https://host/a\r\nb", None, "expected an address"),
        ("https://me:pass@host/", None, "--webhook https://host: contains a user"),
        ("https://host/", "two words", "--webhook-token-file: expected one line"),
        ("https://host/", "a\nb", "--webhook-token-file: expected one line"),
        ("https://host/", "", "--webhook-token-file: expected one line"),
    ],
)
def test_addresses_and_tokens_are_checked(url: str, token: str | None, expected: str) -> None:
    with pytest.raises(InputError) as error:
        check_webhook(url, token)
    assert expected in str(error.value)
    assert "pass" not in str(error.value)


def test_valid_addresses() -> None:
    for url in ("https://host/x?y=1", "http://127.0.0.1:80", "https://[::1]:8443/x"):
        check_webhook(url, "t0ken")
