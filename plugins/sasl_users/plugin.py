"""The hook implementations: authenticate clients by PLAIN and SCRAM, if a file of users is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.plugins.sasl_users.exchanges import PlainServerExchange, ScramServerExchange
from headrace.plugins.sasl_users.options import UsersOptions
from headrace.proxy.sasl.scram import ScramMechanism
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, PluginContext, hookimpl
from headrace.quota_callbacks.options import Fault, OptionsError, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.plugins.sasl_users.directory import UserDirectory
    from headrace.plugins.sasl_users.lookups import KnownUsers
    from headrace.quota_callbacks.options import Table
    from headrace.quota_callbacks.sasl import ServerExchange

_NAME = "sasl_users"


class SaslUsers:
    """The plugin that authenticates clients in place of the broker. Called last, so that other plugins take
    precedence."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._directory: UserDirectory | None = None
        self._known: Callable[[], KnownUsers] | None = None

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        return UsersOptions

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the file; start the thread that follows it, except in a dry run."""
        path = read_options(UsersOptions, context.options, _NAME).file
        if path is None:
            return
        from headrace.plugins.sasl_users.directory import UserDirectory  # here, since SQLite costs memory
        from headrace.plugins.sasl_users.user_file import UserFile, UserFileError

        try:
            if context.dry:
                with UserFile.open(path, dry=True) as file:
                    known = file.known_users()
                self._known = lambda: known
                return
            directory = self._directory = UserDirectory(path)
            self._known = lambda: directory.known
        except UserFileError as error:
            fault = Fault(path=("plugins", "options", _NAME, "file"), found=path, rule=str(error))
            raise OptionsError([fault]) from error
        directory.start()

    @hookimpl(trylast=True)
    def sasl_server_exchange(self, mechanism: str) -> ServerExchange | None:
        """Return the exchange for PLAIN and SCRAM, else ``None``. Raises `ValueError` if no file is configured."""
        if mechanism != "PLAIN" and mechanism not in set(ScramMechanism):
            return None
        if self._known is None:
            raise ValueError("set plugins.options.sasl_users.file, or remove the mechanism")
        if mechanism == "PLAIN":
            return PlainServerExchange(self._known)
        return ScramServerExchange(ScramMechanism(mechanism), self._known)

    @hookimpl
    def collect_metrics(self) -> Iterable[Metric]:
        """Return the number of users, and how often the file could not be read."""
        if self._directory is None:
            return []
        return [
            Metric(name="sasl_users", help="Users in the file of users.", value=len(self._directory.known)),
            Metric(
                name="sasl_users_read_failures",
                help="Attempts to read the file of users that failed.",
                value=self._directory.failures,
                total=True,
            ),
        ]

    @hookimpl
    def close(self) -> None:
        """End the thread."""
        if self._directory is not None:
            self._directory.close()
