"""The admin client for programs without trio: the methods of `headrace.proxy.kafka_client.admin`, which block.

Every method calls the method of the same name of an `AdminClient`, which runs on trio in a thread of its own, since its
connections live from one call to the next. Methods may be called from any thread, also from several at once, but not
from a running event loop, which they would block.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

import trio

from headrace.proxy.kafka_client.admin import AdminClient
from headrace.proxy.kafka_client.errors import SettingsError
from headrace.proxy.kafka_client.quotas import EVERY_QUOTA

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from headrace.proxy.kafka_client.quotas import QuotaAlteration, QuotaFilter
    from headrace.proxy.kafka_client.results import Results
    from headrace.proxy.kafka_client.settings import ClientSettings
    from headrace.proxy.kafka_client.topics import CreatedTopic, NewPartitions, NewTopic
    from headrace.quota_callbacks.entities import QuotaEntity

T = TypeVar("T")


class SyncAdminClient:
    """A client of one cluster; a context manager, which closes its connections and ends its thread.

    Arguments, results and errors are those of `AdminClient`. A method that is interrupted (``KeyboardInterrupt``) may
    have had its effect; leaving the ``with`` block ends what is still under way.
    """

    def __init__(self, servers: str | ClientSettings) -> None:
        self._client = AdminClient(servers)
        self._token: trio.lowlevel.TrioToken | None = None
        self._close_requested = trio.Event()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the calls that are under way, close all connections, and end the thread. May be called again."""
        with self._starting:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None and self._token is not None:
            self._token.run_sync_soon(self._close_requested.set)
            thread.join()

    def describe_client_quotas(
        self,
        wanted: QuotaFilter = EVERY_QUOTA,
        *,
        timeout_ms: int | None = None,
        report: Callable[[str], None] | None = None,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of the entities that match; see `AdminClient.describe_client_quotas`."""
        return self._run(partial(self._client.describe_client_quotas, wanted, timeout_ms=timeout_ms, report=report))

    def alter_client_quotas(
        self,
        alterations: Sequence[QuotaAlteration],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Results[QuotaEntity, None]:
        """Set and remove quotas; see `AdminClient.alter_client_quotas`."""
        return self._run(
            partial(
                self._client.alter_client_quotas,
                alterations,
                validate_only=validate_only,
                timeout_ms=timeout_ms,
                raise_errors=raise_errors,
            )
        )

    def create_topics(
        self,
        new_topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        retry_on_quota_violation: bool = True,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Results[str, CreatedTopic]:
        """Create topics; see `AdminClient.create_topics`."""
        return self._run(
            partial(
                self._client.create_topics,
                new_topics,
                validate_only=validate_only,
                retry_on_quota_violation=retry_on_quota_violation,
                timeout_ms=timeout_ms,
                raise_errors=raise_errors,
            )
        )

    def delete_topics(
        self,
        names: Sequence[str],
        *,
        retry_on_quota_violation: bool = True,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Results[str, None]:
        """Delete topics; see `AdminClient.delete_topics`."""
        return self._run(
            partial(
                self._client.delete_topics,
                names,
                retry_on_quota_violation=retry_on_quota_violation,
                timeout_ms=timeout_ms,
                raise_errors=raise_errors,
            )
        )

    def create_partitions(
        self,
        new_partitions: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        retry_on_quota_violation: bool = True,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Results[str, None]:
        """Give topics more partitions; see `AdminClient.create_partitions`."""
        return self._run(
            partial(
                self._client.create_partitions,
                new_partitions,
                validate_only=validate_only,
                retry_on_quota_violation=retry_on_quota_violation,
                timeout_ms=timeout_ms,
                raise_errors=raise_errors,
            )
        )

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await ``call`` in the client's thread."""
        token = self._started()
        try:
            return trio.from_thread.run(call, trio_token=token)
        except (trio.Cancelled, trio.RunFinishedError) as error:  # of the thread of the client
            raise SettingsError("the client was closed during the call") from error  # noqa: ASYNC104

    def _started(self) -> trio.lowlevel.TrioToken:
        """Return the token of the client's event loop, which the first call starts."""
        with self._starting:
            if self._closed:
                raise SettingsError("the client is closed")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=trio.run, args=(self._serve,), name="headrace-admin-client", daemon=True
                )
                self._thread.start()
            self._ready.wait()
        assert self._token is not None  # noqa: S101 -- set before `_ready`
        return self._token

    async def _serve(self) -> None:
        """Keep the event loop running until the client is closed. Calls run in system tasks of it."""
        self._token = trio.lowlevel.current_trio_token()
        self._ready.set()
        async with self._client:
            await self._close_requested.wait()
