"""The options of the plugin: the table ``[plugins.options.sasl_users]``. Read at start."""

from __future__ import annotations

from typing import Annotated

from headrace.quota_callbacks.options import Table, text


class UsersOptions(Table):
    """The options of ``sasl_users``."""

    file: Annotated[str | None, text('the path of a file that "headrace users add" has created')] = None
    """The file with the users; ``None``: the plugin authenticates no client."""
