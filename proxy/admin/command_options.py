"""The options of commands that call the admin server of a running proxy: its address, and the token."""

from __future__ import annotations

import os
import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from headrace.config.overrides import ADMIN_TOKEN, variable_of

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_ADMIN: Final = "127.0.0.1:9190"


def reaches_admin(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name the admin server and the token; the command gets an `AdminClient` as ``admin``."""

    @click.option(
        "--admin",
        "address",
        default=DEFAULT_ADMIN,
        show_default=True,
        metavar="ADDRESS",
        envvar=variable_of(("admin", "listen")),
        help="The admin server: HOST:PORT, or unix:PATH.",
    )
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar=variable_of(("admin", "token_file")),
        help=f"The file with the token to send. The variable {ADMIN_TOKEN} is the token itself.",
    )
    @wraps(command)
    def with_client(address: str, token_file: Path | None, **options: object) -> None:
        from headrace.proxy.admin.client import AdminClient, AdminUnreachableError

        try:
            command(admin=AdminClient(address=address, token=_admin_token(token_file)), **options)
        except AdminUnreachableError as error:
            _fail(str(error))

    return with_client


def _admin_token(file: Path | None) -> str | None:
    """Return the token to send, which is the first in the file if there are several."""
    from headrace.proxy.admin.access import read_tokens

    if file is None:
        token = os.environ.get(ADMIN_TOKEN, "").strip()
        if not (token.isascii() and token.isprintable()):  # the error of a header would contain it
            _fail(f"{ADMIN_TOKEN} contains characters that no token has")
        return token or None
    try:
        return read_tokens(str(file))[0].decode()
    except ValueError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    click.echo(f"headrace: {message}", err=True)
    sys.exit(1)
