"""One worker of several: a process with a server, which the supervisor controls over a pipe.

The first message contains the configuration. Later messages are commands, which are executed in their order, and
operators' queries, each of which has a task, so that a slow one (which waits for a broker) does not delay the others.
A worker ignores the signals that stop the proxy. When the supervisor exits, the worker exits at once, since nothing
could stop or replace it any more.
"""

from __future__ import annotations

import json
import pickle
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from headrace.proxy.errors import StartupError
from headrace.proxy.logs import configure_logs
from headrace.proxy.server.running import run_loop, startup_error_of
from headrace.proxy.server.server import Server
from headrace.proxy.workers.bucket_state import WorkerBucketState
from headrace.proxy.workers.pipe import Pipe

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from headrace.config.schema import Config
    from headrace.proxy.server.worker_place import WorkerPlace
    from headrace.proxy.workers.pipe import Message

log = structlog.get_logger("headrace.worker")

LAST_MESSAGES_S: Final = 5.0
"""Seconds that an ending worker may take to write its last messages, the longest of which is its bucket state."""

Answer = tuple[dict[str, Any], bytes]
"""Head and body of an answer."""


def packed(config: Config) -> bytes:
    """Return a configuration serialized for a message's body."""
    return pickle.dumps(config)


def run_worker(place: WorkerPlace, sock: socket.socket) -> int:
    """Serve until the supervisor sends ``stop`` or exits, and return the exit status."""
    return run_loop(partial(_run, place, sock))


async def _run(place: WorkerPlace, sock: socket.socket) -> int:
    pipe = Pipe(sock)
    failed = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pipe.run)
        first = await pipe.receive()
        if first is not None:
            try:
                await Worker(place, pipe, first).serve()
            except* StartupError as group:
                failed = True
                pipe.send({"event": "failed", "problem": str(startup_error_of(group))})
        pipe.end()
        nursery.cancel_scope.deadline = trio.current_time() + LAST_MESSAGES_S
    return int(failed)


class Worker:
    """A server, and its answers to the supervisor's requests. Raises `StartupError` as `Server` does."""

    def __init__(self, place: WorkerPlace, pipe: Pipe, first: Message) -> None:
        length = first.head["config_bytes"]
        config: Config = pickle.loads(first.body[:length])  # noqa: S301 -- from the supervisor, over a socket pair
        self._state_lines = first.body[length:]
        configure_logs(config.log, worker=place.number)
        self._pipe = pipe
        self._keeps_bucket_state = config.quota.state.file is not None
        self.server = Server(config, place=place)
        self._bucket_state = WorkerBucketState(self.server)
        self._reloading = trio.Lock()
        self._enforce(first)
        self._commands: dict[str, Callable[[Message], Answer]] = {
            "stop": self._stop,
            "enforce": self._enforce,
        }
        self._queries: dict[str, Callable[[Message], Awaitable[Answer]]] = {
            "reload": self._reload,
            "live": self._live,
            "not_ready": self._not_ready,
            "metrics": self._metrics,
            "decisions": self._decisions,
            "quota_changes": self._quota_changes,
            "bucket_state": self._report_bucket_state,
        }

    async def serve(self) -> None:
        """Serve until the server has drained or the supervisor has exited."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, nursery.cancel_scope)
            await self._bucket_state.restore(self._state_lines)
            self._state_lines = b""
            await self.server.run(self._ready)
            if self._keeps_bucket_state:
                self._pipe.send({"event": "bucket_state"}, await self._bucket_state.report())
            self._pipe.send({"event": "ending"})
            nursery.cancel_scope.cancel()

    def _ready(self, server: Server) -> None:
        self._pipe.send({"event": "ready", "reached": server.reached})

    async def _listen(self, serving: trio.CancelScope) -> None:
        async with trio.open_nursery() as answering:
            while (message := await self._pipe.receive()) is not None:
                command = self._commands.get(message.head["do"])
                if command is not None:
                    self._answer(message, command(message))
                else:
                    answering.start_soon(self._answer_query, message)
            log.error("the supervisor is gone; this worker ends")
            serving.cancel()

    async def _answer_query(self, message: Message) -> None:
        self._answer(message, await self._queries[message.head["do"]](message))

    def _answer(self, message: Message, answer: Answer) -> None:
        head, body = answer
        self._pipe.send({"re": message.head["number"], **head}, body)

    # --- commands ---

    def _stop(self, _message: Message) -> Answer:
        self.server.stop()
        return {}, b""

    def _enforce(self, message: Message) -> Answer:
        operations, enabled = self.server.operations, message.head["enforcement"]
        if enabled != operations.enforcement_enabled:
            operations.switch_enforcement(enabled, message.head["by"])
        return {}, b""

    async def _reload(self, message: Message) -> Answer:
        """Apply a configuration that the supervisor has checked, after those that came before.

        An error here is a bug of the proxy or of a plugin, and does not end the worker.
        """
        try:
            async with self._reloading:
                await self.server.reloader.apply(pickle.loads(message.body))  # noqa: S301 -- as above
        except Exception as error:
            log.exception("the configuration was not applied", exc_info=error)
            return {"problem": f"{type(error).__name__}: {error}"}, b""
        return {}, b""

    # --- queries ---

    async def _live(self, _message: Message) -> Answer:
        await trio.lowlevel.checkpoint()
        return {}, b""

    async def _not_ready(self, _message: Message) -> Answer:
        return {"reasons": await self.server.operations.not_ready()}, b""

    async def _metrics(self, _message: Message) -> Answer:
        return {}, await self.server.operations.worker_metrics()

    async def _report_bucket_state(self, message: Message) -> Answer:
        return {}, await self._bucket_state.report(message.head["since_ms"])

    async def _quota_changes(self, message: Message) -> Answer:
        page = await self.server.operations.quota_changes(message.head["newest"], message.head["before"])
        return {}, await trio.to_thread.run_sync(_as_json, page)

    async def _decisions(self, message: Message) -> Answer:
        head = message.head
        page = self.server.operations.decisions_at(head["now_s"], head["user"], head["client_id"], head["newest"])
        return {}, await trio.to_thread.run_sync(_as_json, page)


def _as_json(page: dict[str, Any]) -> bytes:
    return json.dumps(page).encode()
