"""Calling the hooks for SASL exchanges that the proxy takes part in; part of `hook_calls`.

The exchanges are code of plugins as well, whose calls are measured. The caller of an exchange reports its exceptions,
other than `SaslRefused`, to `SaslCalls.server_failed` or `SaslCalls.client_failed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.hooks.plugin_errors import description, raise_cancellation
from headrace.quota_callbacks.requests import Address, Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.hooks.implementations import Implementations
    from headrace.proxy.hooks.slow_calls import SlowCalls
    from headrace.quota_callbacks.sasl import ClientExchange, SaslStep, ServerExchange, UpstreamSasl

_SERVER = "sasl_server_exchange"
_CLIENT = "sasl_client_exchange"
_SERVER_ARGUMENTS: Final = ("connection", "mechanism")
_CLIENT_ARGUMENTS: Final = ("connection", "settings")


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
        found: tuple[str, ServerExchange] | None = self._first(_SERVER, _SERVER_ARGUMENTS, connection, mechanism)
        return found

    def client_exchange(
        self, connection: Connection | None, settings: UpstreamSasl
    ) -> tuple[str, ClientExchange] | None:
        """Return the first plugin's name and its exchange, or ``None``; a plugin that raises is skipped."""
        found: tuple[str, ClientExchange] | None = self._first(_CLIENT, _CLIENT_ARGUMENTS, connection, settings)
        return found

    def server_problem(self, mechanism: str) -> str:
        """Return why no plugin can authenticate clients by ``mechanism``; the empty string if one can."""
        no_client = Connection(connection_id=0, peer=Address(host="127.0.0.1", port=0))
        reasons = self._reasons(_SERVER, _SERVER_ARGUMENTS, no_client, mechanism)
        none = f"no plugin authenticates clients by {mechanism}"
        return "" if reasons is None else "; ".join((none, *reasons))

    def client_problem(self, settings: UpstreamSasl) -> str:
        """Return why no plugin can authenticate to brokers as ``settings`` have it; the empty string if one can."""
        reasons = self._reasons(_CLIENT, _CLIENT_ARGUMENTS, None, settings)
        none = f"no plugin authenticates to brokers by the mechanism {settings.mechanism}"
        return "" if reasons is None else "; ".join(reasons) or none

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

    def _reasons(self, hook: str, names: tuple[str, ...], *arguments: object) -> list[str] | None:
        """Return what plugins have raised, or ``None`` if one returns an exchange. Nothing is logged or counted."""
        reasons = []
        for name, call in self._found.calls(hook, names):
            try:
                if call(*arguments) is not None:
                    return None
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                raise_cancellation(error)
                reasons.append(f"the plugin {name}: {description(error)}")
        return reasons
