"""Users of one organization by the first part of their names: alice@example.com is alice. Users of others are refused.

    [plugins]
    load = ["examples.local_users:LocalUsers"]

    [plugins.options."examples.local_users:LocalUsers"]
    domain = "example.com"

Tokens and certificates often have such names. Quotas, the log and ``upstream.sasl.identities`` then use the short ones.
Names without a domain are kept, so alice must be the same person as alice@example.com.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.options import Table, read_options, text

if TYPE_CHECKING:
    from headrace.quota_callbacks.identities import UserSource
    from headrace.quota_callbacks.requests import Connection

REFUSED = ""


class Options(Table):
    """The options of this plugin."""

    domain: Annotated[str, text('a domain, such as "example.com"')]


class LocalUsers:
    """The plugin that removes the domain from names."""

    headrace_hooks = HOOK_VERSION

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the domain."""
        self.domain = read_options(Options, context.options, "examples.local_users:LocalUsers").domain.lower()

    @hookimpl
    def rewrite_user(self, connection: Connection, user: str, source: UserSource) -> str | None:  # noqa: ARG002
        """Return the name without the domain, or an empty name, which is refused, for another domain."""
        name, at, domain = user.rpartition("@")
        if not at:
            return None
        return name if domain.lower() == self.domain else REFUSED
