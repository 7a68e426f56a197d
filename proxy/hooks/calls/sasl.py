"""Calling the hooks for SASL exchanges that the proxy takes part in; part of `hook_calls`.

The exchanges are code of plugins as well, whose calls are measured. Whoever calls one reports its exceptions, other
than `SaslRefused`, to `SaslCalls.server_failed` or `SaslCalls.client_failed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.hooks.implementations import Implementations
    from headrace.proxy.hooks.slow_calls import SlowCalls
    from headrace.quota_callbacks.requests import Connection
    from headrace.quota_callbacks.sasl import ClientExchange, SaslStep, ServerExchange, UpstreamSasl

_SERVER = "sasl_server_exchange"
_CLIENT = "sasl_client_exchange"


class SaslCalls:
    """The implementations of both hooks. ``failed`` logs and counts an exception by hook and plugin name."""

    def __init__(
        self, found: Implementations, failed: Callable[[str, str, BaseException], None], slow_calls: SlowCalls
    ) -> None:
        self._found = found
        self._failed = failed
        self._slow_calls = slow_calls

    def server_exchange(self, connection: Connection, mechanism: str) -> tuple[str, ServerExchange] | None:
        """Return the first plugin's name and its exchange, or ``None``; a plugin that raises is skipped."""
        found: tuple[str, ServerExchange] | None = self._first(
            _SERVER, ("connection", "mechanism"), connection, mechanism
        )
        return found

    def client_exchange(
        self, connection: Connection | None, settings: UpstreamSasl
    ) -> tuple[str, ClientExchange] | None:
        """Return the first plugin's name and its exchange, or ``None``; a plugin that raises is skipped."""
        found: tuple[str, ClientExchange] | None = self._first(
            _CLIENT, ("connection", "settings"), connection, settings
        )
        return found

    def server_step(self, name: str, exchange: ServerExchange, token: bytes) -> SaslStep:
        """Return the answer of a plugin's exchange to a client's token. Raises what it raises."""
        step: SaslStep = self._slow_calls.measured(name, _SERVER, exchange.respond)(token)
        return step

    async def client_token(self, name: str, exchange: ClientExchange, challenge: bytes | None) -> bytes | None:
        """Return the next token of a plugin's exchange for the broker. Raises what it raises."""
        return await self._slow_calls.measured_steps(name, _CLIENT, exchange.respond(challenge))

    def server_failed(self, name: str, error: BaseException) -> None:
        """Log and count an exception of a server's exchange, by the name of its plugin; raise a cancellation."""
        self._failed(_SERVER, name, error)

    def client_failed(self, name: str, error: BaseException) -> None:
        """Log and count an exception of a client's exchange, by the name of its plugin; raise a cancellation."""
        self._failed(_CLIENT, name, error)

    def _first(self, hook: str, names: tuple[str, ...], *arguments: object) -> Any:
        for name, call in self._found.calls(hook, names):
            try:
                exchange = call(*arguments)
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                self._failed(hook, name, error)
                continue  # noqa: ASYNC104
            if exchange is not None:
                return name, exchange
        return None
