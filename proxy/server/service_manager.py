"""Messages to the service manager that has started the proxy: systemd's notification protocol, sd_notify(3).

Sent by the event loop, so that a loop that hangs sends none, and not while a thread of the data plane hangs: then
systemd restarts the proxy. Without ``NOTIFY_SOCKET`` in the environment, nothing is sent.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

log = structlog.get_logger("headrace.service_manager")

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
RELOADING: Final = "RELOADING=1"
WATCHDOG: Final = "WATCHDOG=1"
MESSAGES_PER_TIMEOUT: Final = 2
"""Messages to the watchdog in ``WatchdogSec``, as sd_watchdog_enabled(3) recommends."""
WAITING_MESSAGES: Final = 100


class ServiceManager:
    """The service manager's socket, and the messages to it that `run` has not sent yet."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Take the variables out of ``environment``, since they are not meant for programs that a plugin starts."""
        self._address = environment.pop("NOTIFY_SOCKET", "")
        timeout_us, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        self._watchdog_s = int(timeout_us) / 1e6 if timeout_us.isdecimal() and pid in ("", str(os.getpid())) else None
        self._put, self._waiting = trio.open_memory_channel[str](WAITING_MESSAGES)
        self._repeated = RepeatedLines()

    def send(self, *assignments: str) -> None:
        """Send a message as soon as `run` runs; do not wait."""
        if self._address:
            with suppress(trio.WouldBlock):  # it has not read the earlier ones for long
                self._put.send_nowait("\n".join(assignments))

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Report that the configuration is being reloaded, and at the end of the block that it is loaded."""
        self.send(RELOADING, f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            self.send(READY)

    async def run(self, hangs: Callable[[], bool]) -> None:
        """Send messages, and keep the watchdog from restarting the proxy unless ``hangs``, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_alive, hangs)
            async for message in self._waiting:
                await self._write(message)

    async def _keep_alive(self, hangs: Callable[[], bool]) -> None:
        while self._address and self._watchdog_s:
            if not hangs():
                await self._write(WATCHDOG)
            await trio.sleep(self._watchdog_s / MESSAGES_PER_TIMEOUT)

    async def _write(self, message: str) -> None:
        """Write one message to a new socket: the one that is connected to may be replaced by another."""
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                await sock.connect(name)
                await sock.send(message.encode())
        except OSError as error:
            left_out = self._repeated.due("service manager", error.errno)
            if left_out is not None:
                reason = error.strerror
                log.warning("the service manager cannot be notified", reason=reason, left_out=left_out or None)
