"""Starting a proxy with several workers, in the order that makes forking safe.

First the plugins are imported and the shared memory is created, then the fork server is forked, and only then the
supervisor's event loop is run. Called by the command line.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING

import trio

from headrace.config.values import count_workers
from headrace.proxy.hooks.loading import imported_plugins, log_plugins
from headrace.proxy.output_queue import queued_output
from headrace.proxy.server.configured import choice_of
from headrace.proxy.server.running import run_loop
from headrace.proxy.server.service_manager import READY
from headrace.proxy.workers.fork_server import ForkServer
from headrace.proxy.workers.shared_memory import SharedMemory
from headrace.proxy.workers.supervisor import Supervisor
from headrace.proxy.workers.worker import run_worker

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from headrace.config.schema import Config
    from headrace.proxy.server.service_manager import ServiceManager


def run_workers(
    config: Config,
    load: Callable[[], Config] | None,
    on_ready: Callable[[Supervisor], None],
    manager: ServiceManager,
) -> None:
    """Serve with several workers until a signal stops the proxy. Raises `StartupError` before any client is served."""
    # Import the plugins' code here, so that its memory is shared; each worker creates its own plugin objects.
    list(imported_plugins(choice_of(config)))
    memory = SharedMemory(
        count_workers(config.workers), samples=max(window.samples for window in config.windows().values())
    )

    def serve(number: int, sock: socket.socket) -> int:
        with queued_output():
            memory.crash_reports[number].enable()
            return run_worker(memory.place(number), sock)

    def ready(supervisor: Supervisor) -> None:
        log_plugins(choice_of(config))
        on_ready(supervisor)

    gc.collect()
    gc.freeze()  # pages to which the collector does not write remain shared by all processes
    fork_server = ForkServer(serve)
    try:
        with queued_output():
            supervisor = Supervisor(config, load=load, fork_server=fork_server, memory=memory)
            run_loop(partial(_supervise, supervisor, ready, manager))
    finally:
        fork_server.close()


async def _supervise(supervisor: Supervisor, on_ready: Callable[[Supervisor], None], manager: ServiceManager) -> None:
    def announce() -> None:
        on_ready(supervisor)
        manager.send(READY)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.run)
        nursery.start_soon(supervisor.handle_signals, manager)
        await supervisor.run(announce)
        nursery.cancel_scope.cancel()
