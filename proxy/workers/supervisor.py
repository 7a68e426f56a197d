"""The process that looks after workers: it starts them, replaces who dies, and hands signals and reloads on to all.

    supervisor ──▶ fork server ──fork──▶ worker 0 ... worker n, each with its own loop, listeners and connections
         └──────── a channel to each ──────┘

It holds no connection of a client. It serves the admin port, with the answers of all workers
(`headrace.proxy.workers.answers`), and keeps the usage file. Why the workers are forked by a third process says
`headrace.proxy.workers.fork_server`; how they learn that the supervisor is gone, `headrace.proxy.workers.pipe`.

A worker has a task here, from its first start to the end of the proxy. One that dies before all are ready ends the
start, with its problem as the only one that is told; one that dies later is replaced, at once at first, and after a
while when it does not live long.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.config.reload import diff
from headrace.proxy.admin.server import AdminServer, bind_admin
from headrace.proxy.errors import StartupError
from headrace.proxy.logs import set_log_level
from headrace.proxy.network.listeners import close_listeners, open_listeners
from headrace.proxy.server.reloading import load_again, tell, warn_of
from headrace.proxy.server.server import CLOSE_TIMEOUT_S
from headrace.proxy.workers.answers import WorkersOperations
from headrace.proxy.workers.bucket_state import WorkersUsage
from headrace.proxy.workers.fork_server import Forked
from headrace.proxy.workers.pipe import AskedWorker, WorkerSilentError
from headrace.proxy.workers.worker import LAST_WORDS_S, packed
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.config.schema import Config
    from headrace.proxy.workers.fork_server import Ended, ForkServer
    from headrace.proxy.workers.pipe import Message
    from headrace.proxy.workers.shared_memory import SharedMemory

log = structlog.get_logger("headrace.supervisor")

LIVED_S: Final = 10.0
"""A worker that was ready for so long before it died is replaced at once."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
"""Between starts of a worker that does not live: a cause that lasts must not take a core, nor the log."""
COMMAND_TIMEOUT_S: Final = 5.0
"""For a worker to do what it is told, before that is logged. It will still do it when it comes to it."""
END_TIMEOUT_S: Final = 2 * CLOSE_TIMEOUT_S + 5.0
"""For a worker to close its plugins behind the drain; then it is killed."""


@dataclass(slots=True, kw_only=True)
class WorkerSlot:
    """A worker's number, and who has it now."""

    number: int
    pid: int | None = None
    asked: AskedWorker | None = None
    ready: bool = False
    ready_s: float = 0.0
    reached: bool = False
    """Whether a broker had answered it when it was ready."""
    restarts: int = 0
    problem: str | None = None
    """What kept it from starting, in its own words."""
    ended: Ended | None = None
    reaped: trio.Event = field(default_factory=trio.Event)


class Supervisor:
    """Make it, then `run` it once. Raises `StartupError` from `run`, before anything serves."""

    def __init__(
        self, config: Config, *, load: Callable[[], Config] | None, fork_server: ForkServer, memory: SharedMemory
    ) -> None:
        self.config = config
        self.slots = tuple(WorkerSlot(number=number) for number in range(memory.workers))
        self.enforcement = config.enforcement.enabled
        self.admin_address: Address | None = None
        self.draining = trio.Event()
        self._load = load
        self._fork_server = fork_server
        self._memory = memory
        self._enforced: frozenset[QuotaKey] = frozenset()
        self._all_ready = trio.Event()
        self._reloading = trio.Lock()
        self._forks = True
        self._usage: WorkersUsage | None = None
        self._lost: list[Callable[[int], None]] = []

    @property
    def reached(self) -> bool:
        """Whether a broker has answered one of the workers at its start."""
        return any(slot.reached for slot in self.slots)

    def on_lost(self, forget: Callable[[int], None]) -> None:
        """Call ``forget`` with the number of every worker that has ended."""
        self._lost.append(forget)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop`. ``on_ready`` is called once every worker has opened every port."""
        self._check_ports()
        warn_of(self.config)
        async with trio.open_nursery() as nursery:
            self._open_admin(nursery)
            self._usage = await WorkersUsage.open(self.config)
            nursery.start_soon(self._follow)
            nursery.start_soon(self._announce, on_ready)
            nursery.start_soon(self._kill_who_stays)
            async with trio.open_nursery() as tending:
                for slot in self.slots:
                    tending.start_soon(self._tend, slot)
            if self._usage is not None:
                with trio.move_on_after(CLOSE_TIMEOUT_S):  # a disk may hang
                    await self._usage.close()
            nursery.cancel_scope.cancel()
        if not self._forks:
            raise StartupError("the process that forks workers has ended")

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        await self._all_ready.wait()
        on_ready()
        if self._usage is not None:
            await self._usage.keep(self.slots)

    def _check_ports(self) -> None:
        """Ports that the workers share cannot tell them that somebody else shares them, too: look before."""
        listen = self.config.listen
        close_listeners(
            open_listeners(listen.address.host, listen.address.port, listen.node_ids, backlog=listen.backlog)
        )

    def _open_admin(self, nursery: trio.Nursery) -> None:
        listen = self.config.admin.listen
        if listen is None:
            return
        sock = bind_admin(Address(host=listen.host, port=listen.port))
        self.admin_address = Address(host=listen.host, port=sock.getsockname()[1])
        nursery.start_soon(AdminServer(WorkersOperations(self)).serve, sock)

    # --- what operators do ---

    async def handle_signals(self) -> None:
        """SIGTERM and SIGINT stop, SIGHUP reloads. Runs until cancelled."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                async for number in signals:
                    if number == signal.SIGHUP:
                        nursery.start_soon(self.reload)
                    else:
                        log.info("stopping", signal=signal.Signals(number).name)
                        nursery.start_soon(self.stop)

    async def stop(self) -> None:
        """Let all workers drain; the second call ends at once what is still open."""
        self.draining.set()
        await self.tell_all("stop", {})

    async def reload(self) -> None:
        """Load the configuration anew, check it, and let all workers apply it; an invalid one changes nothing."""
        await self._all_ready.wait()
        async with self._reloading:
            new = await load_again(self._load, self._enforced)
            if new is None:
                return
            changes = diff(self.config, new)
            old, self.config = self.config, changes.effective
            if self.config.enforcement.enabled != old.enforcement.enabled:
                self.enforcement = self.config.enforcement.enabled
            if self.config.log.level is not old.log.level:
                set_log_level(self.config.log.level.value)
            await self.tell_all("reload", {}, packed(self.config))
            tell(changes)

    async def enforce(self, enabled: bool, by: str) -> None:
        """Turn enforcement on or off in all workers."""
        self.enforcement = enabled
        await self.tell_all("enforce", {"enforcement": enabled, "by": by})

    async def tell_all(self, do: str, arguments: Mapping[str, object], body: bytes = b"") -> None:
        """Let every worker do something, and log who has not done it in time or cannot."""
        async with trio.open_nursery() as nursery:
            for slot in self.slots:
                if slot.asked is not None:
                    nursery.start_soon(self._tell_one, slot, slot.asked, do, arguments, body)

    async def _tell_one(
        self, slot: WorkerSlot, asked: AskedWorker, do: str, arguments: Mapping[str, object], body: bytes
    ) -> None:
        try:
            reply = await asked.ask(do, arguments, body, timeout_s=COMMAND_TIMEOUT_S)
        except WorkerSilentError as error:
            if slot.ready and slot.asked is asked:
                log.error("a worker does not answer", asked=do, reason=str(error), **_named(slot))  # noqa: TRY400
            return
        if problem := reply.head.get("problem"):
            log.error("a worker refused", asked=do, problem=problem, **_named(slot))

    # --- workers ---

    async def _follow(self) -> None:
        """Note what the fork server tells."""
        await self._fork_server.follow(self._told)
        log.error("the process that forks workers has ended; the proxy drains, since it could replace no worker")
        self._forks = False
        async with trio.open_nursery() as nursery:
            for slot in self.slots:
                nursery.start_soon(self._see_end, slot)
            await self.stop()

    async def _see_end(self, slot: WorkerSlot) -> None:
        """Of a worker that nobody reaps for us any more: it may drain for long yet."""
        try:
            process = os.pidfd_open(slot.pid) if slot.pid else None
        except ProcessLookupError:
            process = None
        if process is not None:
            try:
                await trio.lowlevel.wait_readable(process)
            finally:
                os.close(process)
        slot.reaped.set()

    async def _kill_who_stays(self) -> None:
        """A worker whose loop hangs drains nothing."""
        await self.draining.wait()
        await trio.sleep(self.config.shutdown.drain_timeout_s + END_TIMEOUT_S)
        for slot in self.slots:
            if slot.pid and not slot.reaped.is_set():
                log.error("a worker has not ended and is killed", **_named(slot))
                with suppress(ProcessLookupError):
                    os.kill(slot.pid, signal.SIGKILL)

    def _told(self, report: Forked | Ended) -> None:
        slot = self.slots[report.worker]
        if isinstance(report, Forked):
            slot.pid = report.pid
        else:
            slot.ended = report
            slot.reaped.set()

    async def _tend(self, slot: WorkerSlot) -> None:
        """Keep one worker going until the proxy drains."""
        pause_s = 0.0
        while not self.draining.is_set():
            await self._live(slot)
            if self.draining.is_set():
                return
            if not self._all_ready.is_set():
                raise StartupError(slot.problem or f"worker {slot.number} {_end_of(slot)} before it was ready")
            lived = slot.ready and trio.current_time() - slot.ready_s >= LIVED_S
            pause_s = 0.0 if lived else min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * pause_s))
            log.error("worker ended", how=_end_of(slot), problem=slot.problem, again_in_s=pause_s, **_named(slot))
            slot.ready, slot.restarts = False, slot.restarts + 1
            with trio.move_on_after(pause_s):
                await self.draining.wait()

    async def _live(self, slot: WorkerSlot) -> None:
        """One worker from its fork to its end."""
        slot.pid, slot.ended, slot.problem, slot.reaped = None, None, None, trio.Event()
        start = await self._start_message()
        if self.draining.is_set():
            return
        try:
            slot.asked = AskedWorker(self._fork_server.fork(slot.number))
        except OSError as error:
            slot.problem = f"it could not be asked for: {error.strerror}"
            return
        slot.asked.tell("start", *start)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_listening, slot, nursery.cancel_scope)
                await slot.asked.run(lambda message: self._heard(slot, message))
                nursery.cancel_scope.cancel()
        finally:
            slot.asked = None
        for forget in self._lost:
            forget(slot.number)
        await slot.reaped.wait()
        self._memory.worker_lost(slot.number)

    async def _stop_listening(self, slot: WorkerSlot, listening: trio.CancelScope) -> None:
        """A worker's end is the end of its channel, unless a child of its own still has it."""
        await slot.reaped.wait()
        listening.deadline = trio.current_time() + LAST_WORDS_S

    async def _start_message(self) -> tuple[dict[str, object], bytes]:
        """The configuration and the switch as they are now, and what was used before."""
        used = b"" if self._usage is None else await self._usage.told_to_new()
        config = packed(self.config)
        return {"config_bytes": len(config), "enforcement": self.enforcement, "by": "supervisor"}, config + used

    def _heard(self, slot: WorkerSlot, message: Message) -> None:
        match message.head["event"]:
            case "ready":
                slot.ready, slot.ready_s = True, trio.current_time()
                slot.reached = bool(message.head["reached"])
                self._enforced = frozenset(map(QuotaKey, message.head["enforced"]))
                if self._all_ready.is_set():
                    log.info("worker replaced", **_named(slot))
                elif all(each.ready for each in self.slots):
                    self._all_ready.set()
            case "failed":
                slot.problem = message.head["problem"]
            case "usage" if self._usage is not None:
                self._usage.take(message.body)


def _named(slot: WorkerSlot) -> dict[str, object]:
    return {"worker": slot.number, "pid": slot.pid}


def _end_of(slot: WorkerSlot) -> str:
    ended = slot.ended
    if ended is None:
        return "ended"
    if ended.pid == 0:
        return f"could not be forked: {os.strerror(ended.status).lower()}"
    if ended.status < 0:
        return f"ended by {signal.Signals(-ended.status).name}"
    return f"ended with status {ended.status}"
