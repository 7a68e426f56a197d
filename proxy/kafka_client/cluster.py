"""The brokers of a cluster, its controller, one connection to each broker, and its throttling.

Connections are opened when they are first needed. A broker's requests are sent one after the other, and none while the
broker throttles the client (KIP-219), as Java's ``NetworkClient`` does. Called by `headrace.proxy.kafka_client.calls`,
which decides what is tried again.
"""

from __future__ import annotations

import math
import random
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.kafka_client.connection.broker_connection import connect, open_tcp
from headrace.proxy.kafka_client.errors import BadReplyError, ConnectionLostError, UnreachableError
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.proxy.kafka_client.connection.broker_connection import BrokerConnection, OpenStream
    from headrace.proxy.kafka_client.settings import ClientSettings
    from headrace.proxy.wire.messages.codec import Message

    BuildMessage = Callable[[int], Message]
    """Builds a request for a version of its API, when it is about to be sent."""

_HIGHEST_PORT: Final = 65_535
_FAILURE_MEMORY_S: Final = 10.0
"""Time for which a broker that could not be reached is the last choice, unless it is the controller."""


class Broker:
    """One broker, or bootstrap server, and the connection to it."""

    __slots__ = (
        "_connection",
        "_lock",
        "_open_stream",
        "_settings",
        "_throttled_until",
        "address",
        "failed_at",
        "waiting",
    )

    def __init__(self, address: Address, settings: ClientSettings, open_stream: OpenStream) -> None:
        self._settings = settings
        self._open_stream = open_stream
        self._lock = trio.Lock()
        self._connection: BrokerConnection | None = None
        self._throttled_until = -math.inf
        self.address = address
        self.failed_at = -math.inf
        """When the broker could not be reached, or lost the connection, on trio's clock."""
        self.waiting = 0
        """Number of requests that are under way or wait for their turn."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection that can be used."""
        return self._connection is not None and self._connection.usable

    @property
    def throttled_until(self) -> float:
        """The time before which the broker wants no further request, on trio's clock; also after the connection has
        ended."""
        if self._connection is not None:
            self._throttled_until = max(self._throttled_until, self._connection.throttled_until)
        return self._throttled_until

    async def ask(
        self, api_key: ApiKey, build: BuildMessage, timeout_s: float, wanted: frozenset[str] | None = None
    ) -> tuple[int, Message]:
        """Send a request when it is its turn, and return the version that was used, and the reply.

        Waits until the broker no longer throttles the client. Raises what `connect` and `BrokerConnection.request`
        raise. ``timeout_s`` is for the reply alone; the caller limits the whole. ``wanted`` has the fields of the reply
        that are read, if not all are.
        """
        with self._counted():
            async with self._lock:
                connection = await self._ready_connection()
                if self.throttled_until > trio.current_time():
                    await trio.sleep_until(self.throttled_until)
                version = connection.version(api_key)
                reply = await connection.request(api_key, version, build(version), timeout_s=timeout_s, wanted=wanted)
                return version, reply

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._throttled_until = self.throttled_until
            connection, self._connection = self._connection, None
            await connection.aclose()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.waiting += 1
        try:
            yield
        except (UnreachableError, ConnectionLostError):
            self.failed_at = trio.current_time()
            raise
        finally:
            self.waiting -= 1

    async def _ready_connection(self) -> BrokerConnection:
        if self._connection is None or not self._connection.usable:
            await self.aclose()
            self._connection = await connect(self.address, self._settings, self._open_stream)
        return self._connection


class Cluster:
    """The brokers of one cluster, as one client sees them."""

    def __init__(self, settings: ClientSettings, open_stream: OpenStream = open_tcp) -> None:
        self._settings = settings
        self._open_stream = open_stream
        self._bootstrap = [self._broker(address) for address in settings.bootstrap_servers]
        self._brokers: dict[int, Broker] = {}
        self._controller_id: int | None = None
        self._learned_at = -math.inf

    def any_broker(self) -> Broker:
        """Return the broker that is likely to answer soonest (``NetworkClient.leastLoadedNode``).

        Brokers that did not fail lately come first, then those that do not throttle the client, that are connected, and
        that have the fewest requests under way. Bootstrap servers are used until the brokers are known, and again when
        all of these have failed.
        """
        now = trio.current_time()

        def failed(broker: Broker) -> bool:
            return now - broker.failed_at < _FAILURE_MEMORY_S

        def rank(broker: Broker) -> tuple[bool, bool, bool, int, float]:
            throttled = broker.throttled_until > now
            return failed(broker), throttled, not broker.connected, broker.waiting, random.random()  # noqa: S311

        lost = all(failed(each) for each in self._brokers.values())
        usable = [*self._brokers.values(), *(each for each in self._bootstrap if lost or each.connected)]
        return min(usable, key=rank)

    async def controller(self) -> Broker:
        """Return the broker to which Metadata sends clients as the controller. With KRaft any broker forwards to it.

        Raises `UnreachableError` while the cluster has no controller.
        """
        age_s = trio.current_time() - self._learned_at
        if self._controller_id is None or age_s >= self._settings.metadata_max_age_ms / 1000:
            await self._learn()
        found = None if self._controller_id is None else self._brokers.get(self._controller_id)
        if found is None:
            raise UnreachableError("the cluster has no controller at present")
        return found

    def forget_controller(self) -> None:
        """Ask for the controller again before the next request to it."""
        self._controller_id = None

    async def aclose(self) -> None:
        """Close all connections."""
        await _close_all((*self._bootstrap, *self._brokers.values()))

    def _broker(self, address: Address) -> Broker:
        return Broker(address, self._settings, self._open_stream)

    async def _learn(self) -> None:
        """Ask a broker for the brokers and the controller."""
        broker = self.any_broker()
        timeout_s = self._settings.request_timeout_ms / 1000
        _, reply = await broker.ask(ApiKey.METADATA, _metadata_of_no_topics, timeout_s)
        found = {row["node_id"]: _address(row, broker) for row in reply["brokers"]}
        if not found:
            raise UnreachableError(f"{broker.address} does not know any broker yet")
        known = {each.address: each for each in (*self._bootstrap, *self._brokers.values())}
        gone = [each for each in self._brokers.values() if each.address not in found.values()]
        self._brokers = {node_id: known.get(at) or self._broker(at) for node_id, at in found.items()}
        self._controller_id = reply["controller_id"]
        self._learned_at = trio.current_time()
        await _close_all(gone)


async def _close_all(brokers: Iterable[Broker]) -> None:
    """Close the connections of all these brokers, also if the call is cancelled."""
    async with AsyncExitStack() as closing:
        for broker in brokers:
            closing.push_async_callback(broker.aclose)


def _metadata_of_no_topics(version: int) -> Message:
    """Return the request; without topics it is an empty list from version 1 on."""
    message: Message = {"topics": []}
    return message | {"allow_auto_topic_creation": False} if version >= 4 else message


def _address(row: Message, broker: Broker) -> Address:
    host, port = row["host"], row["port"]
    if not host or not 0 < port <= _HIGHEST_PORT:
        raise BadReplyError(
            f"{broker.address} reports the broker address {host[:255]!r}, port {port}; expected a host and a port from"
            f" 1 to {_HIGHEST_PORT}"
        )
    return Address(host=host, port=port)
