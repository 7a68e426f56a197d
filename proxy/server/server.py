"""The server: starts, serves, reloads, drains and stops. It creates the state that connections share, opens the
listeners and owns the nurseries.

Nurseries are nested in the order of shutdown: the admin server and the periodic sweep outlive the connections, and the
connections outlive the listeners. Called by the command line.
"""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.admin.operations import Operations
from headrace.proxy.connection.client_connection import ClientConnection
from headrace.proxy.connection.opening.token_logins import adopt_late_owner
from headrace.proxy.connection.state.timeouts import check_interval_s, end_if_overdue
from headrace.proxy.errors import ClientGone, StartupError
from headrace.proxy.hooks.loading import log_plugins
from headrace.proxy.long_work import in_slices
from headrace.proxy.network.admission import is_in
from headrace.proxy.network.listening_sockets import accept_loop, close_sockets, open_sockets
from headrace.proxy.network.sockets import PlainSocket
from headrace.proxy.network.tls.renewal import CERTIFICATES_S, renew
from headrace.proxy.network.tls.rustls_socket import socket_kind
from headrace.proxy.server.configured import choice_of, ports_of
from headrace.proxy.server.eviction import MemoryLimit, UnservedConnections, return_large_objects
from headrace.proxy.server.garbage_collection import Collector
from headrace.proxy.server.parts import (
    create_admission,
    create_client_quotas,
    create_data_plane,
    create_hook_calls,
    create_shared_state,
)
from headrace.proxy.server.preflight import check_at_start
from headrace.proxy.server.quotas.quotas_in_force import QuotasInForce
from headrace.proxy.server.reloading import Reloader, log_warnings
from headrace.proxy.server.running import running_clock
from headrace.proxy.server.service_manager import STOPPING
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.requests import Connection
from headrace.quota_callbacks.topic_names import TopicNames

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Generator

    import pluggy

    from headrace.config.schema import Config
    from headrace.config.tables.admin import AdminAddress
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.network.listener import Listener
    from headrace.proxy.network.listening_sockets import ListeningSocket
    from headrace.proxy.server.bucket_state_file import BucketStateFile
    from headrace.proxy.server.service_manager import ServiceManager
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.requests import Address

log = structlog.get_logger("headrace.server")

SWEEP_S: Final = 5.0
"""Seconds between two searches for idle and overdue connections and idle buckets.

One pass over all of them replaces a deadline for each, which would have to be moved at every read.
"""

DELIVER_S: Final = 0.5
"""Seconds between two deliveries of the sums of completed requests."""

FIRST_ANSWER_S: Final = 0.5
"""Seconds that the ready line is delayed for the first answer of a broker of each upstream listener, because the line
names those that were not reached. Clients are served meanwhile."""

CLOSE_TIMEOUT_S: Final = 10.0
"""Seconds that plugins may take to flush when the proxy ends."""


class Server:
    """The proxy. Create it, then call `run` once.

    The constructor and `run` raise `StartupError`, before any client is served, for errors that the operator has to
    correct.
    """

    def __init__(
        self,
        config: Config,
        *,
        load: Callable[[], Config] | None = None,
        plugins: pluggy.PluginManager | None = None,
    ) -> None:
        self._config = config
        self._logs_plugins = plugins is None
        self.connections: set[ConnectionState] = set()
        self._unserved = UnservedConnections()
        self._token: trio.lowlevel.TrioToken | None = None
        self._topic_names = TopicNames()
        hooks = create_hook_calls(config, plugins)
        quotas = create_client_quotas(config, hooks)
        hooks.configure(quotas, config.plugins.options, self._context(quotas))
        hooks.flatten()
        self.shared, upstream = create_shared_state(config, hooks, self._topic_names)
        self.operations = Operations(self.shared, self.connections, config.client_quotas.awaited())
        self._admission = create_admission(config, self.shared.counters)
        self._admission.on_full = self._admission.overload.on_pause = self._make_room
        self.shared.admission = self._admission
        self.shared.data_plane = create_data_plane(config, self.shared, self._now_ms)
        self._limit_pipes(self._admission.overload.most_pipes)
        check_at_start(config, hooks)
        self._collector = Collector()
        self._quotas = QuotasInForce(config, hooks, self._admission, upstream, self._collector)
        self.shared.client_quotas = self._quotas.apis
        self.reloader = Reloader(config, self.operations, self._admission, self._quotas, load)
        log_warnings(config)
        for listener in self.shared.listeners:
            listener.topology.on_change(partial(self._brokers_changed, listener))
        self._serial = 0
        self._sockets: list[ListeningSocket] = []
        self._listener_of = {each.setting: each for each in self.shared.listeners}
        self._relays: trio.Nursery | None = None
        self._stop = trio.Event()
        self._all_gone: trio.Event | None = None
        self._bucket_state: BucketStateFile | None = None
        return_large_objects()
        memory = MemoryLimit(self.connections, config.limits.max_held_bytes)
        self._admission.overload.on_lasting_shortage = memory.relieve
        self.admin_address: AdminAddress | None = None

    async def run(self, on_ready: Callable[[Server], None] = lambda _: None) -> None:
        """Serve until `stop` or a signal. ``on_ready`` is called once every port is open."""
        with self.shared.poller.attach():
            await self._run(on_ready)

    async def _run(self, on_ready: Callable[[Server], None]) -> None:
        config = self._config
        self.shared.clock = running_clock()
        self._token = trio.lowlevel.current_trio_token()
        self._sockets = open_sockets(ports_of(config))
        if self._logs_plugins:
            log_plugins(choice_of(config))
        try:
            async with trio.open_nursery() as outer:
                await self._open_admin(outer)
                if await self._quotas.open(self._stop):
                    outer.start_soon(self._quotas.run)
                    await self._open_bucket_state(outer)
                    outer.start_soon(self._end_overdue)
                    outer.start_soon(self._sweep)
                    outer.start_soon(self._deliver_completed)
                    outer.start_soon(self._admission.close_delayed)
                    outer.start_soon(self._reload_certificates)
                    if self.shared.data_plane is not None:
                        outer.start_soon(self.shared.data_plane.run)
                    for listener in self.shared.listeners:
                        outer.start_soon(listener.upstream.refresh)
                    for owners in self.shared.token_owners.values():
                        outer.start_soon(owners.run)
                    await self._serve(on_ready)
                outer.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT_S):  # a disk may hang
                await self._close_bucket_state()
                await self._quotas.close()
            close_sockets(self._sockets)
            self.shared.pipes.close()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT_S):  # exporters flush here
                await trio.to_thread.run_sync(self.shared.hooks.close, abandon_on_cancel=True)

    def _limit_pipes(self, most: int) -> None:
        """Divide the pipes that may be open between the relays in Python and the native data plane."""
        data_plane = self.shared.data_plane
        if data_plane is not None:
            data_plane.engine.limit_pipes(most - most // 2)
            most //= 2
        self.shared.pipes.most = most

    @property
    def unreached(self) -> list[str]:
        """The settings of the upstreams whose latest request for the list of brokers no broker has answered."""
        upstreams = {each.upstream.setting: each.upstream for each in self.shared.listeners}
        return [setting for setting, upstream in upstreams.items() if not upstream.reached]

    def stop(self) -> None:
        """Begin to drain; the second call closes the remaining connections at once."""
        if self._stop.is_set() and self._relays is not None:
            self._relays.cancel_scope.cancel()
        self._stop.set()

    async def handle_signals(self, manager: ServiceManager) -> None:
        """Stop at SIGTERM and SIGINT, and reload at SIGHUP, and report it to ``manager``. Runs until cancelled."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP:
                    with manager.reloading():
                        await self.reloader.reload()
                else:
                    log.info("stopping", signal=signal.Signals(number).name)
                    manager.send(STOPPING)
                    self.stop()

    # --- the plugins' context ---

    def _context(self, quotas: ClientQuotas) -> PluginContext:
        return PluginContext(
            topics=self._topic_names,
            options={},
            quotas=quotas,
            now_ms=lambda: int(self.shared.clock() * 1000),
            now_s=lambda: self.shared.clock(),
            deliver_completed=lambda: self.shared.deliver_completed(),
            muted=self._muted,
            run_on_loop=self._run_on_loop,
        )

    def _muted(self) -> Counter[str]:
        """Return the number of connections that are muted now, by quota; without those that the broker throttles."""
        now_s = self.shared.clock()
        mutes = [connection.mute for connection in self.connections]
        return Counter(mute.quota for mute in mutes if mute.quota is not None and mute.until_s > now_s)

    def _run_on_loop(self, function: Callable[[], Awaitable[None]]) -> None:
        if self._token is None:
            raise RuntimeError("the event loop is not running yet")
        with suppress(trio.Cancelled):  # raised when the loop ends; this thread is in no cancel scope
            trio.from_thread.run(function, trio_token=self._token)
            return
        raise RuntimeError("the event loop is ending")

    # --- serving ---

    async def _serve(self, on_ready: Callable[[Server], None]) -> None:
        async with trio.open_nursery() as relays:
            self._relays = relays
            admission = self._admission
            async with trio.open_nursery() as accepting:
                for listening in self._sockets:
                    accepting.start_soon(accept_loop, listening, self._accepted, admission.turn, admission.overload)
                self._collector.start()
                self.operations.serving = True
                with trio.move_on_after(FIRST_ANSWER_S):
                    for listener in self.shared.listeners:
                        await listener.upstream.wait_until_asked()
                on_ready(self)
                await self._stop.wait()
                close_sockets(self._sockets)
                accepting.cancel_scope.cancel()  # one may be waiting, since accepting is delayed
            await self._drain(relays)

    async def _drain(self, relays: trio.Nursery) -> None:
        """Let requests in flight finish, for at most ``shutdown.drain_timeout``."""
        self.operations.draining = True
        timeout_s = self.reloader.config.shutdown.drain_timeout_s
        log.info("draining", connections=len(self.connections), drain_timeout_s=timeout_s)
        relays.cancel_scope.deadline = trio.current_time() + timeout_s
        for connection in list(self.connections):
            connection.begin_drain()
        if self.connections:
            self._all_gone = trio.Event()
            try:
                await self._all_gone.wait()
            finally:
                if self.connections:
                    reason = "shutdown.drain_timeout, or a second signal"
                    log.warning(
                        "connections closed with requests in flight", connections=len(self.connections), reason=reason
                    )
        relays.cancel_scope.deadline = float("inf")

    def _accepted(self, sock: socket.socket, peer: Address, listening: ListeningSocket) -> float:
        """Serve a new connection if the limits allow it. Return the seconds to wait before the next one is accepted."""
        trusted = is_in(peer.host.partition("%")[0], self._listener_of[listening.setting].proxy_protocol_from)
        admitted, pause_s = self._admission.admit(sock, peer, self.shared.clock(), from_proxy=trusted)
        if admitted:
            self._serve_new(sock, peer, listening)
        return pause_s

    def _serve_new(self, sock: socket.socket, peer: Address, listening: ListeningSocket) -> None:
        listener = self._listener_of[listening.setting]
        try:
            kind = PlainSocket if listener.tls is None else socket_kind(listener.tls.context)
            client_socket = kind(sock, ClientGone, self.shared.poller)
        except OSError as error:  # reset between accept and setsockopt
            log.debug("connection lost", peer=str(peer), reason=error.strerror)
            self._admission.leave(peer.host)
            sock.close()
            return
        self._serial += 1
        info = Connection(connection_id=self._serial, peer=peer, node_id=listening.node_id)
        connection = ClientConnection(self.shared, listener, info, client_socket)
        self.shared.counters.connections_accepted += 1
        self.shared.counters.connections += 1
        self.connections.add(connection.state)
        self._unserved.add(connection.state, self.shared.clock())
        if self._relays is not None:
            self._relays.start_soon(self._serve_connection, connection)

    def _make_room(self, reason: str) -> None:
        self._unserved.close_oldest(reason, self.shared.clock())

    async def _serve_connection(self, connection: ClientConnection) -> None:
        counters, state = self.shared.counters, connection.state
        if self.operations.draining:
            state.begin_drain()
        try:
            await connection.serve()
        finally:
            self.connections.discard(state)
            self._unserved.discard(state)
            if self._all_gone is not None and not self.connections:
                self._all_gone.set()
            counters.connections -= 1
            self._admission.leave(state.info.peer.host)
            if state.counted_user is not None:
                self._admission.leave_user(state.counted_user)

    async def _open_admin(self, nursery: trio.Nursery) -> None:
        if self._config.admin.listen is not None:
            from headrace.proxy.admin.server import open_admin

            self.admin_address = await open_admin(nursery, lambda: self.reloader.config.admin, self.operations)

    async def _open_bucket_state(self, nursery: trio.Nursery) -> None:
        """Restore bucket state from before a restart, before clients are served, and start to save it regularly."""
        state, quotas = self._config.quota.state, self.shared.hooks.quotas
        if state.file is None or quotas is None:
            return
        from headrace.proxy.server.bucket_state_file import BucketStateFile

        self._bucket_state = await BucketStateFile.open(state.file, quotas, self._now_ms())
        nursery.start_soon(self._save_bucket_state, self._bucket_state, quotas, state.interval_s)

    async def _save_bucket_state(self, file: BucketStateFile, quotas: ClientQuotas, interval_s: float) -> None:
        while True:
            await trio.sleep(interval_s)
            await file.save(quotas, self._now_ms())

    async def _close_bucket_state(self) -> None:
        file, quotas = self._bucket_state, self.shared.hooks.quotas
        if file is None or quotas is None:
            return
        await file.save(quotas, self._now_ms(), last=True)
        await file.close()

    def _now_ms(self) -> int:
        return int(self.shared.clock() * 1000)

    async def _end_overdue(self) -> None:
        """Close idle, overdue and old connections, after the owners of tokens were adopted that have become known."""
        while True:
            await trio.sleep(min(SWEEP_S, check_interval_s(self.shared.limits)))
            await in_slices(self._end_overdue_in_steps(trio.current_time()))

    def _end_overdue_in_steps(self, now_s: float) -> Generator[None, None, None]:
        for connection in list(self.connections):
            if connection in self.connections:  # it may have ended since the last step
                adopt_late_owner(connection)
                end_if_overdue(connection, now_s)
            yield

    async def _reload_certificates(self) -> None:
        """Use new certificates when their files have changed, and warn of those that expire."""
        contexts = self.shared.tls_contexts()
        while contexts:
            await renew(contexts)
            await trio.sleep(CERTIFICATES_S)

    async def _deliver_completed(self) -> None:
        """Deliver the sums of what the Python relays have completed."""
        completed = self.shared.hooks.completed
        while completed.has_sums:
            await trio.sleep(DELIVER_S)
            completed.deliver()

    async def _sweep(self) -> None:
        """Drop idle buckets."""
        while True:
            await trio.sleep(SWEEP_S)
            now_s = trio.current_time()
            if self.shared.hooks.quotas is not None:
                await in_slices(self.shared.hooks.quotas.table.sweep(int(now_s * 1000)))
                self._collector.freeze_if_grown("buckets", len(self.shared.hooks.quotas))

    def _brokers_changed(self, listener: Listener, changed: frozenset[int]) -> None:
        """Pass the new metadata to the callbacks, and drain the connections to a broker whose address has changed.

        Callbacks get the cluster as the first listener shows it.
        """
        topology = listener.topology
        if listener is self.shared.listeners[0]:
            self.shared.hooks.update_cluster_metadata(topology.metadata)
        for connection in list(self.connections):
            if connection.listener is not listener:
                continue
            node_id, upstream = connection.info.node_id, connection.info.upstream
            if node_id in changed and node_id is not None and upstream is not None:
                address = topology.address_of(node_id)
                if address is not None and address != upstream:
                    left_out = self.shared.repeated.due("broker moved", node_id, str(address))
                    if left_out is not None:
                        log.info(
                            "broker moved",
                            node_id=node_id,
                            peer=str(connection.info.peer),
                            from_=str(upstream),
                            to=str(address),
                            left_out=left_out or None,
                        )
                    connection.begin_drain()


__all__ = ["Server", "StartupError"]
