"""The hook implementations: choose the observer for a SASL mechanism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.plugins.sasl_identity.observers import OAuthIdentity, PlainIdentity, ScramIdentity, UnseenIdentity
from headrace.plugins.sasl_identity.options import IdentityOptions
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.options import read_options

if TYPE_CHECKING:
    from headrace.quota_callbacks.identities import AuthenticationObserver


class SaslIdentity:
    """Names users by the SASL exchanges that it observes. Called last, so that other plugins take precedence."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._options = IdentityOptions()

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the options."""
        self._options = read_options(IdentityOptions, context.options, "sasl_identity")

    @hookimpl(trylast=True)
    def authentication_started(self, mechanism: str) -> AuthenticationObserver:
        """Return the observer for ``mechanism``, `UnseenIdentity` for an unknown one."""
        fallback = self._options.fallback_user
        match mechanism:
            case "PLAIN":
                return PlainIdentity(fallback)
            case "SCRAM-SHA-256" | "SCRAM-SHA-512":
                return ScramIdentity(fallback)
            case "OAUTHBEARER":
                return OAuthIdentity(fallback, self._options.oauth_principal_claim)
            case _:
                return UnseenIdentity(fallback, ends_empty=mechanism == "GSSAPI")
