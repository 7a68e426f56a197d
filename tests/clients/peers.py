"""The processes with connections to the brokers, from the kernel's list: checks that no client bypasses the proxy.

Two rules are checked over the time of a test. A connection to a broker's port whose owner could be seen belongs to the
proxy, to a broker, or to the test (`allow`). And there are no more connections, those included that were too short to
be seen at work and only left their TIME_WAIT, than clients connected to the proxy: it opens one for each.

Linux only: reads ``/proc/net/tcp`` and the descriptors of a few processes, where ``psutil.net_connections`` asks every
process of the machine.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from tests.clients.fronts import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.clients.fronts import Front

SAMPLE_S: Final = 1.0
"""Far below the minute for which the kernel remembers a closed connection, so that none is missed; and often enough to
see the owner of one that lasts. One look costs some twenty milliseconds, most of them the kernel's."""

ACCEPTED: Final = "headrace_connections_accepted_total"
CONNECTED: Final = ("headrace_connections", "headrace_upstream_connections")
"""As many of clients as to brokers: each client has its connection to a broker."""
_LISTENING: Final = "0A"
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class Tie(NamedTuple):
    """A connection to a broker: the ports of its two ends. All addresses are the loopback's."""

    client_port: int
    broker_port: int


class PeerWatch:
    """Watches the brokers' ports of some fronts from `start` to `stop`, in a thread of its own."""

    def __init__(self, fronts: Iterable[Front]) -> None:
        self._fronts = {broker.port: front for front in fronts for broker in front.cluster.brokers}
        self._proxies = {front.proxy.pid: front for front in self._fronts.values()}
        self._brokers = {broker.pid for front in self._fronts.values() for broker in front.cluster.brokers}
        self._owners: dict[Tie, int | None] = {}
        self._allowed: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peer watch")
        self._before: dict[Tie, set[int]] = {}
        """With the inodes, since ports are used again. Without its socket, a connection counts as the one before."""
        self._accepted: dict[int, float] = {}
        eventually(self._begin, "the proxies have dialled a broker for each client, and no client connects")

    def start(self) -> None:
        """Begin; what is connected already is not looked at."""
        self._thread.start()

    def allow(self, client_port: int) -> None:
        """Take a connection from this port for the test's own."""
        self._allowed.add(client_port)

    def stop(self) -> list[str]:
        """End, and return what broke the rules, in words."""
        self._ended.set()
        self._thread.join(10)
        self._look()
        strangers = [self._describe(tie, pid) for tie, pid in self._owners.items() if self._is_stranger(tie, pid)]
        return [*strangers, *(line for front in self._proxies.values() for line in self._surplus(front))]

    @property
    def client_ports(self) -> set[int]:
        """The other ends' ports of all connections seen so far, the brokers' own among them."""
        return {tie.client_port for tie in list(self._owners)}

    @property
    def earlier_ports(self) -> set[int]:
        """The other ends' ports of connections from before. A short one from such a port may not be counted."""
        return {tie.client_port for tie in self._before}

    def _begin(self) -> bool:
        """Note what is there, and return whether it can be told from what comes: a proxy that has accepted a client
        before, and dials the broker only now, would have a connection too many."""
        for pid, front in self._proxies.items():
            self._accepted[pid], clients, dialled = front.proxy.metrics(ACCEPTED, *CONNECTED)
            if clients != dialled:
                return False
        self._before.clear()
        for tie, inode in self._ties():
            self._before.setdefault(tie, {0}).add(inode)
        return all(front.proxy.metric(ACCEPTED) == self._accepted[pid] for pid, front in self._proxies.items())

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        inodes: dict[int, int] | None = None
        for tie, inode in list(self._ties()):
            if inode in self._before.get(tie, ()) or self._owners.get(tie) is not None:
                continue
            if inode and inodes is None:
                inodes = _sockets([*self._proxies, *self._brokers, os.getpid()])
            owner = None
            if inode and inodes is not None:
                owner = inodes.get(inode) or _search(inode)
            self._owners[tie] = owner

    def _ties(self) -> Iterator[tuple[Tie, int]]:
        """Every connection to a broker's port, with the inode of the client's socket; 0 where that is not known."""
        for table in _TABLES:
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    continue
                local, remote = (int(fields[at].rpartition(":")[2], 16) for at in (1, 2))
                if remote in self._fronts:
                    yield Tie(local, remote), int(fields[9])
                elif local in self._fronts:
                    yield Tie(remote, local), 0

    def _is_stranger(self, tie: Tie, pid: int | None) -> bool:
        if pid is None or pid in self._brokers or tie.client_port in self._allowed:
            return False
        front = self._proxies.get(pid)
        return front is None or self._fronts[tie.broker_port] is not front

    def _surplus(self, front: Front) -> list[str]:
        accepted = front.proxy.metric(ACCEPTED) - self._accepted[front.proxy.pid]
        ties = [
            tie
            for tie, pid in self._owners.items()
            if self._fronts[tie.broker_port] is front
            and pid not in self._brokers
            and tie.client_port not in self._allowed
        ]
        if len(ties) <= accepted:
            return []
        what = f"{len(ties)} connections to brokers of {front.version}"
        return [f"{what}, while {accepted:g} clients connected to the proxy: {ties}"]

    def _describe(self, tie: Tie, pid: int | None) -> str:
        try:
            name = " ".join(psutil.Process(pid).cmdline()[:3]) if pid is not None else "unknown"
        except psutil.Error:
            name = "gone"
        return f"process {pid} ({name}) connected to the broker at {tie.broker_port} from port {tie.client_port}"


def _sockets(pids: Iterable[int]) -> dict[int, int]:
    """The inodes of all sockets of these processes, and whose they are."""
    found: dict[int, int] = {}
    for pid in pids:
        try:
            entries = list(os.scandir(f"/proc/{pid}/fd"))
        except OSError:  # it has ended, or is not ours
            continue
        for entry in entries:
            try:
                target = os.readlink(entry.path)  # noqa: PTH115 - a link's text, in a loop over thousands
            except OSError:
                continue
            if target.startswith("socket:["):
                found[int(target[8:-1])] = pid
    return found


def _search(inode: int) -> int | None:
    """The process that has this socket, among all; ``None`` when it is closed by now."""
    return _sockets(psutil.pids()).get(inode)
