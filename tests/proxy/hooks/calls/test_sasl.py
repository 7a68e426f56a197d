"""Calling the hooks for SASL exchanges: the first answer counts, and a plugin that raises is skipped."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio

from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.requests import Address, Connection
from headrace.quota_callbacks.sasl import SaslRefused, SaslStep, UpstreamSasl
from headrace.quota_callbacks.secret_sources import SecretError, SecretSource

CONNECTION = Connection(connection_id=1, peer=Address(host="192.0.2.1", port=1))
SETTINGS = UpstreamSasl(mechanism="OURS", user="proxy", password=SecretSource(env="HIDDEN"))


class Accepts:
    """A server's exchange that accepts one word."""

    blocks = False

    def __init__(self, user: str) -> None:
        self.user = user

    def respond(self, token: bytes) -> SaslStep:
        if token != b"word":
            raise SaslRefused("another word", user=self.user)
        return SaslStep(principal=self.user, lifetime_s=60.0)


class FakeExchange:
    """A client's exchange of one token."""

    def __init__(self, settings: UpstreamSasl) -> None:
        self.user = settings.user

    async def respond(self, challenge: bytes | None) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return f"{self.user}".encode() if challenge is None else None


class Ours:
    headrace_hooks = HOOK_VERSION

    @hookimpl
    def sasl_server_exchange(self, connection: Connection, mechanism: str) -> Accepts | None:
        return Accepts(connection.peer.host) if mechanism == "OURS" else None

    @hookimpl
    def sasl_client_exchange(self, connection: Connection | None, settings: UpstreamSasl) -> FakeExchange | None:
        return FakeExchange(settings) if settings.mechanism == "OURS" and connection is None else None


class Raises:
    headrace_hooks = HOOK_VERSION

    @hookimpl(tryfirst=True)
    def sasl_server_exchange(self) -> Any:
        raise KeyError("broken")

    @hookimpl(tryfirst=True)
    def sasl_client_exchange(self) -> Any:
        raise KeyError("broken")


def hooks_of(**plugins: Any) -> HookCalls:
    manager = new_plugin_manager()
    for name, plugin in plugins.items():
        register(manager, name, plugin)
    return HookCalls(manager)


async def test_the_first_exchange_is_used() -> None:
    sasl = hooks_of(ours=Ours()).sasl
    assert sasl.server_exchange(CONNECTION, "OTHERS") is None
    assert sasl.client_exchange(CONNECTION, SETTINGS) is None
    server, client = sasl.server_exchange(CONNECTION, "OURS"), sasl.client_exchange(None, SETTINGS)
    assert server is not None
    assert client is not None
    assert server[0] == client[0] == "ours"
    assert server[1].respond(b"word") == SaslStep(principal="192.0.2.1", lifetime_s=60.0)
    with pytest.raises(SaslRefused, match="another word"):
        server[1].respond(b"x")
    assert await client[1].respond(None) == b"proxy"
    assert await client[1].respond(b"") is None


def test_the_plugin_that_was_registered_last_is_asked_first() -> None:
    sasl = hooks_of(first=Ours(), last=Ours()).sasl
    for found in (sasl.server_exchange(CONNECTION, "OURS"), sasl.client_exchange(None, SETTINGS)):
        assert found is not None
        assert found[0] == "last"


def test_a_plugin_that_raises_is_skipped_and_counted() -> None:
    hooks = hooks_of(ours=Ours(), raises=Raises())
    assert hooks.sasl.server_exchange(CONNECTION, "OURS") is not None
    assert hooks.sasl.client_exchange(None, SETTINGS) is not None
    assert hooks.failures == {"raises": 2}


def test_exceptions_of_exchanges_are_counted_by_plugin() -> None:
    hooks = hooks_of(ours=Ours())
    hooks.sasl.server_failed("ours", RuntimeError("x"))
    hooks.sasl.client_failed("ours", RuntimeError("x"))
    assert hooks.failures == {"ours": 2}


async def test_a_cancellation_passes() -> None:
    hooks = hooks_of(ours=Ours())
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            hooks.sasl.client_failed("ours", error)
    assert scope.cancelled_caught
    assert hooks.errors == 0


def test_a_variable_that_is_not_utf_8_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", os.fsdecode(b"hidden-word\xff"))
    with pytest.raises(SecretError) as caught:
        SecretSource(env="HIDDEN").read()
    assert str(caught.value) == "the variable HIDDEN: the variable is not UTF-8"
