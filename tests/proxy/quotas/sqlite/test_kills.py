"""Several processes write one file, and are killed while they do: every acknowledged change is there, and none in part.

SIGKILL does not lose what the kernel has in memory, so this does not test the disk's own guarantees.
"""

from __future__ import annotations

import os
import select
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.quotas.sqlite.store import SqliteStore
from headrace.proxy.quotas.store import Snapshot
from tests.proxy.quotas.sqlite.alter_storm import TASKS, WriterServer, entities_of, values_after, writer_server
from tests.proxy.quotas.store_contract import copy, opened, replay, since

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

MOST_ACKNOWLEDGED = 40
LONGEST_DELAY_S = 0.03
WRITERS = 2


@pytest.fixture(scope="module")
def server() -> Iterator[WriterServer]:
    with writer_server() as server:
        yield server


class Writer:
    """A writer and what it has acknowledged: the last call of each task."""

    def __init__(self, server: WriterServer, path: str, name: str, calls: int = 0) -> None:
        self.name = name
        self._pipe = server.start(path, name, calls)
        self._text = b""
        self.acknowledged = 0
        while b"\n" not in self._text:
            assert self._read(60)
        self.process_id = int(self._text.split(b"\n")[0])

    def _read(self, wait_s: float) -> bool:
        """Read once. Return false at the end of the pipe, which is that of the process, and after ``wait_s``."""
        if not select.select([self._pipe], [], [], wait_s)[0]:
            return False
        data = os.read(self._pipe, 65536)
        self._text += data
        self.acknowledged = max(0, self._text.count(b"\n") - 1)
        return bool(data)

    def kill_after(self, acknowledged: int, delay_s: float) -> None:
        while self.acknowledged < acknowledged:
            assert self._read(60), f"the writer {self.name} has ended"
        select.select([], [], [], delay_s)  # a random instant within a call
        os.kill(self.process_id, signal.SIGKILL)

    def last_calls(self) -> list[int]:
        """Wait for its end. Return the number of the last acknowledged call of each task."""
        while self._read(60):
            pass
        os.close(self._pipe)
        calls = [0] * TASKS
        lines = self._text.split(b"\n")
        assert lines.pop() == b"", "lines are written at once"
        for line in lines[1:]:
            task, number = map(int, line.split())
            assert number == calls[task] + 1
            calls[task] = number
        return calls


async def kill_and_check(
    server: WriterServer, path: str, number: int, before: Snapshot, rng: random.Random
) -> Snapshot:
    """Run one round. ``before`` are the quotas at its begin; return those at its end."""
    writers = [Writer(server, path, f"{number}-{each}") for each in range(WRITERS)]
    for writer in writers:
        acknowledged = rng.randint(1, MOST_ACKNOWLEDGED) if rng.random() < 0.8 else 0  # 0: while it opens the file
        writer.kill_after(acknowledged, rng.random() * LONGEST_DELAY_S)
    calls = {writer.name: writer.last_calls() for writer in writers}
    async with opened(partial(SqliteStore, path)) as store:
        after = await store.snapshot()
        for name, last_calls in calls.items():
            for task, last in enumerate(last_calls):
                found = [dict(after.quotas.get(entity, {})) for entity in entities_of(name, task)]
                assert found[0] == found[1], "both entities are altered together"
                assert found[0] in (values_after(last), values_after(last + 1)), "acknowledged, or in flight"
        assert replay(copy(before.quotas), await since(store, before.sequence)) == after.quotas
    return after


async def kill_rounds(server: WriterServer, folder: Path, rounds: int, rng: random.Random) -> None:
    """Every fourth round begins with a new file, so that some are killed while they create it."""
    snapshot = Snapshot(sequence=0, quotas={})
    path = ""
    changed = 0
    for number in range(rounds):
        if number % 4 == 0:
            path = str(folder / f"quotas-{number}.sqlite")
            snapshot = Snapshot(sequence=0, quotas={})
        before = snapshot.sequence
        snapshot = await kill_and_check(server, path, number, snapshot, rng)
        changed += snapshot.sequence - before
    assert changed > rounds, "the writers did write"


async def test_writers_are_killed(server: WriterServer, tmp_path: Path, rng: random.Random) -> None:
    await kill_rounds(server, tmp_path, 8, rng)


@pytest.mark.soak
async def test_writers_are_killed_two_hundred_times(server: WriterServer, tmp_path: Path, rng: random.Random) -> None:
    await kill_rounds(server, tmp_path, 200, rng)


async def test_two_processes_lose_no_change(server: WriterServer, tmp_path: Path) -> None:
    """A third process follows them, and knows the same quotas at the end."""
    path = str(tmp_path / "quotas.sqlite")
    calls = 19
    async with opened(partial(SqliteStore, path)) as follower:
        begin = await follower.snapshot()
        writers = [Writer(server, path, f"writer-{number}", calls) for number in range(WRITERS)]
        quotas, position = copy(begin.quotas), begin.sequence
        with trio.fail_after(60):
            while len(quotas) < WRITERS * TASKS * 2 or any(calls not in each.values() for each in quotas.values()):
                changes = await since(follower, position)
                replay(quotas, changes)
                position = changes[-1].sequence if changes else position
        assert [writer.last_calls() for writer in writers] == [[calls] * TASKS] * WRITERS
        assert (await follower.snapshot()).quotas == quotas
        names = [writer.name for writer in writers]
        expected = {entity for name in names for task in range(TASKS) for entity in entities_of(name, task)}
        assert quotas == dict.fromkeys(expected, values_after(calls))
