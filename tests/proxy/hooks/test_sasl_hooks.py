"""The hooks for authentications that the proxy takes part in: the first plugin that knows the mechanism is used."""

from __future__ import annotations

from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.requests import Address, Connection
from headrace.quota_callbacks.sasl import ClientExchange, SaslStep, ServerExchange, UpstreamSasl

CLIENT = Connection(connection_id=1, peer=Address(host="h", port=1))


class Accepting:
    """Accepts every client as the user ``name``."""

    blocks = False

    def __init__(self, name: str) -> None:
        self.name = name

    def respond(self, _token: bytes) -> SaslStep:
        return SaslStep(principal=self.name)


class Sending:
    """Sends one token."""

    def __init__(self, token: bytes) -> None:
        self.token = token

    async def respond(self, challenge: bytes | None) -> bytes | None:
        return self.token if challenge is None else None


class Knows:
    """A plugin that knows some mechanisms."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, name: str, *mechanisms: str) -> None:
        self.name = name
        self.mechanisms = mechanisms

    @hookimpl
    def sasl_server_exchange(self, connection: Connection, mechanism: str) -> ServerExchange | None:
        assert connection is CLIENT
        return Accepting(self.name) if mechanism in self.mechanisms else None

    @hookimpl
    def sasl_client_exchange(self, connection: Connection | None, settings: UpstreamSasl) -> ClientExchange | None:
        assert connection in (CLIENT, None)
        return Sending(self.name.encode()) if settings.mechanism in self.mechanisms else None


async def test_the_plugin_that_was_registered_last_is_asked_first() -> None:
    manager = new_plugin_manager()
    for plugin in (Knows("first", "PLAIN", "OAUTHBEARER"), Knows("second", "PLAIN")):
        register(manager, plugin.name, plugin)
    for mechanism, name in (("PLAIN", "second"), ("OAUTHBEARER", "first")):
        exchange = manager.hook.sasl_server_exchange(connection=CLIENT, mechanism=mechanism)
        assert exchange.respond(b"token").principal == name
        for connection in (CLIENT, None):
            sender = manager.hook.sasl_client_exchange(
                connection=connection, settings=UpstreamSasl(mechanism=mechanism)
            )
            assert await sender.respond(None) == name.encode()
    assert manager.hook.sasl_server_exchange(connection=CLIENT, mechanism="GSSAPI") is None
    assert manager.hook.sasl_client_exchange(connection=None, settings=UpstreamSasl(mechanism="GSSAPI")) is None
