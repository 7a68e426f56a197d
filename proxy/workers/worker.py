"""One worker of several: a server of its own, which does what the supervisor says over its channel.

The first message is the configuration; after that come commands, which are done in their order, and operators'
questions, each answered by a task of its own, so that a slow one (a broker that is asked) holds up no other. Signals
mean nothing here. When the supervisor is gone, the worker ends at once: nobody would know of it.
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
from headrace.proxy.workers.bucket_state import WorkerUsage
from headrace.proxy.workers.pipe import Channel

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from headrace.config.schema import Config
    from headrace.proxy.workers.pipe import Message
    from headrace.proxy.workers.shared_memory import WorkerPlace

log = structlog.get_logger("headrace.worker")

LAST_WORDS_S: Final = 5.0
"""For what is still to be told when the worker ends: states of buckets, at most."""

Answer = tuple[dict[str, Any], bytes]


def packed(config: Config) -> bytes:
    """A configuration as a message's body."""
    return pickle.dumps(config)


def run_worker(place: WorkerPlace, sock: socket.socket) -> int:
    """Serve until the supervisor says stop, or is gone; the exit status."""
    return run_loop(partial(_run, place, sock))


async def _run(place: WorkerPlace, sock: socket.socket) -> int:
    channel = Channel(sock)
    failed = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run)
        first = await channel.receive()
        if first is not None:
            try:
                await Worker(place, channel, first).serve()
            except* StartupError as group:
                failed = True
                channel.send({"event": "failed", "problem": str(startup_error_of(group))})
        channel.end()
        nursery.cancel_scope.deadline = trio.current_time() + LAST_WORDS_S
    return int(failed)


class Worker:
    """The server and what it is asked. Raises `StartupError`, as `Server` does."""

    def __init__(self, place: WorkerPlace, channel: Channel, first: Message) -> None:
        length = first.head["config_bytes"]
        config: Config = pickle.loads(first.body[:length])  # noqa: S301 -- from the supervisor, over a socket pair
        self._used_before = first.body[length:]
        configure_logs(level=config.log.level.value, json_lines=config.log.format.value == "json", worker=place.number)
        self._channel = channel
        self._keeps_usage = config.quota.state.file is not None
        self.server = Server(config, place=place)
        self._usage = WorkerUsage(self.server)
        self._enforce(first)
        self._commands: dict[str, Callable[[Message], Answer]] = {
            "stop": self._stop,
            "reload": self._reload,
            "enforce": self._enforce,
        }
        self._questions: dict[str, Callable[[Message], Awaitable[Answer]]] = {
            "live": self._live,
            "not_ready": self._not_ready,
            "metrics": self._metrics,
            "decisions": self._decisions,
            "usage": self._told_usage,
        }

    async def serve(self) -> None:
        """Until the server has drained, or the supervisor is gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, nursery.cancel_scope)
            await self._usage.take_up(self._used_before)
            self._used_before = b""
            await self.server.run(self._ready)
            if self._keeps_usage:
                self._channel.send({"event": "usage"}, await self._usage.told())
            nursery.cancel_scope.cancel()

    def _ready(self, server: Server) -> None:
        self._channel.send(
            {"event": "ready", "enforced": sorted(server.reloader.enforced), "reached": server.shared.upstream.reached}
        )

    async def _listen(self, serving: trio.CancelScope) -> None:
        async with trio.open_nursery() as answering:
            while (message := await self._channel.receive()) is not None:
                command = self._commands.get(message.head["do"])
                if command is not None:
                    self._answer(message, command(message))
                else:
                    answering.start_soon(self._look_up, message)
            log.error("the supervisor is gone; this worker ends")
            serving.cancel()

    async def _look_up(self, message: Message) -> None:
        self._answer(message, await self._questions[message.head["do"]](message))

    def _answer(self, message: Message, answer: Answer) -> None:
        head, body = answer
        self._channel.send({"re": message.head["number"], **head}, body)

    # --- commands ---

    def _stop(self, _message: Message) -> Answer:
        self.server.stop()
        return {}, b""

    def _enforce(self, message: Message) -> Answer:
        operations, enabled = self.server.operations, message.head["enforcement"]
        if enabled != operations.enforcement_enabled:
            operations.switch_enforcement(enabled, message.head["by"])
        return {}, b""

    def _reload(self, message: Message) -> Answer:
        """The supervisor has checked it; an error here is our mistake or a plugin's, and not to end the worker."""
        try:
            self.server.reloader.apply(pickle.loads(message.body))  # noqa: S301 -- as above
        except Exception as error:
            log.exception("the configuration was not applied", exc_info=error)
            return {"problem": f"{type(error).__name__}: {error}"}, b""
        return {}, b""

    # --- questions ---

    async def _live(self, _message: Message) -> Answer:
        await trio.lowlevel.checkpoint()
        return {}, b""

    async def _not_ready(self, _message: Message) -> Answer:
        return {"reasons": await self.server.operations.not_ready()}, b""

    async def _metrics(self, _message: Message) -> Answer:
        return {}, await self.server.operations.worker_metrics()

    async def _told_usage(self, message: Message) -> Answer:
        return {}, await self._usage.told(message.head["since_ms"])

    async def _decisions(self, message: Message) -> Answer:
        asked = message.head
        page = self.server.operations.decisions_at(asked["now_s"], asked["user"], asked["client_id"], asked["newest"])
        return {}, await trio.to_thread.run_sync(_as_json, page)


def _as_json(page: dict[str, Any]) -> bytes:
    return json.dumps(page).encode()
