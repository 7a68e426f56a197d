"""The supervisor: the process that starts workers, replaces those that die, and forwards signals and reloads to all.

    supervisor ──▶ fork server ──fork──▶ worker 0 ... worker n, each with its own loop, listeners and connections
         └──────── a pipe to each ─────────┘

It has no client connections. It serves the admin port, with the answers of all workers
(`headrace.proxy.workers.answers`), and owns the bucket state file. `headrace.proxy.workers.fork_server` explains why a
third process forks the workers, and `headrace.proxy.workers.pipe` how they notice that the supervisor has exited.

Each worker has a task here, from its first start to the end of the proxy. If a worker dies before all are ready, the
start fails, and only the problem of that worker is reported. A worker that dies later is replaced: at once the first
time, and after increasing pauses if it dies again soon. One that hangs (`headrace.proxy.workers.watchdog`) is killed.
"""

from __future__ import annotations

import math
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.config.reload import diff
from headrace.proxy import output_queue
from headrace.proxy.admin.server import open_admin
from headrace.proxy.errors import StartupError
from headrace.proxy.logs import apply_log_settings
from headrace.proxy.network.listening_sockets import close_sockets, open_sockets
from headrace.proxy.server.configured import ports_of
from headrace.proxy.server.preflight import dry_hooks, rules_of
from headrace.proxy.server.reloading import READ_TIMEOUT_S, load_again, log_changes, log_warnings, put_into_force
from headrace.proxy.server.server import CLOSE_TIMEOUT_S
from headrace.proxy.server.service_manager import STOPPING
from headrace.proxy.workers.answers import WorkersOperations
from headrace.proxy.workers.bucket_state import SupervisorBucketState
from headrace.proxy.workers.fork_server import Forked
from headrace.proxy.workers.pipe import WorkerPipe, WorkerSilentError
from headrace.proxy.workers.slots import WorkerSlot
from headrace.proxy.workers.watchdog import wait_for_silence
from headrace.proxy.workers.worker import LAST_MESSAGES_S, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.config.schema import Config
    from headrace.config.tables.admin import AdminAddress
    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.proxy.server.service_manager import ServiceManager
    from headrace.proxy.workers.fork_server import Ended, ForkServer
    from headrace.proxy.workers.pipe import Message
    from headrace.proxy.workers.shared_memory import SharedMemory

log = structlog.get_logger("headrace.supervisor")

LIVED_S: Final = 10.0
"""A worker that had been ready for at least this many seconds when it died is replaced at once."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
"""Longest pause between starts of a worker that keeps dying, so that it neither occupies a core nor fills the log."""
COMMAND_TIMEOUT_S: Final = 5.0
"""Seconds until it is logged that a worker has not confirmed a command. The worker still executes it when it can."""
QUESTIONS_PER_TIMEOUT: Final = 3
"""Questions of the watchdog to a worker that answers, in ``watchdog.timeout``."""
START_TIMEOUT_S: Final = 120.0
"""Seconds without an answer after which a worker is killed that has not opened its ports yet or has drained, if
``watchdog.timeout`` is not longer. At the start plugins may read files, and answers wait for that."""
STACKS_S: Final = 1.0
"""Seconds that a worker that hangs has to write the stacks of its threads, before SIGKILL. One that was stopped does
nothing in this time."""
END_TIMEOUT_S: Final = 2 * CLOSE_TIMEOUT_S + LAST_MESSAGES_S + output_queue.END_TIMEOUT_S
"""Seconds that a worker may take after the drain to close its plugins and to write its last messages and log lines,
before it is killed."""


class Supervisor:
    """The supervisor of all workers. Create it, then call `run` once, which raises `StartupError` if a start fails."""

    def __init__(
        self, config: Config, *, load: Callable[[], Config] | None, fork_server: ForkServer, memory: SharedMemory
    ) -> None:
        self.config = config
        self.slots = tuple(WorkerSlot(number=number) for number in range(memory.workers))
        self.enforcement = config.enforcement.enabled
        self.admin_address: AdminAddress | None = None
        self.draining = trio.Event()
        self.awaited = config.client_quotas.awaited()
        self._load = load
        self._fork_server = fork_server
        self._memory = memory
        self._hooks: HookCalls | None = None
        """The plugins, loaded for the checks of the first reload. They start nothing, and so are not closed."""
        self._all_ready = trio.Event()
        self._reloading = trio.Lock()
        self._forks = True
        self._bucket_state: SupervisorBucketState | None = None
        self._end_callbacks: list[Callable[[int], None]] = []

    @property
    def reached(self) -> bool:
        """Whether a broker had answered at least one of the workers when the worker became ready."""
        return any(slot.reached for slot in self.slots)

    def on_worker_end(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the worker's number whenever a worker has exited."""
        self._end_callbacks.append(callback)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop`. ``on_ready`` is called once every worker has opened every port."""
        self._check_ports()
        log_warnings(self.config)
        async with trio.open_nursery() as nursery:
            self.admin_address = open_admin(nursery, lambda: self.config.admin, WorkersOperations(self))
            self._bucket_state = await SupervisorBucketState.open(self.config)
            nursery.start_soon(self._follow)
            nursery.start_soon(self._announce, on_ready)
            nursery.start_soon(self._kill_remaining)
            async with trio.open_nursery() as tending:
                for slot in self.slots:
                    tending.start_soon(self._keep_running, slot)
            if self._bucket_state is not None:
                with trio.move_on_after(CLOSE_TIMEOUT_S):  # a disk may hang
                    await self._bucket_state.close()
            nursery.cancel_scope.cancel()
        if not self._forks:
            raise StartupError("the process that forks workers has ended")

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        await self._all_ready.wait()
        on_ready()
        if self._bucket_state is not None:
            await self._bucket_state.keep(self.slots)

    def _check_ports(self) -> None:
        """Raise `StartupError` if another program uses one of the ports.

        The workers would not notice it: they open the ports with SO_REUSEPORT.
        """
        close_sockets(open_sockets(ports_of(self.config)))

    # --- operators' commands ---

    async def handle_signals(self, manager: ServiceManager) -> None:
        """Stop at SIGTERM and SIGINT, and reload at SIGHUP, and report it to ``manager``. Runs until cancelled."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                async for number in signals:
                    if number == signal.SIGHUP:
                        nursery.start_soon(self._reload_at_signal, manager)
                    else:
                        log.info("stopping", signal=signal.Signals(number).name)
                        manager.send(STOPPING)
                        nursery.start_soon(self.stop)

    async def _reload_at_signal(self, manager: ServiceManager) -> None:
        await self._all_ready.wait()
        with manager.reloading():
            await self.reload()

    async def stop(self) -> None:
        """Let all workers drain; the second call closes the remaining connections at once."""
        self.draining.set()
        await self.command_all("stop", {})

    async def reload(self) -> None:
        """Load the configuration again, check it, and let all workers apply it; an invalid one changes nothing."""
        async with self._reloading:
            if self._hooks is None:
                problem = f"plugins were not configured within {READ_TIMEOUT_S:g} s"
                with trio.move_on_after(READ_TIMEOUT_S):
                    try:
                        self._hooks = await trio.to_thread.run_sync(dry_hooks, self.config, abandon_on_cancel=True)
                    except StartupError as error:
                        problem = str(error)
                if self._hooks is None:
                    log.error("the configuration cannot be checked; the old one stays in force", problem=problem)
                    return
            found = await load_again(self._load, self.config, self._hooks, rules_of(self._hooks))
            if found is None:
                return
            new, options = found
            changes = diff(self.config, new, put_into_force(options))
            old, self.config = self.config, changes.effective
            if self.config.enforcement.enabled != old.enforcement.enabled:
                self.enforcement = self.config.enforcement.enabled
            apply_log_settings(self.config.log)
            await self.command_all("reload", {}, packed(self.config))
            log_changes(changes)

    async def enforce(self, enabled: bool, by: str) -> None:
        """Turn enforcement on or off in all workers."""
        self.enforcement = enabled
        await self.command_all("enforce", {"enforcement": enabled, "by": by})

    async def command_all(self, do: str, arguments: Mapping[str, object], body: bytes = b"") -> None:
        """Send a command to every worker, and log the workers that refuse it or do not confirm it in time."""
        async with trio.open_nursery() as nursery:
            for slot in self.slots:
                if slot.pipe is not None:
                    nursery.start_soon(self._command_one, slot, slot.pipe, do, arguments, body)

    async def _command_one(
        self, slot: WorkerSlot, pipe: WorkerPipe, do: str, arguments: Mapping[str, object], body: bytes
    ) -> None:
        try:
            answer = await pipe.ask(do, arguments, body, timeout_s=COMMAND_TIMEOUT_S)
        except WorkerSilentError as error:
            if slot.ready and slot.pipe is pipe:
                log.error("a worker does not answer", asked=do, reason=str(error), **_log_fields(slot))  # noqa: TRY400
            return
        if problem := answer.head.get("problem"):
            log.error("a worker refused", asked=do, problem=problem, **_log_fields(slot))

    # --- workers ---

    async def _follow(self) -> None:
        """Process the reports of the fork server; drain when it has exited."""
        await self._fork_server.follow(self._on_report)
        log.error("the process that forks workers has ended; the proxy drains, since it could replace no worker")
        self._forks = False
        async with trio.open_nursery() as nursery:
            for slot in self.slots:
                nursery.start_soon(self._wait_for_exit, slot)
            await self.stop()

    async def _wait_for_exit(self, slot: WorkerSlot) -> None:
        """Wait until a worker has exited whose parent, the fork server, has died. It may drain for a long time."""
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

    async def _kill_remaining(self) -> None:
        """Kill the workers that have not exited in time after the drain, for example because their loop hangs."""
        await self.draining.wait()
        await trio.sleep(self.config.shutdown.drain_timeout_s + END_TIMEOUT_S)
        for slot in self.slots:
            if slot.pid and not slot.reaped.is_set():
                log.error("a worker has not ended and is killed", **_log_fields(slot))
                _send_signal(slot, signal.SIGKILL)

    async def _guard(self, slot: WorkerSlot, pipe: WorkerPipe) -> None:
        """Kill a worker that does not answer. Before that, let it write the stacks of its threads to its report."""

        async def ask() -> None:
            try:
                await pipe.ask("live", {}, timeout_s=math.inf)
            except WorkerSilentError:  # it does not even read questions
                await trio.sleep_forever()

        def interval_s() -> float:
            return self.config.watchdog.timeout_s / QUESTIONS_PER_TIMEOUT

        def timeout_s() -> float:
            set_s = self.config.watchdog.timeout_s
            return set_s if slot.ready else max(set_s, START_TIMEOUT_S)

        await wait_for_silence(ask, interval_s=interval_s, timeout_s=timeout_s)
        slot.hangs += 1
        slot.problem = f"worker {slot.number} did not answer within {timeout_s():g} s"
        setting = "watchdog.timeout" if slot.ready else None
        log.error("a worker hangs and is killed", problem=slot.problem, setting=setting, **_log_fields(slot))
        _send_signal(slot, signal.SIGABRT)
        with trio.move_on_after(STACKS_S):
            await slot.reaped.wait()
        _send_signal(slot, signal.SIGKILL)

    def _on_report(self, report: Forked | Ended) -> None:
        slot = self.slots[report.worker]
        if isinstance(report, Forked):
            slot.pid = report.pid
        else:
            slot.ended = report
            slot.reaped.set()

    async def _keep_running(self, slot: WorkerSlot) -> None:
        """Start one worker, and replace it whenever it dies, until the proxy drains."""
        pause_s = 0.0
        while not self.draining.is_set():
            await self._run_once(slot)
            if self.draining.is_set():
                return
            if not self._all_ready.is_set():
                raise StartupError(slot.problem or f"worker {slot.number} {_describe_end(slot)} before it was ready")
            lived = slot.ready and trio.current_time() - slot.ready_s >= LIVED_S
            pause_s = 0.0 if lived else min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * pause_s))
            log.error(
                "worker ended",
                how=_describe_end(slot),
                problem=slot.problem,
                stacks=self._memory.crash_reports[slot.number].take(),
                again_in_s=pause_s,
                **_log_fields(slot),
            )
            slot.ready, slot.restarts = False, slot.restarts + 1
            with trio.move_on_after(pause_s):
                await self.draining.wait()

    async def _run_once(self, slot: WorkerSlot) -> None:
        """Fork a worker, and process its messages until it has exited."""
        slot.pid, slot.ended, slot.problem, slot.reaped = None, None, None, trio.Event()
        start = await self._start_message()
        if self.draining.is_set():
            return
        try:
            slot.pipe = WorkerPipe(self._fork_server.fork(slot.number))
        except OSError as error:
            slot.problem = f"the fork server could not be asked for a worker: {error.strerror}"
            return
        slot.pipe.send("start", *start)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._limit_reading, slot, nursery.cancel_scope)
                nursery.start_soon(self._guard, slot, slot.pipe)
                await slot.pipe.run(lambda message: self._on_event(slot, message))
                nursery.cancel_scope.cancel()
        finally:
            slot.pipe = None
        for callback in self._end_callbacks:
            callback(slot.number)
        await slot.reaped.wait()
        self._memory.worker_lost(slot.number)

    async def _limit_reading(self, slot: WorkerSlot, reading: trio.CancelScope) -> None:
        """Stop reading the pipe of a worker that has exited: a child process of the worker may keep it open."""
        await slot.reaped.wait()
        reading.deadline = trio.current_time() + LAST_MESSAGES_S

    async def _start_message(self) -> tuple[dict[str, object], bytes]:
        """Return the first message to a worker: the current configuration, whether to enforce it, and bucket state."""
        state = b"" if self._bucket_state is None else await self._bucket_state.lines_for_new_worker()
        config = packed(self.config)
        return {"config_bytes": len(config), "enforcement": self.enforcement, "by": "supervisor"}, config + state

    def _on_event(self, slot: WorkerSlot, message: Message) -> None:
        match message.head["event"]:
            case "ready":
                slot.ready, slot.ready_s = True, trio.current_time()
                slot.reached = bool(message.head["reached"])
                if self._all_ready.is_set():
                    log.info("worker replaced", **_log_fields(slot))
                elif all(each.ready for each in self.slots):
                    self._all_ready.set()
            case "ending":
                slot.ready = False
            case "failed":
                slot.problem = message.head["problem"]
            case "bucket_state" if self._bucket_state is not None:
                self._bucket_state.add(message.body)


def _log_fields(slot: WorkerSlot) -> dict[str, object]:
    return {"worker": slot.number, "pid": slot.pid}


def _send_signal(slot: WorkerSlot, number: signal.Signals) -> None:
    if slot.pid and not slot.reaped.is_set():
        with suppress(ProcessLookupError):
            os.kill(slot.pid, number)


def _describe_end(slot: WorkerSlot) -> str:
    ended = slot.ended
    if ended is None:
        return "ended"
    if ended.pid == 0:
        return f"could not be forked: {os.strerror(ended.status).lower()}"
    if ended.status < 0:
        return f"ended by {signal.Signals(-ended.status).name}"
    return f"ended with status {ended.status}"
