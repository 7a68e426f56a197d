"""Calling the hook that rewrites the names of users; part of `hook_calls`.

Called wherever a client's user becomes known. A name that could not be rewritten is never used, since it may be that of
a user with other quotas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.errors import ConnectionFault
from headrace.quota_callbacks.entities import bounded_name
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.hooks.implementations import Implementations
    from headrace.quota_callbacks.identities import UserSource
    from headrace.quota_callbacks.requests import Connection

_HOOK: Final = "rewrite_user"


class UserRefused(ConnectionFault):
    """The user that a client has authenticated as is refused. ``str()`` names the user and the reason."""

    def __init__(self, reason: str, *, user: str, side: str = "client") -> None:
        super().__init__(reason)
        self.user = user
        self.side = side


class UserCalls:
    """The implementations of ``rewrite_user``. ``failed`` logs and counts an exception by hook and plugin name."""

    def __init__(self, found: Implementations, failed: Callable[[str, str, BaseException], None]) -> None:
        self._found = found
        self._failed = failed

    def rewritten(self, connection: Connection, user: str, source: UserSource) -> str:
        """Return the first plugin's name for ``user``, shortened if it is long; ``user`` itself if there is none.

        Raises `UserRefused` if the plugin refuses the user, raises, or returns something other than a name.
        """
        shown = bounded_name(user)
        for name, call in self._found.calls(_HOOK, ("connection", "user", "source")):
            try:
                found: object = call(connection, user, source)
                if found is None:
                    continue
                if not isinstance(found, str) or len(found) > MAX_PRINCIPAL_CHARACTERS:
                    raise ValueError(  # noqa: TRY301
                        f"rewrite_user must return a string of at most {MAX_PRINCIPAL_CHARACTERS} characters, or None"
                    )
            except BaseException as error:  # noqa: ASYNC103 -- code of a plugin
                self._failed(_HOOK, name, error)
                reason = f"the user {shown} is not served, since the plugin {name} failed to rewrite it"
                raise UserRefused(reason, user=shown, side="proxy") from error  # noqa: ASYNC104
            if not found:
                raise UserRefused(f"the user {shown} is refused by the plugin {name} (rewrite_user)", user=shown)
            return bounded_name(found)
        return shown
