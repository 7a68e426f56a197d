"""The message of PLAIN, compared with Kafka's own server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.sasl.errors import ExchangeError
from headrace.proxy.sasl.plain import PlainMessage, plain_message, read_plain_message
from tests.proxy.sasl.kafka_sasl import JavaSaslError, plain_server

TEXT = st.text(min_size=1, max_size=50).filter(lambda text: "\0" not in text)


@given(user=TEXT, password=TEXT)
def test_what_is_written_is_read(user: str, password: str) -> None:
    assert read_plain_message(plain_message(user, password)) == PlainMessage(user=user, password=password)


MESSAGES = {
    b"\0alice\0secret": None,
    b"alice\0alice\0secret": None,
    "\0älice\0ßecret".encode(): None,
    b"bob\0alice\0secret": "the authorization id is not the user name",
    b"\0\0secret": "the user name is empty",
    b"\0alice\0": "the password is empty",
    b"": "1 parts, not 3",
    b"alice": "1 parts, not 3",
    b"alice\0secret": "2 parts, not 3",
    b"\0alice\0secret\0": "4 parts, not 3",
}


def test_kafkas_server_accepts_the_same_messages() -> None:
    for message, reason in MESSAGES.items():
        server = plain_server({"alice": "secret", "älice": "ßecret"})
        if reason is None:
            assert server.evaluate(message) == b""
            assert read_plain_message(message).user == server.user
            continue
        with pytest.raises(ExchangeError, match=reason):
            read_plain_message(message)
        with pytest.raises(JavaSaslError):
            server.evaluate(message)


def test_what_is_not_utf_8_is_refused_without_being_shown() -> None:
    with pytest.raises(ExchangeError, match="not UTF-8") as raised:
        read_plain_message(b"\0alice\0\xffsecret")
    assert raised.value.__cause__ is None
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(("user", "password"), [("a\0", "b"), ("a", "\0b")])
def test_a_zero_character_cannot_be_sent(user: str, password: str) -> None:
    with pytest.raises(ExchangeError, match="zero character cannot be sent by PLAIN"):
        plain_message(user, password)


def test_the_password_is_not_shown() -> None:
    assert "hidden-word" not in repr(read_plain_message(plain_message("u", "hidden-word")))
