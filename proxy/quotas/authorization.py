"""Who may describe and change quotas: the hook ``authorize_quotas``, and a rule for when no plugin decides.

Kafka requires DESCRIBE_CONFIGS and ALTER_CONFIGS on the cluster, and so do the rules of the plugin ``authorization``,
if there are any. Beside them, an authenticated client must by default be an administrator, and a client of a cluster
that authenticates no clients may do both, as at a broker without an authorizer. Called by `client_quota_apis`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.quota_callbacks.identities import QuotaOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.quota_callbacks.requests import Connection

    AskPlugins = Callable[[Connection, QuotaOperation], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The settings of the built-in rule. Replaced as a whole on reload."""

    administrators: frozenset[str] = frozenset()
    anonymous_may_alter: bool = True
    """Whether a client may change quotas that has not authenticated, although the broker serves it."""


def may(
    connection: Connection,
    operation: QuotaOperation,
    *,
    authenticated: bool,
    permissions: Permissions,
    ask_plugins: AskPlugins,
) -> bool:
    """Return whether the client of ``connection``, which the broker has accepted, may do ``operation``.

    ``authenticated`` is whether the client has authenticated, even if its user name could not be observed.
    """
    decided = ask_plugins(connection, operation)
    if decided is not None:
        return decided
    if authenticated:
        return connection.user in permissions.administrators
    return operation is QuotaOperation.DESCRIBE or permissions.anonymous_may_alter
