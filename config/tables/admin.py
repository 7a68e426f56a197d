"""The keys of the admin server, and its address: a host and port, or the path of a Unix socket.

Used by `schema`, which contains the section, by `rules`, and by the proxy and its command line for the address. Opens
no sockets and reads no files.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Final, TypeAlias

from pydantic import Field

from headrace.config.keys import Key, Section
from headrace.config.tables.tls import AdminTls
from headrace.config.values import HOST_PATTERN, HOST_PORT_PATTERN, is_loopback_host, parse_host, parse_host_port
from headrace.quota_callbacks.options import Parsed, list_of, text, whole
from headrace.quota_callbacks.requests import Address
from headrace.quota_callbacks.secret_sources import SecretSource, secret_source
from headrace.quota_callbacks.units import duration

UNIX: Final = "unix:"
LONGEST_PATH_BYTES: Final = 107
"""Linux: ``sun_path`` has 108 bytes, of which the last is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixPath:
    """The absolute path of a Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"{UNIX}{self.path}"


AdminAddress: TypeAlias = Address | UnixPath


def parse_admin_address(given: str) -> AdminAddress:
    """Return the address in ``host:port`` or ``unix:/path``. Raises `ValueError` with the reason."""
    if not given.startswith(UNIX):
        return parse_host_port(given)
    path = given.removeprefix(UNIX)
    if not path.startswith("/") or path.startswith("//") or path.endswith("/"):
        raise ValueError("the path of a socket must be absolute and name a file")
    if "\0" in path or ".." in PurePosixPath(path).parts:
        raise ValueError('the path of a socket must not contain ".." or NUL')
    if len(path.encode(errors="surrogateescape")) > LONGEST_PATH_BYTES:
        raise ValueError(f"the path of a socket has at most {LONGEST_PATH_BYTES} bytes")
    return UnixPath(path=path)


def is_local(address: AdminAddress) -> bool:
    """Return whether only programs on this machine can connect to ``address``."""
    return isinstance(address, UnixPath) or is_loopback_host(address.host)


def _admin_address() -> Parsed:
    def parse(raw: object) -> AdminAddress:
        if not isinstance(raw, str):
            raise ValueError  # noqa: TRY004  reported like every invalid value
        return parse_admin_address(raw)

    return Parsed(
        'host:port, such as "127.0.0.1:9190" or "[::1]:9190", port 0-65535, or "unix:" and the path of a socket',
        parse,
        {"type": "string", "pattern": f"^({HOST_PORT_PATTERN}|{UNIX}/.+)$"},
        str,
    )


def _host_name() -> Parsed:
    def parse(raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError  # noqa: TRY004  reported like every invalid value
        return parse_host(raw).rstrip(".").lower()

    return Parsed(
        'a host name or IP address without a port, such as "headrace.example.com"',
        parse,
        {"type": "string", "pattern": rf"^({HOST_PATTERN}|\[?[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[^\]]+)?\]?)$"},
    )


class Admin(Section):
    """The HTTP server for health, metrics and quotas."""

    listen: Annotated[
        AdminAddress | None,
        _admin_address(),
        Key(
            "The address of the admin server: host:port (port 0: any free one), or unix:/path of a socket. Without it "
            "there is no admin server.",
            restart=True,
            flag="--admin",
        ),
    ] = None
    token_file: Annotated[
        str | None,
        text("the path of a file"),
        Key(
            "The file with the bearer tokens that the admin server accepts, one per line. Required unless admin.listen "
            "is a loopback address or a Unix socket, or clients have certificates (admin.tls); without either, only a "
            "Unix socket accepts changes.",
            restart=True,
            flag="--admin-token-file",
        ),
    ] = None
    token: Annotated[
        SecretSource | None,
        secret_source(),
        Key(
            "The source of bearer tokens, one per line, in place of admin.token_file or beside it: a variable, a "
            "command or a file, which is read at the start and not again.",
            restart=True,
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[Annotated[str, _host_name()], ...],
        list_of("a list of host names"),
        Key("Names by which clients may address the admin server, besides loopback and the host of admin.listen."),
    ] = ()
    max_connections: Annotated[
        int,
        whole(1, 10_000),
        Key("Maximum number of open connections to the admin server; at the limit, the longest idle one is closed."),
    ] = 100
    max_connections_per_ip: Annotated[
        int,
        whole(1, 10_000),
        Key("Maximum number of open connections to the admin server per address (Unix socket: per user)."),
    ] = 20
    request_timeout_s: Annotated[
        float,
        duration("100ms", "10m"),
        Key("Timeout until a request to the admin server has arrived completely."),
    ] = 5.0
    tls: AdminTls = Field(default_factory=AdminTls)
