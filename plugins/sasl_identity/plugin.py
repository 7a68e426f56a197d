"""The hook implementations: choose the observer for a SASL mechanism."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from headrace.plugins.sasl_identity.observers import OAuthIdentity, PlainIdentity, ScramIdentity, UnseenIdentity
from headrace.plugins.sasl_identity.options import IdentityOptions
from headrace.quota_callbacks.entities import ANONYMOUS
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.options import read_options

if TYPE_CHECKING:
    from headrace.quota_callbacks.identities import AuthenticationObserver
    from headrace.quota_callbacks.options import Table

log = structlog.get_logger("headrace.authentication")


class SaslIdentity:
    """The plugin that names users by the SASL exchanges that it observes. Called last, so that other plugins take
    precedence."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._options = IdentityOptions()
        self._unnamed: set[str] = set()
        """The mechanisms whose clients were logged to have no user."""

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        return IdentityOptions

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
                unnamed = partial(self._log_unnamed, mechanism)
                return UnseenIdentity(fallback, unnamed, ends_empty=mechanism == "GSSAPI")

    def _log_unnamed(self, mechanism: str) -> None:
        """Log once for each mechanism, of which the brokers have some, that its clients have no user."""
        if mechanism not in self._unnamed:
            self._unnamed.add(mechanism)
            setting = "plugins.options.sasl_identity.fallback_user"
            log.warning(
                "the users of clients cannot be read", mechanism=mechanism, counted_as=ANONYMOUS, setting=setting
            )
