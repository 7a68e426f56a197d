"""Connecting to brokers: by node id if the topology knows its address, otherwise to a bootstrap server.

Called for each client connection when its first request arrives. Requests the list of brokers from a bootstrap server
if that needs no credentials, so that broker n can be reached right after a start. On a cluster that requires SASL the
topology is learned from the Metadata replies to clients. Until then a connection for broker n is made to a bootstrap
server, which answers for partitions that it does not lead with an error that makes the client refresh its metadata.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog
import trio

from headrace.proxy.errors import UpstreamFault
from headrace.proxy.network.sockets import PlainSocket
from headrace.proxy.network.tls.kernel.sockets import KernelTlsSocket, NotInKernel
from headrace.proxy.network.tls.rustls_socket import socket_kind
from headrace.proxy.network.tls.secured_socket import SecuredSocket
from headrace.proxy.network.tls.tls_socket import NoTurn
from headrace.proxy.network.topology import learn
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.proxy.wire.endpoints import rewrite_endpoints
from headrace.proxy.wire.errors import OtherProtocol, PeerFault
from headrace.proxy.wire.other_protocols import TLS, other_protocol
from headrace.proxy.wire.proxy_protocol import Endpoint, write_header
from headrace.proxy.wire.topic_lookups import names_brokers
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.files import reason_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from headrace.proxy.network.poller import Poller
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.network.tls.handshake_turns import TurnsByAddress
    from headrace.proxy.network.topology import Topology
    from headrace.quota_callbacks.requests import Address
    from headrace.quota_callbacks.sasl import UpstreamSasl

Ask: TypeAlias = "Callable[[ApiKey, int, bytes], Awaitable[bytes | memoryview]]"
"""Sends one request, of an API, version and body, and returns the body of the reply."""

LogIn: TypeAlias = "Callable[[Ask], Awaitable[object]]"
"""Authenticates a new connection as the proxy. Raises `UpstreamFault`."""

log = structlog.get_logger("headrace.upstream")

_FRAME = Struct(">ihhi")
_CLIENT_ID: Final = b"headrace"
_METADATA_VERSION: Final = 2
"""The first version with a cluster id; brokers from 0.10.1 to 4.4 support it."""
MOST_SESSIONS: Final = 1024
"""The most brokers whose TLS sessions are kept."""
_MAX_OWN_REPLY_BYTES: Final = 16 * 1024 * 1024
_LOOKUPS: Final = trio.CapacityLimiter(40)
"""The threads that look up names of brokers."""


class _Caller(NamedTuple):
    """The client that causes a connection to a broker; by default the proxy itself does."""

    address: Address | None = None
    """The address that the header of the PROXY protocol states as the client's; ``None`` for the proxy itself."""
    turn: Callable[[], AbstractAsyncContextManager[None]] = NoTurn
    """Returns the context manager of the turn in which a computation of the TLS handshake is done."""


_PROXY: Final = _Caller()


class UnansweredFault(UpstreamFault):
    """The broker closed or reset the connection without an answer."""


def other_protocol_of_broker(address: str, protocol: str, setting: str) -> str:
    """Return why the proxy cannot use a broker at ``address`` that speaks ``protocol``, and what to change in the table
    ``setting``."""
    if protocol == TLS:
        return (
            f"{address} speaks TLS, but the proxy connects in plaintext; set {setting}.tls.enabled = true, or name a"
            f" PLAINTEXT or SASL_PLAINTEXT listener of the brokers in {setting}.bootstrap_servers"
        )
    return f"{address} speaks {protocol} instead of Kafka's protocol; check {setting}.bootstrap_servers"


class Upstream:
    """What opens connections to brokers. ``bootstrap_servers`` may be replaced on reload."""

    def __init__(
        self,
        *,
        bootstrap_servers: Sequence[Address],
        topology: Topology,
        connect_timeout_s: float,
        reply_timeout_s: float = 3600.0,
        poller: Poller,
        tls: TlsContext | None = None,
        kernel_tls: bool = False,
        turns: TurnsByAddress | None = None,
        sasl: UpstreamSasl | None = None,
        log_in: LogIn | None = None,
        proxy_protocol: bool = False,
        setting: str = "upstream",
    ) -> None:
        """``log_in`` authenticates the proxy's own connections, if ``sasl`` is set. ``setting`` is the table of the
        configuration that describes the brokers. ``kernel_tls``: whether the kernel does TLS if it gets the keys.
        ``turns`` are those of TLS handshakes that are done for unknown clients; without them, none waits."""
        self.setting = setting
        self._proxy_protocol = proxy_protocol
        self.tls = tls
        self._kernel_tls = kernel_tls
        self._turns = turns
        self.sasl = sasl
        self._log_in = log_in
        self.bootstrap_servers = tuple(bootstrap_servers)
        self.connect_timeout_s = connect_timeout_s
        self.reply_timeout_s = reply_timeout_s
        self.serves_anonymous = False
        """Whether the brokers serve clients that do not authenticate. False until a broker has answered such a client,
        or the proxy, which has no credentials."""
        self.reached: bool | None = None
        """Whether a broker answered the proxy's latest request for the list of brokers; ``None`` before the first."""
        self._topology = topology
        self._poller = poller
        self._repeated = RepeatedLines()
        self._asked = trio.Event()
        self._next = 0
        self._refreshing: trio.Event | None = None
        self._refreshes = 0
        """Number of refreshes that were not cancelled."""
        self._sessions: dict[Address, object] = {}
        """The last TLS session with each broker, to resume."""

    async def dial(
        self, node_id: int | None, client: Address | None = None, *, waits: bool = False
    ) -> tuple[PlainSocket, Address]:
        """Connect to broker ``node_id``, or to any bootstrap server for ``None``; return the socket and its address.

        ``client`` is stated in the header of the PROXY protocol, if connections begin with one. ``waits``: whether the
        TLS handshake waits for the turn of the client's address. If the broker cannot be reached, its address is
        refreshed, and a changed one is tried. Raises `UpstreamFault` with the address and the reason.
        """
        turns = self._turns if waits else None
        turn = NoTurn if turns is None or client is None else partial(turns.turn, client.host)
        caller = _Caller(client, turn)
        if node_id is None:
            return await self._dial_bootstrap(caller)
        address = self._topology.address_of(node_id)
        if address is None:
            await self.refresh()
            address = self._topology.address_of(node_id)
        if address is None:
            return await self._dial_bootstrap(caller)
        try:
            return await self._connect(address, caller), address
        except UpstreamFault as unreachable:
            fault = unreachable
        await self.refresh()
        moved_to = self._topology.address_of(node_id)
        if moved_to is None or moved_to == address:
            raise fault
        return await self._connect(moved_to, caller), moved_to

    async def refresh(self) -> None:
        """Request the list of brokers from a bootstrap server, and set `reached`.

        Concurrent callers share one request; if it is cancelled with the connection that made it, another caller
        repeats it. It waits for no turn, or clients that are not known could delay all that share it.
        """
        while self._refreshing is not None:
            refreshes = self._refreshes
            await self._refreshing.wait()
            if self._refreshes > refreshes:
                return
        self._refreshing = trio.Event()
        try:
            await self._ask_for_brokers()
            self._refreshes += 1
            self._asked.set()
        finally:
            self._refreshing.set()
            self._refreshing = None

    async def wait_for_refresh(self) -> None:
        """Wait until a refresh that is under way has ended; return at once if there is none."""
        if self._refreshing is not None:
            await self._refreshing.wait()

    async def wait_until_asked(self) -> None:
        """Wait until the first `refresh` has ended and `reached` is set."""
        await self._asked.wait()

    async def answers(self) -> bool:
        """Return whether a bootstrap server answers an ApiVersions request, which needs no credentials."""
        for _ in self.bootstrap_servers:  # the next server is tried even if one does not answer
            try:
                await self.request(ApiKey.API_VERSIONS, 0, b"")
            except (UpstreamFault, PeerFault):
                continue
            return True
        return False

    async def problem(self) -> str:
        """Return why clients could not be served now: no bootstrap server answers, or none accepts the proxy's login.

        The empty string if they could be served. The log has the reason of a refused login.
        """
        if self._log_in is not None:
            await self.refresh()
            if self.reached:
                return ""
        servers = "no bootstrap server"
        if self.setting != "upstream":
            servers += f" of {self.setting}.bootstrap_servers"
        if not await self.answers():
            return f"{servers} answers"
        return "" if self._log_in is None else f"{servers} serves the proxy with its login {self.setting}.sasl"

    async def _dial_bootstrap(self, caller: _Caller = _PROXY) -> tuple[PlainSocket, Address]:
        servers = self.bootstrap_servers
        first, self._next = self._next, self._next + 1
        faults = []
        for turn in range(len(servers)):
            address = servers[(first + turn) % len(servers)]
            try:
                return await self._connect(address, caller), address
            except UpstreamFault as fault:
                faults.append(str(fault))
        raise UpstreamFault("no bootstrap server can be reached: " + "; ".join(faults))

    async def _connect(self, address: Address, caller: _Caller) -> PlainSocket:
        reason = f"no answer within {self.setting}.connect_timeout = {self.connect_timeout_s:g} s"
        fault: UpstreamFault | None = None
        with trio.move_on_after(self.connect_timeout_s):
            try:
                candidates = await _addresses_of(address)
            except socket.gaierror as error:
                raise UpstreamFault(f"cannot resolve {address}: {error.strerror}") from error
            except ValueError as error:  # of the IDNA codec
                raise UpstreamFault(f"cannot resolve {address}: it is not a valid host name") from error
            for number, (family, target) in enumerate(candidates):
                left_s = trio.current_effective_deadline() - trio.current_time()
                with trio.move_on_after(left_s / (len(candidates) - number)):  # so that no address takes all the time
                    try:
                        return await self._connect_to(family, target, address, caller)
                    except OSError as error:
                        reason = reason_of(error)
                    except UpstreamFault as error:
                        fault = error
        raise fault or UpstreamFault(f"cannot connect to {address}: {reason}")

    async def _connect_to(
        self, family: int, target: tuple[object, ...], address: Address, caller: _Caller
    ) -> PlainSocket:
        """Connect, and once more without kernel TLS if the kernel does not get the keys. Raises ``OSError``."""
        sock = await _connect_socket(family, target)
        if not self._kernel_tls:
            return await self._opened(sock, address, caller)
        try:
            return await self._opened(sock, address, caller, kernel_tls=True)
        except NotInKernel as problem:
            opened = await self._opened(await _connect_socket(family, target), address, caller)
            if self._kernel_tls:
                self._kernel_tls = False
                table = f"{self.setting}.tls"
                log.warning("kernel TLS is not used", table=table, broker=str(address), reason=str(problem))
            return opened

    async def _opened(
        self, sock: socket.socket, address: Address, caller: _Caller, *, kernel_tls: bool = False
    ) -> PlainSocket:
        """Return the connection to a broker, with a header of the PROXY protocol and TLS if they are configured."""
        kind = PlainSocket if self.tls is None else KernelTlsSocket if kernel_tls else socket_kind(self.tls)
        try:
            opened = kind(sock, UpstreamFault, self._poller)
        except OSError as error:  # reset as soon as it was accepted
            sock.close()
            raise UpstreamFault(f"cannot connect to {address}: {reason_of(error)}") from error
        try:
            if self._proxy_protocol:
                PlainSocket.send_now(opened, [proxy_header(caller.address, sock)])
            if self.tls is not None and isinstance(opened, SecuredSocket):
                await self._secure(opened, self.tls, address, caller)
        except OSError as error:
            opened.close()
            raise UpstreamFault(f"cannot connect to {address}: {reason_of(error)}") from error
        except UpstreamFault as fault:
            opened.close()
            raise UpstreamFault(f"{address}: {fault}") from fault
        except BaseException:
            opened.close()
            raise
        return opened

    async def _secure(self, secured: SecuredSocket, tls: TlsContext, address: Address, caller: _Caller) -> None:
        """Do the TLS handshake with a broker. Raises `UpstreamFault`."""
        session = self._sessions.get(address)
        try:
            secured.start(tls, server_side=False, server_hostname=address.host, session=session)
        except ValueError as error:  # of the IDNA codec
            raise UpstreamFault("TLS: it is not a valid host name") from error
        try:
            await secured.handshake(caller.turn)
        except UpstreamFault as fault:
            self._sessions.pop(address, None)  # the next handshake does not resume what may be the cause
            if secured.bytes_received:
                raise
            settings = f"{self.setting}.bootstrap_servers and {self.setting}.tls.enabled"
            raise UpstreamFault(f"{fault}; a plaintext listener closes like this: check {settings}") from fault
        secured.keep_session = partial(self._keep_session, address)

    def _keep_session(self, address: Address, session: object) -> None:
        if address in self._sessions or len(self._sessions) < MOST_SESSIONS:
            self._sessions[address] = session

    async def _ask_for_brokers(self) -> None:
        no_topics = b"\x00\x00\x00\x00"
        try:
            body = await self.request(ApiKey.METADATA, _METADATA_VERSION, no_topics)
            found = rewrite_endpoints(ApiKey.METADATA, _METADATA_VERSION, body, self._topology.advertised)
            if not names_brokers(_METADATA_VERSION, body):
                raise UnansweredFault("the broker answered with an error")
        except (UpstreamFault, PeerFault) as fault:
            # A listener that requires SASL answers nothing to a proxy without a login, but serves clients.
            self.reached = self._log_in is None and isinstance(fault, UnansweredFault) and await self.answers()
            self._log_refresh_failure(str(fault))
            return
        self.reached = True
        learn(self._topology, found, complete=True)
        self.serves_anonymous = self.sasl is None

    def _log_refresh_failure(self, reason: str) -> None:
        """Log why the list of brokers was not received, once a minute for each reason."""
        left_out = self._repeated.due("cluster", self.reached, reason)
        if left_out is None:
            return
        if self.reached:
            log.info(
                "the list of brokers was not received; brokers are learned from the Metadata replies to clients",
                reason=f"{reason}, as listeners that require SASL do; {self.setting}.sasl is not set",
                left_out=left_out or None,
            )
        else:
            log.warning("the cluster cannot be reached", reason=reason, left_out=left_out or None)

    async def request(
        self,
        api_key: ApiKey,
        version: int,
        body: bytes,
        *,
        timeout_s: float | None = None,
        max_reply_bytes: int = _MAX_OWN_REPLY_BYTES,
    ) -> memoryview:
        """Send one request, with header v1, over a new connection to a bootstrap server; return the body of the reply.

        The proxy authenticates before, if it has credentials and the broker requires it for this API. ``timeout_s`` is
        the time for the login and the reply, by default that for connecting. Raises `UpstreamFault`; it is
        `UnansweredFault` if the broker closed the connection.
        """
        timeout_s = self.connect_timeout_s if timeout_s is None else timeout_s
        sock, address = await self._dial_bootstrap()
        ask = partial(_ask, sock, str(address), max_reply_bytes)
        try:
            with trio.move_on_after(timeout_s):
                if self._log_in is not None and api_key != ApiKey.API_VERSIONS:
                    await self._log_in(ask)
                return await ask(api_key, version, body)
            raise UpstreamFault(f"{address} did not answer {api_key.name} within {timeout_s:g} s")
        except OtherProtocol as fault:
            raise UpstreamFault(other_protocol_of_broker(str(address), fault.protocol, self.setting)) from fault
        finally:
            sock.close()


async def _ask(
    sock: PlainSocket, address: str, max_reply_bytes: int, api_key: ApiKey, version: int, body: bytes
) -> memoryview:
    header = len(_CLIENT_ID).to_bytes(2, "big") + _CLIENT_ID
    size = _FRAME.size - 4 + len(header) + len(body)
    await sock.send([_FRAME.pack(size, api_key, version, 0) + header + body])
    return await _read_reply(sock, address, max_reply_bytes)


def proxy_header(client: Address | None, sock: socket.socket) -> bytes:
    """Return the header that states ``client`` as the source of a connection; for ``None``, the proxy itself."""
    if client is None:
        return write_header(None, None)
    source = Endpoint(address=ipaddress.ip_address(client.host.partition("%")[0]), port=client.port)
    host, port = sock.getpeername()[:2]
    return write_header(source, Endpoint(address=ipaddress.ip_address(host.partition("%")[0]), port=port))


async def _addresses_of(address: Address) -> list[tuple[int, tuple[object, ...]]]:
    """Return the families and addresses of a host. Names are looked up in threads for this alone, so that a slow
    resolver delays nothing else. Raises `socket.gaierror`, and ``ValueError`` for a name that is not valid."""

    def look_up(flags: int = 0) -> list[tuple[int, tuple[object, ...]]]:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
        return [(family, target) for family, _, _, _, target in found]

    try:
        return look_up(socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await trio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=_LOOKUPS)


async def _connect_socket(family: int, target: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(target)
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        _check(code)
    except BaseException:
        sock.close()
        raise
    return sock


def _check(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))


async def _read_reply(sock: PlainSocket, address: str, max_bytes: int) -> memoryview:
    received = bytearray()
    chunk = bytearray(65536)
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
        await sock.readable()
        try:
            count = sock.receive_into(chunk)
        except UpstreamFault as fault:
            raise UnansweredFault(f"{address} did not answer: {fault}") from fault
        if count == 0:
            raise UnansweredFault(f"{address} closed the connection without an answer")
        received += chunk[: count or 0]
        protocol = other_protocol(received, 0, len(received))
        if protocol is not None:
            raise OtherProtocol(protocol)
        if len(received) > max_bytes:
            raise UpstreamFault(f"the reply to a request of the proxy is larger than {max_bytes} bytes")
    return memoryview(received)[8:]
