"""What ``headrace run`` does with a valid configuration: it runs the server, and prints the line "headrace ready".

Called by the command line.
"""

from __future__ import annotations

import ssl
import sys
from functools import partial
from typing import TYPE_CHECKING

import click
import trio

from headrace.config.schema import DataPlane
from headrace.config.values import count_threads
from headrace.proxy.data_plane.native import is_native
from headrace.proxy.network.tls.kernel.support import kernel_tls_problem
from headrace.proxy.output_queue import queued_output
from headrace.proxy.server.running import run_loop
from headrace.proxy.server.server import Server
from headrace.proxy.server.service_manager import READY, ServiceManager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.config.schema import Config
    from headrace.config.tables.admin import AdminAddress
    from headrace.config.tables.listeners import ListenerTables
    from headrace.config.tables.tls import ServerTls


def run_server(config: Config, load_again: Callable[[], Config] | None) -> None:
    """Run the server until it is stopped. ``load_again`` loads the configuration for a reload; ``None`` without a file.

    Raises `StartupError`.
    """
    manager = ServiceManager()
    with queued_output(max_lines=config.log.max_queued_lines, max_bytes=config.log.max_queued_bytes):
        run_loop(partial(_serve, Server(config, load=load_again), manager))


async def _serve(server: Server, manager: ServiceManager) -> None:
    def on_ready(_: Server) -> None:
        click.echo(ready_line(server.reloader.config, server.admin_address, server.unreached))
        sys.stdout.flush()
        manager.send(READY)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.run, lambda: bool(server.operations.hanging))
        nursery.start_soon(server.handle_signals, manager)
        await server.run(on_ready)
        nursery.cancel_scope.cancel()


# --- the line ---


def ready_line(config: Config, admin_address: AdminAddress | None, unreached: Sequence[str]) -> str:
    """Return the line that says where the proxy listens, to which brokers it connects, and with which data plane and
    TLS library. ``unreached`` are the settings of upstreams that were not reached."""
    return (
        f"headrace ready: {'; '.join(map(_listener_text, config.all_listeners()))},"
        f" upstream {', '.join(map(str, config.upstream.bootstrap_servers))}"
        + _unreached_text(unreached)
        + _data_plane_text(config)
        + tls_library_text(config)
        + ("" if admin_address is None else f", admin {admin_address}{_with_tls(config.admin.tls)}")
    )


def _listener_text(tables: ListenerTables) -> str:
    listen = tables.listen
    brokers = f"at port {listen.address.port} + 1 + id" if listen.broker_host is None else f"as {listen.broker_host}"
    upstream = (
        ""
        if tables.upstream_setting == "upstream"
        else f" from {', '.join(map(str, tables.upstream.bootstrap_servers))}"
    )
    return (
        f"{'' if tables.setting == 'listen' else tables.setting + ' '}bootstrap {listen.address} (advertised"
        f" {listen.advertised}){_with_tls(listen.tls)}, brokers"
        f" {listen.node_ids} {brokers}{upstream}"
    )


def _unreached_text(settings: Sequence[str]) -> str:
    if not settings:
        return ""
    names = "" if settings == ["upstream"] else f" for {', '.join(settings)}"
    return f" (the cluster has not been reached yet{names})"


def _data_plane_text(config: Config) -> str:
    if not is_native(config.data_plane):
        return ", no native data plane" if config.data_plane is DataPlane.AUTO else ""
    threads = count_threads(config.data_plane_threads)
    return f", native data plane, {threads} thread{'' if threads == 1 else 's'}"


def _with_tls(tls: ServerTls) -> str:
    return "" if tls.certificate_file is None else " with TLS"


def tls_library_text(config: Config) -> str:
    """Return what encrypts; the empty string if nothing has TLS."""
    listeners = config.all_listeners()
    servers = [config.admin.tls, *(each.listen.tls for each in listeners)]
    if not any(tls.certificate_file for tls in servers) and not any(each.upstream.tls.enabled for each in listeners):
        return ""
    wanted = [each.upstream.tls for each in listeners if each.upstream.tls.enabled and each.upstream.tls.kernel]
    problems = {kernel_tls_problem(each.min_version) for each in wanted}
    if not wanted:
        kernel = "without kernel TLS"
    elif None in problems:
        kernel = "kernel TLS to brokers if OpenSSL supports it"
    else:
        kernel = f"without kernel TLS, since {problems.pop()}"
    openssl = " ".join(ssl.OPENSSL_VERSION.split()[:2])
    library = f"rustls, or {openssl} where it is needed" if is_native(config.data_plane) else openssl
    return f", TLS by {library}, {kernel}"
