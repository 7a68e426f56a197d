"""The hook implementation: choose the exchange for a mechanism. Without an upstream that authenticates, it is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.plugins.sasl_client.exchanges import (
    PlainClientExchange,
    ScramClientExchange,
    no_keys,
    no_passwords,
)
from headrace.proxy.sasl.scram import ScramMechanism
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl

if TYPE_CHECKING:
    from headrace.quota_callbacks.sasl import ClientExchange, UpstreamSasl


class SaslClient:
    """The plugin that authenticates the proxy to brokers. Called last, so that other plugins take precedence."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._passwords = no_passwords()
        self._keys = no_keys()

    @hookimpl(trylast=True)
    def sasl_client_exchange(self, settings: UpstreamSasl) -> ClientExchange | None:
        """Return the exchange for PLAIN and SCRAM; ``None`` for other mechanisms.

        Raises `ValueError` for settings without a user or a password, or with options.
        """
        if settings.mechanism == "PLAIN":
            return PlainClientExchange(settings, self._passwords)
        if settings.mechanism in set(ScramMechanism):
            return ScramClientExchange(ScramMechanism(settings.mechanism), settings, self._passwords, self._keys)
        return None
