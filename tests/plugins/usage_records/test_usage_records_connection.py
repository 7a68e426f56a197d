"""What usage records contain of a connection's requests: thread time is what ``request_percentage`` charges, or would;
mutations and producer ids are in the records that the page names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from headrace.config.loading import load_quotas
from headrace.plugins.usage_records.plugin import UsageRecords
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.requests import PERCENT_PER_NS
from tests.proxy.connection.test_producer_ids import produce
from tests.proxy.mutation_script import create, created
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

    from headrace.quota_callbacks.requests import Request
    from tests.proxy.playbook import Book

PRODUCE, HEARTBEAT, HANDSHAKE, AUTHENTICATE = (
    ApiKey.PRODUCE, ApiKey.HEARTBEAT, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE,
)  # fmt: skip
KEY = QuotaKey.REQUEST_PERCENTAGE
ESTIMATE_MS = 3.0
UNLIMITED = 1e9


class Costs:
    """A cost model, and time that the proxy spends on each request."""

    headrace_hooks = HOOK_VERSION

    @hookimpl
    def request_received(self, request: Request) -> None:
        request.connection.thread_ns += 100_000 * (1 + request.correlation_id)

    @hookimpl
    def request_time_ms(self, request: Request) -> float:
        return ESTIMATE_MS


class ToFolder(UsageRecords):
    """With the folder as its option; the book has none."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        options = {"folder": str(self.folder), "name": "here"}
        super().configure(
            PluginContext(options=options, quotas=context.quotas, request_time_ms=context.request_time_ms)
        )

    @property
    def thread_ns(self) -> int:
        """The thread time of what was delivered, in all seconds."""
        assert self._seconds is not None
        self._seconds.turn(self._seconds.second + 1)
        return sum(row.thread_ns for _, rows in self._seconds.finished for row in rows.values())


@pytest.fixture
def usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToFolder]:
    made = ToFolder(tmp_path)
    yield made
    made.close()


async def work(book: Book) -> None:
    """Of all sorts: exempt or not, with and without a reply of their own."""
    await book.round_trip(request(HANDSHAKE, 1, 1, mechanism="PLAIN"), reply(HANDSHAKE, 1, 1, mechanisms=["PLAIN"]))
    await book.round_trip(request(AUTHENTICATE, 2, 2, auth_bytes=b"\0alice\0pw"), reply(AUTHENTICATE, 2, 2))
    await book.round_trip(request(HEARTBEAT, 4, 3), reply(HEARTBEAT, 4, 3))
    await book.client.sends(request(PRODUCE, 9, 4, acks=0, padding=10))
    await book.broker.receives()
    for number in range(5, 30):
        await book.round_trip(request(HEARTBEAT, 4, number), reply(HEARTBEAT, 4, number))
    await trio.testing.wait_all_tasks_blocked()
    book.shared.hooks.completed.deliver()


async def test_it_is_what_the_bucket_was_charged(usage: ToFolder, autojump_clock: MockClock) -> None:
    quotas = [(KEY, QuotaEntity(client_id="c"), UNLIMITED)]
    async with open_book(plugins={"costs": Costs(), "usage": usage}, quotas=quotas) as book:
        await work(book)
        assert book.shared.hooks.quotas is not None
        bucket = book.shared.hooks.quotas.bucket(KEY, "ANONYMOUS", "c")
        assert isinstance(bucket, RateBucket)
        assert usage.thread_ns > 26 * ESTIMATE_MS * 1e6
        assert usage.thread_ns * PERCENT_PER_NS == pytest.approx(bucket._rate._total)


async def test_it_is_the_same_where_nobody_charges_it(usage: ToFolder, autojump_clock: MockClock) -> None:
    async with open_book(plugins={"costs": Costs(), "usage": usage}) as book:
        await trio.testing.wait_all_tasks_blocked()
        book.connection.info.measure_thread_time = False  # the plugin has asked for it; the estimate is exact without
        await work(book)
        own_ns = sum(100_000 * (1 + number) for number in (3, *range(5, 30)))
        assert usage.thread_ns == 26 * ESTIMATE_MS * 1e6 + own_ns
        assert book.connection.info.thread_ns == 0


async def test_the_proxys_own_time_is_measured_where_usage_is_recorded(
    usage: ToFolder, autojump_clock: MockClock
) -> None:
    async with open_book(plugins={"usage": usage}) as book:
        info = book.connection.info
        UsageRecords().connection_opened(info)
        assert not info.measure_thread_time, "it is not switched on"
        book.shared.hooks.connection_opened(info)
        assert info.measure_thread_time


async def test_paced_requests_tell_what_was_settled(usage: ToFolder, autojump_clock: MockClock) -> None:
    policy = QuotaPolicy(mode=EnforcementMode.PACED)
    quotas = [(KEY, QuotaEntity(client_id="c"), Quota(value=UNLIMITED, policy=policy))]
    async with open_book(plugins={"costs": Costs(), "usage": usage}, quotas=quotas) as book:
        await work(book)
        assert book.shared.hooks.quotas is not None
        bucket = book.shared.hooks.quotas.bucket(KEY, "ANONYMOUS", "c")
        assert isinstance(bucket, RateBucket)
        assert usage.thread_ns * PERCENT_PER_NS == pytest.approx(bucket._rate._total)


async def test_with_the_pages_quotas_mutations_and_producer_ids_of_all_senders_are_recorded(
    usage: ToFolder, tmp_path: Path, autojump_clock: MockClock
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "usage-records.md").read_text(encoding="utf-8")
    (quotas,) = re.findall(r"```toml\n(\[\[quotas.*?)```", page, re.DOTALL)
    file = tmp_path / "quotas.toml"
    file.write_text(quotas, encoding="utf-8")
    charged = []
    for entities in ({}, load_quotas(file)[0]):
        flat = [(key, entity, quota) for entity, each in entities.items() for key, quota in each.items()]
        async with open_book(plugins={"usage": usage}, quotas=flat) as book:
            answer = await book.round_trip(create(5, ("new", 3)), created(5, "new"))
            assert read_reply(ApiKey.CREATE_TOPICS, 5, answer)["throttle_time_ms"] == 0
            await book.round_trip(produce(2, 7, 8, 7), reply(PRODUCE, 9, 2))
            await trio.testing.wait_all_tasks_blocked()
        assert usage._seconds is not None
        taken, _ = usage._seconds.take(usage._seconds.second + 1)
        rows = [row for _, each in taken for row in each.values()]
        charged.append((sum(row.mutations for row in rows), sum(row.producer_ids for row in rows)))
    assert charged == [(0, 0), (3, 2)]
