"""The admin client on trio: client quotas, topics under the quota of mutations, and delegation tokens.

`headrace.proxy.kafka_client.sync` has the same methods for programs without trio. The client starts no tasks, and
connects with its first call. Several tasks may use one client; a broker gets their requests one after the other.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Self, TypeVar

import trio

from headrace.proxy.kafka_client import quotas, topics
from headrace.proxy.kafka_client.calls import Caller
from headrace.proxy.kafka_client.cluster import Cluster
from headrace.proxy.kafka_client.connection.broker_connection import open_tcp
from headrace.proxy.kafka_client.connection.long_replies import read_in_thread
from headrace.proxy.kafka_client.delegation_tokens import DESCRIBE_CALL, read_tokens
from headrace.proxy.kafka_client.errors import ClosedError, KafkaClientError
from headrace.proxy.kafka_client.mutations import mutate
from headrace.proxy.kafka_client.quotas import EVERY_QUOTA
from headrace.proxy.kafka_client.results import Results
from headrace.proxy.kafka_client.settings import ClientSettings, parse_addresses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from types import TracebackType

    from headrace.proxy.kafka_client.connection.broker_connection import OpenStream
    from headrace.proxy.kafka_client.delegation_tokens import DelegationToken
    from headrace.proxy.kafka_client.mutations import Mutation
    from headrace.proxy.kafka_client.quotas import QuotaAlteration, QuotaFilter
    from headrace.proxy.kafka_client.topics import CreatedTopic, NewPartitions, NewTopic
    from headrace.quota_callbacks.entities import QuotaEntity

CLOSED_MEANWHILE: Final = "the client was closed during the call; the broker may have done what was requested"

V = TypeVar("V")


class AdminClient:
    """A client of one cluster, or of a proxy in front of it; an async context manager, which closes its connections.

    ``servers`` is a list of addresses such as ``"localhost:9092"``, or all settings. ``open_stream`` opens the
    connection to an address, by TCP unless it is given; TLS is added to it if the settings have a TLS context.

    In all methods ``timeout_ms`` is the time for the whole call; if it is not given, ``default_api_timeout_ms`` of the
    settings. Lost connections and NOT_CONTROLLER are tried again until then, as in Java. A method whose results are
    `Results` raises the first error if ``raise_errors`` is true; otherwise its errors are in the results. A cancelled
    call may have had its effect. All raise `ClosedError` if the client is closed, before the call or during it.
    """

    def __init__(self, servers: str | ClientSettings, *, open_stream: OpenStream = open_tcp) -> None:
        settings = ClientSettings(bootstrap_servers=parse_addresses(servers)) if isinstance(servers, str) else servers
        self._cluster = Cluster(settings, open_stream)
        self._caller = Caller(self._cluster, settings)
        self._calls: set[trio.CancelScope] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections at once, and end the calls of other tasks: they raise `ClosedError`, as later calls do.

        All connections are closed as well if the call is cancelled. May be called again.
        """
        self._closed = True
        for scope in self._calls:
            scope.cancel()
        await self._cluster.aclose()

    async def describe_client_quotas(
        self,
        wanted: QuotaFilter = EVERY_QUOTA,
        *,
        timeout_ms: int | None = None,
        report: Callable[[str], None] | None = None,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of the entities that match, in the broker's order.

        ``report`` is called with a remark, if the answer has one beside the quotas; only the proxy sends remarks.
        Raises `UnsupportedVersionError` for brokers before Kafka 2.6, and for an entity type that the broker does not
        know.
        """
        async with self._open_call():
            call = quotas.describe_call(wanted)
            reply = await self._caller.call(call, self._caller.deadline(timeout_ms))
            remark = quotas.read_remark(reply)
            described = await read_in_thread(lambda: quotas.read_description(reply), rows=len(reply["entries"] or ()))
        if remark and report is not None:
            report(remark)
        return described

    async def alter_client_quotas(
        self,
        alterations: Sequence[QuotaAlteration],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Results[QuotaEntity, None]:
        """Set and remove quotas. The alterations of one entity are made completely or not at all.

        ``validate_only`` returns the same results and changes nothing. An entity may occur only once. Raises
        `UnsupportedVersionError` for brokers before Kafka 2.6; `InvalidRequestError`, with the broker's message, is the
        result of an entity whose keys or values the broker refuses.
        """
        results: Results[QuotaEntity, None]
        async with self._open_call():
            call = quotas.alter_call(alterations, validate_only=validate_only)
            try:
                reply = await self._caller.call(call, self._caller.deadline(timeout_ms))
            except KafkaClientError as error:
                results = Results(outcomes={each.entity: error for each in alterations})
            else:
                results = quotas.read_alterations(alterations, reply)
        return _checked(results, raise_errors=raise_errors)

    async def create_topics(
        self,
        new_topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        retry_on_quota_violation: bool = True,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Results[str, CreatedTopic]:
        """Create topics, and return what the broker made of each.

        Topics that ``controller_mutation_rate`` refuses are sent again until the deadline, unless
        ``retry_on_quota_violation`` is false. Then, or at the deadline, their error is `ThrottlingQuotaExceeded`.
        """
        return await self._mutate(
            topics.creation(new_topics, validate_only=validate_only),
            retry_on_quota_violation=retry_on_quota_violation,
            timeout_ms=timeout_ms,
            raise_errors=raise_errors,
        )

    async def delete_topics(
        self,
        names: Sequence[str],
        *,
        retry_on_quota_violation: bool = True,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Results[str, None]:
        """Delete topics. Refusals by ``controller_mutation_rate`` are handled as in `create_topics`."""
        return await self._mutate(
            topics.deletion(names),
            retry_on_quota_violation=retry_on_quota_violation,
            timeout_ms=timeout_ms,
            raise_errors=raise_errors,
        )

    async def create_partitions(
        self,
        new_partitions: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        retry_on_quota_violation: bool = True,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Results[str, None]:
        """Add partitions to topics. ``new_partitions`` has, by topic name, the total number of partitions after that.

        Refusals by ``controller_mutation_rate`` are handled as in `create_topics`.
        """
        return await self._mutate(
            topics.growth(new_partitions, validate_only=validate_only),
            retry_on_quota_violation=retry_on_quota_violation,
            timeout_ms=timeout_ms,
            raise_errors=raise_errors,
        )

    async def describe_delegation_tokens(self, *, timeout_ms: int | None = None) -> dict[str, DelegationToken]:
        """Return the delegation tokens that the user may see, by token id, without their secrets.

        A user sees its own, those that it may renew, and those that it may describe (ACLs on ``DelegationToken`` or
        ``User``). Raises `BrokerError` where tokens are not enabled, and for users who have not authenticated.
        """
        async with self._open_call():
            reply = await self._caller.call(DESCRIBE_CALL, self._caller.deadline(timeout_ms))
            return await read_in_thread(lambda: read_tokens(reply), rows=len(reply["tokens"]))

    async def _mutate(
        self, mutation: Mutation[V], *, retry_on_quota_violation: bool, timeout_ms: int | None, raise_errors: bool
    ) -> Results[str, V]:
        async with self._open_call():
            deadline = self._caller.deadline(timeout_ms)
            results = await mutate(
                self._caller, mutation, retry_on_quota_violation=retry_on_quota_violation, deadline=deadline
            )
        return _checked(results, raise_errors=raise_errors)

    @asynccontextmanager
    async def _open_call(self) -> AsyncIterator[None]:
        """Make a call in this context: `aclose` cancels it, and no connection that it opens outlives the client."""
        self._check_open()
        try:
            with trio.CancelScope() as scope:  # noqa: ASYNC100 -- the caller's block has checkpoints
                self._calls.add(scope)
                yield
        finally:
            self._calls.discard(scope)
            if self._closed:  # a connection may have been ready at the moment of the cancellation
                await self._cluster.aclose()
        if scope.cancelled_caught:
            raise ClosedError(CLOSED_MEANWHILE)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the client is closed")


K = TypeVar("K")


def _checked(results: Results[K, V], *, raise_errors: bool) -> Results[K, V]:
    if raise_errors:
        results.raise_errors()
    return results
