"""``headrace users``: the users in a file of the plugin ``sasl_users``. A proxy needs no restart for a change."""

from __future__ import annotations

import secrets
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from headrace.plugins.sasl_users.lookups import DEFAULT_ITERATIONS, SALT_BYTES
from headrace.plugins.sasl_users.user_file import UserFile, UserFileError, check_name
from headrace.proxy.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism, scram_verifier
from headrace.quota_callbacks.commands import Group, fail
from headrace.quota_callbacks.escaping import json_text, printable
from headrace.quota_callbacks.options import read_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PASSWORD_BYTES: Final = 1024
"""The password, the name and the authorization id have to fit into a token."""

_FILE: Final = click.option(
    "--file",
    "path",
    required=True,
    metavar="FILE",
    help="The file of users, as in plugins.options.sasl_users.file.",
)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def users() -> None:
    """Add, list and remove the users that the proxy itself authenticates, by PLAIN and SCRAM.

    The file contains SCRAM verifiers and never a password. It must belong to the user that runs the proxy. A change
    takes effect within a second, without a restart, for clients that authenticate after it.
    """


@users.command()
@click.argument("name")
@_FILE
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice([each.value for each in ScramMechanism]),
    help="A mechanism that the user may use beside PLAIN; may be repeated.  [default: all]",
)
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=DEFAULT_ITERATIONS,
    show_default=True,
    help="How often the password is hashed, by the client at each SCRAM login, and by the proxy at each PLAIN login.",
)
@click.option(
    "--password-file",
    metavar="FILE",
    help='A file with the password; "-" is standard input. A newline at its end is removed.  [default: ask for it]',
)
def add(name: str, path: str, mechanisms: tuple[str, ...], iterations: int, password_file: str | None) -> None:
    """Add a user, or replace the password and the mechanisms of one. The file is created if it is missing.

    \b
    Example: headrace users add alice --file /var/lib/headrace/users.db
    """
    with _reported_errors():
        check_name(name)
        password = _password(name, password_file)
        verifiers = {
            mechanism: scram_verifier(mechanism, password, secrets.token_bytes(SALT_BYTES), iterations)
            for mechanism in map(ScramMechanism, dict.fromkeys(mechanisms or ScramMechanism))
        }
        with UserFile.open(path, create=True) as file:
            is_new = file.put(name, verifiers)
    click.echo(f"{'added' if is_new else 'replaced'} {name}")


@users.command("list")
@_FILE
@click.option("--json", "as_json", is_flag=True, help="Print the users as JSON.")
def list_users(path: str, as_json: bool) -> None:
    """Print the users, their mechanisms and numbers of iterations, sorted by name.

    \b
    Example: headrace users list --file /var/lib/headrace/users.db
    """
    with _reported_errors(), UserFile.open(path, dry=True) as file:
        found = file.verifiers()
    if as_json:
        rows = [
            {"name": name, "mechanisms": {kind.value: {"iterations": each.iterations} for kind, each in kinds.items()}}
            for name, kinds in found.items()
        ]
        click.echo(json_text(rows, indent=2))
        return
    for name, kinds in found.items():
        click.echo(
            f"{printable(name)}: {', '.join(f'{kind} ({each.iterations} iterations)' for kind, each in kinds.items())}"
        )
    if not found:
        click.echo("headrace: the file has no users", err=True)


@users.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_FILE
def remove(names: tuple[str, ...], path: str) -> None:
    """Remove users: all that are named, or none if one of them does not exist.

    Clients that have authenticated stay connected; close their connections by restarting the proxy, or limit the time
    of sessions.

    \b
    Example: headrace users remove alice bob --file /var/lib/headrace/users.db
    """
    with _reported_errors(), UserFile.open(path) as file:
        file.remove(names)
    for name in dict.fromkeys(names):
        click.echo(f"removed {name}")


def _password(name: str, password_file: str | None) -> str:
    """Return the password of a file, of standard input, or of the terminal. Raises `ValueError`."""
    if password_file == "-":  # noqa: S105 -- standard input
        password = _from_standard_input()
    elif password_file is not None:
        try:
            password = read_secret(password_file)
        except ValueError as error:
            raise ValueError(f"the password file {password_file}: {error}") from None
    elif has_terminal():
        password = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise ValueError(
            "there is no terminal to ask for the password: give --password-file FILE, or - for standard input"
        )
    if not password:
        raise ValueError("the password is empty")
    if "\0" in password:
        raise ValueError("the password contains a zero character, which PLAIN cannot send")
    if len(password.encode()) > MAX_PASSWORD_BYTES:
        raise ValueError(f"the password has more than {MAX_PASSWORD_BYTES} bytes")
    return password


def _from_standard_input() -> str:
    content = sys.stdin.buffer.read(MAX_PASSWORD_BYTES + len(b"\r\n") + 1)
    try:
        return content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError("the password on standard input is not UTF-8") from None  # the cause contains it


def has_terminal() -> bool:
    """Return whether the command can ask for a password at a terminal."""
    return sys.stdin.isatty()


@contextmanager
def _reported_errors() -> Iterator[None]:
    """Exit with status 1 and an error message for files and values that cannot be used."""
    try:
        yield
    except (UserFileError, ValueError) as error:
        fail(str(error))
