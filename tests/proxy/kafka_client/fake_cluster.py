"""Brokers in memory, on a fake clock: for timing, and for what real brokers cannot do, such as being old or hostile.

A broker answers ApiVersions and Metadata by itself, and other requests by a function of the test. Each connection is a
task in the nursery of the test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import trio
from trio.testing import memory_stream_pair

from headrace.proxy.kafka_client.admin import AdminClient
from headrace.proxy.kafka_client.connection.api_versions import VERSIONS
from headrace.proxy.kafka_client.settings import ClientSettings
from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.heads import read_request_head
from headrace.proxy.wire.messages.codec import decode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address
from tests.proxy.playbook import reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BOOTSTRAP = Address(host="bootstrap", port=9092)
ONE, TWO = Address(host="one", port=9092), Address(host="two", port=9092)
NODES = {1: ONE, 2: TWO}
MAX_FRAME_BYTES = 1 << 20


class Act(Enum):
    """What a broker does instead of a reply."""

    CLOSE = auto()
    SAY_NOTHING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, and when it arrived on the fake clock, in seconds since the beginning."""

    at: float
    address: Address
    api_key: ApiKey
    version: int
    correlation_id: int
    client_id: str
    message: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """The topics of a mutation."""
        if "topic_names" in self.message:
            return [*self.message["topic_names"]]
        return [row["name"] for row in self.message["topics"]]


Answer = dict[str, Any] | bytes | Act
Answers = Mapping[ApiKey, Callable[[Asked], Answer]]


@dataclass(slots=True, kw_only=True)
class FakeCluster:
    """Two brokers behind a bootstrap server. Replies that are ``bytes`` are sent as they are."""

    nursery: trio.Nursery
    answers: Answers
    versions: dict[ApiKey, tuple[int, int]] = field(default_factory=lambda: dict(VERSIONS))
    controller_id: int = 1
    unreachable: set[Address] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)
    connections: list[Address] = field(default_factory=list)
    open_connections: int = 0
    began: float = field(default_factory=trio.current_time)

    async def open(self, address: Address) -> trio.abc.Stream:
        """Connect to a broker."""
        await trio.lowlevel.checkpoint()
        self.connections.append(address)
        if address in self.unreachable:
            raise ConnectionRefusedError("refused")
        client, server = memory_stream_pair()
        self.nursery.start_soon(self.serve, server, address)
        return client

    def requests(self, api_key: ApiKey) -> list[Asked]:
        return [each for each in self.asked if each.api_key == api_key]

    async def serve(self, stream: trio.abc.Stream, address: Address) -> None:
        """Serve one connection until it ends."""
        buffer = bytearray()
        self.open_connections += 1
        try:
            while True:
                asked = self._next(buffer, address)
                if asked is None:
                    some = await stream.receive_some()
                    if not some:
                        return
                    buffer += some
                    continue
                self.asked.append(asked)
                answer = self._answer(asked)
                if answer is Act.CLOSE:
                    return
                if isinstance(answer, dict):
                    answer = reply(asked.api_key, asked.version, asked.correlation_id, **answer)
                if isinstance(answer, bytes):
                    await stream.send_all(answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            self.open_connections -= 1
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await stream.aclose()

    def _next(self, buffer: bytearray, address: Address) -> Asked | None:
        head = read_request_head(buffer, 0, len(buffer), MAX_FRAME_BYTES)
        if head is None or len(buffer) < 4 + head.size:
            return None
        frame = bytes(buffer[: 4 + head.size])
        del buffer[: 4 + head.size]
        name = f"{APIS[head.api_key].name}Request"
        return Asked(
            at=round(trio.current_time() - self.began, 3),
            address=address,
            api_key=ApiKey(head.api_key),
            version=head.api_version,
            correlation_id=head.correlation_id,
            client_id=head.client_id,
            message=decode(name, head.api_version, frame[head.body_at :]),
        )

    def _answer(self, asked: Asked) -> Answer:
        if asked.api_key in self.answers:
            return self.answers[asked.api_key](asked)
        if asked.api_key is ApiKey.API_VERSIONS:
            return offered(self.versions)
        assert asked.api_key is ApiKey.METADATA, asked
        brokers = [{"node_id": each, "host": at.host, "port": at.port, "rack": None} for each, at in NODES.items()]
        return {"brokers": brokers, "controller_id": self.controller_id}


def offered(versions: Mapping[ApiKey, tuple[int, int]], error_code: int = 0) -> dict[str, Any]:
    """An ApiVersions reply."""
    rows = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in versions.items()]
    return {"error_code": error_code, "api_keys": rows}


@asynccontextmanager
async def open_cluster(
    answers: Answers, *, versions: Mapping[ApiKey, tuple[int, int]] | None = None, **settings: Any
) -> AsyncIterator[tuple[FakeCluster, AdminClient]]:
    """Yield a fake cluster and a client of it, with these settings."""
    async with trio.open_nursery() as nursery:
        cluster = FakeCluster(nursery=nursery, answers=answers)
        cluster.versions |= versions or {}
        async with AdminClient(
            ClientSettings(bootstrap_servers=(BOOTSTRAP,), **settings), open_stream=cluster.open
        ) as admin:
            yield cluster, admin
        nursery.cancel_scope.cancel()


def without(*missing: ApiKey) -> dict[ApiKey, tuple[int, int]]:
    """The versions of a broker that does not have these APIs."""
    return {key: versions for key, versions in VERSIONS.items() if key not in missing}
