"""A thread of the native data plane that is stopped is reported everywhere, and its neighbour goes on.

The thread of a real proxy is stopped by ptrace(2), which stops one thread where a signal would stop the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.data_plane.thread_watch import SILENT_S
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import HEARTBEAT_REPLY, FakeBroker
from tests.faults.raw_client import RawClient
from tests.faults.service_manager import WATCHDOG_S, Receiver
from tests.faults.waiting import wait_until, wait_until_steady
from tests.security.planes import NATIVE, NEEDS_ENGINE, warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.exhaustive, NEEDS_ENGINE]

DETACH, SEIZE, INTERRUPT = 17, 0x4206, 0x4207
"""Requests of <sys/ptrace.h>."""
WALL = 0x40000000
"""The option of waitpid(2) for threads of other processes."""
PROBES = ("/readyz", "/livez")
THREADS = ("--data-plane", "native", "--data-plane-threads", "2")


@contextlib.contextmanager
def stopped(pid: int, name: str) -> Iterator[None]:
    """Keep the thread of a process that has a name from running, until the block ends."""
    [thread] = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().strip() == name]
    number = int(thread.name)
    libc = ctypes.CDLL(None, use_errno=True)

    def trace(request: int) -> None:
        if libc.ptrace(request, number, None, None):
            raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")

    trace(SEIZE)
    trace(INTERRUPT)
    wait_until(lambda: "State:\tt" in (thread / "status").read_text(), f"{name} is stopped")
    try:
        yield
    finally:
        try:
            trace(DETACH)
        except ProcessLookupError:  # it has ended, and its process waits until this is seen
            os.waitpid(number, WALL)


def test_a_thread_that_hangs_is_reported_until_it_answers(tmp_path: Path) -> None:
    receiver = Receiver(str(tmp_path / "notify"))
    with (
        contextlib.closing(receiver),
        FakeBroker({}) as broker,
        ProxyProcess(broker.address, arguments=THREADS, environment=receiver.variables) as proxy,
        RawClient(proxy.port) as one,
        RawClient(proxy.port) as other,
    ):
        warm_up(proxy, NATIVE, one, other)
        with stopped(proxy.pid, "headrace-data-0"):
            line = proxy.wait_for_log("data plane thread does not answer")
            assert "thread=0" in line
            problem = "data plane thread 0 has not answered for "
            for status, text in map(proxy.get, PROBES):
                assert (status, problem in text) == (503, True)
            assert proxy.metric("headrace_native_silence_seconds") >= SILENT_S
            wait_until_steady(
                lambda: len(receiver.messages()), "it asks to be restarted", steady_s=3 * WATCHDOG_S, timeout_s=20
            )
            for client in (one, other):
                client.request(messages.HEARTBEAT, 1, messages.heartbeat_body())
            for client in (one, other):
                client.sock.settimeout(1)
            answered = [client for client in (one, other) if is_answered(client)]
            assert len(answered) == 1, "the connection of the other thread is relayed"
        for client in {one, other} - {*answered}:
            client.sock.settimeout(40)
            assert client.reply()[1] == HEARTBEAT_REPLY, "what waited is answered then"
        proxy.wait_for_log("data plane thread answers again")
        assert [status for status, _ in map(proxy.get, PROBES)] == [200, 200]
        before = len(receiver.messages())
        wait_until(lambda: len(receiver.messages()) > before, "systemd is notified that it runs")


def is_answered(client: RawClient) -> bool:
    try:
        return client.reply()[1] == HEARTBEAT_REPLY
    except TimeoutError:
        return False


def test_a_proxy_whose_thread_hangs_ends_all_the_same() -> None:
    config = '[shutdown]\ndrain_timeout = "1s"\n'
    with FakeBroker({}) as broker, ProxyProcess(broker.address, config=config, arguments=THREADS) as proxy:
        with RawClient(proxy.port) as one, RawClient(proxy.port) as other:
            warm_up(proxy, NATIVE, one, other)
            with stopped(proxy.pid, "headrace-data-1"):
                proxy.signal(signal.SIGTERM)
                proxy.wait_for_log("a thread of the native data plane does not answer, so the process ends")
        assert proxy.wait(20) == -signal.SIGABRT
