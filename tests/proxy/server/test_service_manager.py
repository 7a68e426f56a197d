"""What the service manager's watchdog gets; the other messages are tested with the whole proxy."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import trio

from headrace.proxy.server.service_manager import ServiceManager

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_watchdog_gets_no_message_while_something_hangs(tmp_path: Path) -> None:
    states = [False, True, True, True, False]
    asked = trio.Event()

    def hangs() -> bool:
        if not states:
            asked.set()
            return True
        return states.pop(0)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2000"})
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(manager.run, hangs)
                await asked.wait()
                nursery.cancel_scope.cancel()
        messages = []
        with contextlib.suppress(BlockingIOError):
            while True:
                messages.append(receiver.recv(4096))
        assert messages == [b"WATCHDOG=1"] * 2
