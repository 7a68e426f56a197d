"""Parts of a proxy with several workers: the clock, the lock, the shared memory, and errors at start."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import time

import pytest
import trio

from headrace.plugins.otel_sdk import own_resource
from headrace.proxy.errors import StartupError
from headrace.proxy.server.running import run_loop
from headrace.proxy.workers.shared_memory import MAX_BUCKET_STATE_BYTES, ProcessLock, SharedMemory
from headrace.quota_callbacks.entities import QuotaKey

HOLDER = """
import fcntl, sys
fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_the_clock_is_the_systems() -> None:
    async def main() -> tuple[float, float]:
        began = trio.current_time()
        await trio.sleep(0.01)
        return began, trio.current_time()

    before = time.monotonic()
    began, ended = run_loop(main)
    assert before <= began <= ended - 0.01 <= time.monotonic() - 0.01


def test_a_startup_error_comes_out_of_all_nurseries() -> None:
    async def main() -> None:
        async with trio.open_nursery() as outer:
            outer.start_soon(trio.sleep_forever)
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                raise StartupError("no port is free")

    with pytest.raises(StartupError, match="no port is free"):
        run_loop(main)


def test_another_error_beside_a_startup_error_is_not_hidden() -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, StartupError("no port is free"))
            nursery.start_soon(fail, ZeroDivisionError())

    with pytest.raises(BaseExceptionGroup) as caught:
        run_loop(main)
    assert caught.value.subgroup(ZeroDivisionError) is not None


def test_the_lock_excludes_other_processes_and_dies_with_its_holder() -> None:
    lock = ProcessLock()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock._fd)],
        pass_fds=[lock._fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError):
            fcntl.lockf(lock._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.kill()
        with lock:
            pass
    for _ in range(2):
        with lock:
            pass


@pytest.mark.parametrize(("workers", "samples"), [(2, 11), (64, 11), (2, 2**31 - 1), (64, 2**31 - 1)])
def test_there_is_room_for_buckets_with_every_configuration(workers: int, samples: int) -> None:
    memory = SharedMemory(workers, samples)
    assert memory._bucket_state.nbytes <= MAX_BUCKET_STATE_BYTES
    place = memory.place(workers - 1)
    for number in range(1000):
        assert place.bucket_state.row((QuotaKey.PRODUCER_BYTE_RATE, (("user", str(number)),))) is not None
    assert place.bucket_state.left_out == 0
    memory.worker_lost(workers - 1)


@pytest.mark.parametrize(
    ("worker", "set_to", "instance"),
    [
        (None, "service.instance.id=berlin-1", "berlin-1"),
        (3, "service.instance.id=berlin-1", "berlin-1-worker-3"),
        (3, "", r".+-worker-3"),
    ],
)
def test_each_worker_is_an_instance_to_receivers(
    monkeypatch: pytest.MonkeyPatch, worker: int | None, set_to: str, instance: str
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", set_to)
    assert re.fullmatch(instance, str(own_resource(worker).attributes["service.instance.id"]))
