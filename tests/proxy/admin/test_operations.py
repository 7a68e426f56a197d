"""Whether the proxy is ready: its listeners may lead to several listeners of brokers, and a thread may hang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.config import Admin
from headrace.proxy.admin.access import Access
from headrace.proxy.admin.http import HttpRequest
from headrace.proxy.admin.operations import Operations
from headrace.proxy.admin.server import AdminServer
from headrace.proxy.counters import AdminCounters
from headrace.proxy.data_plane.thread_watch import ThreadWatch
from headrace.proxy.network.listener import Listener
from headrace.proxy.network.topology import Topology
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from tests.proxy.playbook import open_book

if TYPE_CHECKING:
    from trio.testing import MockClock

ANSWER_S = 3.0
HANGING = "data plane thread 1 has not answered for 12 s"


class Brokers:
    """A listener of brokers that answers, or does not, after a while."""

    def __init__(self, setting: str, *, answer: bool) -> None:
        self.setting = setting
        self.answer = answer
        self.asked = 0

    async def problem(self) -> str:
        self.asked += 1
        await trio.sleep(ANSWER_S)
        return "" if self.answer else f"no bootstrap server of {self.setting} answers"


def listener(setting: str, brokers: Brokers) -> Listener:
    topology = Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3))
    return Listener(setting=setting, topology=topology, upstream=brokers)  # type: ignore[arg-type]


async def no_body() -> bytes:
    return b""


class HangingDataPlane:
    """A data plane whose second thread has not answered for 12 seconds."""

    def __init__(self) -> None:
        self.meters = SimpleNamespace(grant=lambda: None)
        self.watch = ThreadWatch(2)
        for second in range(13):
            self.watch.check([second, 0], float(second))


@pytest.mark.parametrize(
    ("first", "further", "reasons"),
    [
        (True, True, []),
        (False, True, ["no bootstrap server of upstream answers"]),
        (True, False, ["no bootstrap server of listeners.far.upstream answers"]),
    ],
)
async def test_brokers_that_do_not_answer_are_named(
    first: bool, further: bool, reasons: list[str], autojump_clock: MockClock
) -> None:
    near, same = Brokers("upstream", answer=first), Brokers("upstream", answer=first)
    far = Brokers("listeners.far.upstream", answer=further)
    async with open_book() as book:
        shared = book.shared
        shared.listeners = (listener("listen", near), listener("listeners.near", same), listener("listeners.far", far))
        operations = Operations(shared, [])
        operations.serving = True
        began_s = trio.current_time()
        assert await operations.not_ready() == reasons
        assert trio.current_time() - began_s == pytest.approx(ANSWER_S), "one waits for the other"
        assert near.asked + same.asked == far.asked == 1


async def test_plugins_have_reasons_and_one_that_raises_has_none(autojump_clock: MockClock) -> None:
    class Waits:
        headrace_hooks = HOOK_VERSION
        reason: str | None = "the list of teams is missing"

        @hookimpl
        def not_ready(self) -> str | None:
            return self.reason

    class Raises:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def not_ready(self) -> str | None:
            raise LookupError

    waits = Waits()
    async with open_book(plugins={"teams": waits, "broken": Raises()}) as book:
        book.shared.listeners = (listener("listen", Brokers("upstream", answer=True)),)
        operations = Operations(book.shared, [])
        operations.serving = True
        assert await operations.not_ready() == ["plugin teams: the list of teams is missing"]
        assert book.shared.hooks.failures == {"broken": 1}
        waits.reason = None
        assert await operations.not_ready() == []


async def test_a_thread_of_the_data_plane_that_hangs_is_named(autojump_clock: MockClock) -> None:
    data_plane: Any = HangingDataPlane()
    async with open_book() as book:
        shared = book.shared
        shared.listeners = (listener("listen", Brokers("upstream", answer=False)),)
        shared.data_plane = data_plane
        operations = Operations(shared, [])
        operations.serving = True
        assert operations.hanging == HANGING
        assert await operations.not_ready() == [HANGING, "no bootstrap server of upstream answers"]
        settings = Admin.model_validate({"listen": "127.0.0.1:0"})
        server = AdminServer(operations, Access(lambda: settings, None, AdminCounters()))
        probe = HttpRequest(
            method="GET", path="/livez", query={}, headers={"host": "localhost"}, read_body=no_body, client="127.0.0.1"
        )
        silent = await server.answer(probe)
        assert (silent.status, HANGING.encode() in silent.body) == (503, True)
        data_plane.watch.check([13, 1], 13.0)
        assert (await server.answer(probe)).status == 200
        assert operations.hanging == ""
        assert await operations.not_ready() == ["no bootstrap server of upstream answers"]
