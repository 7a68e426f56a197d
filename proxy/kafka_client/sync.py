"""The admin client for programs without trio: the methods of `headrace.proxy.kafka_client.admin`, which block.

Every method calls the method of the same name of an `AdminClient`, which runs on trio in a thread of its own, since its
connections live from one call to the next. Methods may be called from any thread, also from several at once, but not
from a running event loop, which they would block.
"""

from __future__ import annotations

import threading
from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

import trio

from headrace.proxy.kafka_client.admin import CLOSED_MEANWHILE, AdminClient
from headrace.proxy.kafka_client.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from headrace.proxy.kafka_client.settings import ClientSettings

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AdminClient, P], Awaitable[T]],
) -> Callable[Concatenate[SyncAdminClient, P], T]:
    """Return the method of `SyncAdminClient` that awaits a method of `AdminClient`, with its signature and help."""

    @wraps(method)
    def call(self: SyncAdminClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(partial(method, self._client, *args, **kwargs))

    return call


class SyncAdminClient:
    """A client of one cluster; a context manager, which closes its connections and ends its thread.

    Arguments, results, errors and help are those of `AdminClient`. A method that is interrupted (``KeyboardInterrupt``)
    may have had its effect; leaving the ``with`` block ends what is still under way.
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
        """Close all connections, and end the thread. Calls that are under way raise `ClosedError`, as later ones do.

        May be called again.
        """
        with self._starting:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None and self._token is not None:
            self._token.run_sync_soon(self._close_requested.set)
            thread.join()

    describe_client_quotas = _blocking(AdminClient.describe_client_quotas)
    alter_client_quotas = _blocking(AdminClient.alter_client_quotas)
    describe_delegation_tokens = _blocking(AdminClient.describe_delegation_tokens)
    create_topics = _blocking(AdminClient.create_topics)
    delete_topics = _blocking(AdminClient.delete_topics)
    create_partitions = _blocking(AdminClient.create_partitions)

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await ``call`` in the client's thread."""
        token = self._started()
        try:
            return trio.from_thread.run(call, trio_token=token)
        except (trio.Cancelled, trio.RunFinishedError) as error:  # of the thread of the client
            raise ClosedError(CLOSED_MEANWHILE) from error  # noqa: ASYNC104

    def _started(self) -> trio.lowlevel.TrioToken:
        """Return the token of the client's event loop, which the first call starts."""
        with self._starting:
            if self._closed:
                raise ClosedError("the client is closed")
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
