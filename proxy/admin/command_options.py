"""The options of commands that call the admin server of a running proxy: its address, TLS, and the token."""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headrace.config.overrides import ADMIN_CA, ADMIN_CERT, ADMIN_KEY, ADMIN_SERVER_NAME, ADMIN_TOKEN, variable_of
from headrace.config.tables.admin import UNIX
from headrace.quota_callbacks.commands import fail

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

DEFAULT_ADMIN: Final = "127.0.0.1:9190"
_FILE: Final = click.Path(path_type=Path)
_HTTPS: Final = "https://"
_HTTP: Final = "http://"
_SERVER_CERTIFICATE: Final = variable_of(("admin", "tls", "certificate_file"))
"""The variable that gives TLS to the admin server of a proxy with the same environment as the command."""


def reaches_admin(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name the admin server, its TLS and the token; the command gets an `AdminServerClient` as
    ``admin``."""

    @click.option(
        "--admin",
        "address",
        default=DEFAULT_ADMIN,
        show_default=True,
        metavar="ADDRESS",
        envvar=variable_of(("admin", "listen")),
        help="The admin server: HOST:PORT, https://HOST:PORT for TLS, or unix:PATH.",
    )
    @click.option(
        "--admin-ca",
        "ca_file",
        type=_FILE,
        metavar="FILE",
        envvar=ADMIN_CA,
        help="Use TLS, and accept certificates of these authorities, as PEM, instead of the system's.",
    )
    @click.option(
        "--admin-cert",
        "certificate_file",
        type=_FILE,
        metavar="FILE",
        envvar=ADMIN_CERT,
        help="Use TLS, and show this certificate, as PEM, which may contain the key.",
    )
    @click.option(
        "--admin-key",
        "key_file",
        type=_FILE,
        metavar="FILE",
        envvar=ADMIN_KEY,
        help="The private key of --admin-cert, as PEM without encryption.",
    )
    @click.option(
        "--admin-server-name",
        "server_name",
        metavar="NAME",
        envvar=ADMIN_SERVER_NAME,
        help="Use TLS, and require a certificate for this name, instead of the host of --admin.",
    )
    @click.option(
        "--token-file",
        type=_FILE,
        metavar="FILE",
        envvar=variable_of(("admin", "token_file")),
        help=f"The file with the token to send. Or set the variable {ADMIN_TOKEN} to the token itself.",
    )
    @wraps(command)
    def with_client(
        address: str,
        ca_file: Path | None,
        certificate_file: Path | None,
        key_file: Path | None,
        server_name: str | None,
        token_file: Path | None,
        **options: object,
    ) -> None:
        from headrace.proxy.admin.client import AdminServerClient, AdminUnreachableError

        is_asked = any((ca_file, certificate_file, key_file, server_name, os.environ.get(_SERVER_CERTIFICATE)))
        try:
            tls = _tls(address, ca_file, certificate_file, key_file, is_asked=is_asked)
            target = address.removeprefix(_HTTPS).removeprefix(_HTTP).removesuffix("/")
            token = _admin_token(token_file)
            command(admin=AdminServerClient(address=target, token=token, tls=tls, server_name=server_name), **options)
        except AdminUnreachableError as error:
            fail(str(error))

    return with_client


def _tls(
    address: str, ca_file: Path | None, certificate_file: Path | None, key_file: Path | None, *, is_asked: bool
) -> ssl.SSLContext | None:
    """Return the context for TLS with the server, if the address or an option asks for it."""
    from headrace.proxy.admin.client import tls_context

    if not address.startswith(_HTTPS) and (not is_asked or address.startswith((UNIX, _HTTP))):
        return None
    return tls_context(ca_file=ca_file, certificate_file=certificate_file, key_file=key_file)


def _admin_token(file: Path | None) -> str | None:
    """Return the token to send, which is the first in the file if there are several."""
    from headrace.proxy.admin.access import read_tokens

    if file is None:
        token = os.environ.get(ADMIN_TOKEN, "").strip()
        if not (token.isascii() and token.isprintable()):  # the error of a header would contain it
            fail(f"{ADMIN_TOKEN} contains characters that no token has")
        return token or None
    try:
        return read_tokens(str(file))[0].decode()
    except ValueError as error:
        fail(str(error))
