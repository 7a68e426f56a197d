"""Scripts of KIP-124 at the proxy: the longest of all delays, exempt requests, and custom cost models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from headrace.proxy.connection.native.relay import NativeRelay
from headrace.proxy.connection.state import thread_time
from headrace.proxy.connection.state.thread_time import ONE_OF, ThreadTimeSampler, random_distance
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.cost_files import costs_text, load_costs
from headrace.quota_callbacks.builtin.request_costs import RequestCost, estimate_ms
from headrace.quota_callbacks.builtin.request_percentage import RequestPercentage
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.requests import Address, Connection, Request
from headrace.quota_callbacks.verdicts import Throttle
from tests.proxy.playbook import Book, open_book, read_reply, reply, request

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


PRODUCE, HEARTBEAT, API_VERSIONS = ApiKey.PRODUCE, ApiKey.HEARTBEAT, ApiKey.API_VERSIONS
KEY = QuotaKey.REQUEST_PERCENTAGE
ENTITY = QuotaEntity(client_id="c")


class Costs:
    """A cost model with the same number of milliseconds for every request."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, ms: float) -> None:
        self.ms = ms

    @hookimpl
    def request_time_ms(self, request: Request) -> float:
        return self.ms


def quota(percent: float, **policy: object) -> tuple[QuotaKey, QuotaEntity, Quota]:
    return KEY, ENTITY, Quota(value=percent, policy=QuotaPolicy(**policy))  # type: ignore[arg-type]


@pytest.fixture
def no_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy's own thread time is none. Measured, one step of a busy machine counts as several milliseconds."""
    monkeypatch.setattr(thread_time, "thread_time_ns", lambda: 1)


async def waits_s(book: Book) -> float:
    begin_s = trio.current_time()
    await book.client.sends(request(HEARTBEAT, 4, 99))
    await book.broker.receives()
    return trio.current_time() - begin_s


async def test_thread_time_beyond_the_quota_mutes_for_one_sample_at_most(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"costs": Costs(500)}, quotas=[quota(1)]) as book:
        answer = await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        assert read_reply(HEARTBEAT, 4, answer)["throttle_time_ms"] == 1000
        assert await waits_s(book) == pytest.approx(1, abs=0.01)


async def test_the_proxys_own_thread_time_is_charged_with_the_next_request(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"costs": Costs(0)}, quotas=[quota(1)]) as book:
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        assert book.connection.info.measure_thread_time
        book.connection.info.thread_ns = 300_000_000
        answer = await book.round_trip(request(HEARTBEAT, 4, 2), reply(HEARTBEAT, 4, 2))
        assert read_reply(HEARTBEAT, 4, answer)["throttle_time_ms"] == 1000
        assert book.connection.info.thread_ns < 300_000_000, "it was taken"


async def test_thread_time_goes_on_being_measured(autojump_clock: MockClock) -> None:
    """One of seven steps is measured and represents all."""
    async with open_book(plugins={"costs": Costs(0)}, quotas=[quota(100_000)]) as book:
        book.shared.thread_time = ThreadTimeSampler(lambda: ONE_OF)
        measured = 0
        for number in range(3 * ONE_OF):
            await book.round_trip(request(HEARTBEAT, 4, number), reply(HEARTBEAT, 4, number))
            await trio.testing.wait_all_tasks_blocked()
            measured += book.connection.info.thread_ns > 0
            book.connection.info.thread_ns = 0
        assert 3 <= measured <= 7


async def test_without_the_quota_nothing_is_measured(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        assert not book.connection.info.measure_thread_time
        assert book.connection.info.thread_ns == 0


async def test_the_longest_of_all_delays_applies(autojump_clock: MockClock) -> None:
    """Bytes throttle at the request, thread time at the reply: the later deadline applies, not the longer time."""

    class AtRequest:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def request_received(self, request: Request) -> Throttle | None:
            return Throttle(throttle_ms=1200) if request.correlation_id == 1 else None

    plugins = {"costs": Costs(500), "at_request": AtRequest()}
    async with open_book(plugins=plugins, quotas=[quota(1)]) as book:
        await book.client.sends(request(HEARTBEAT, 4, 1))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        await trio.sleep(1.0)
        await book.broker.sends(reply(HEARTBEAT, 4, 1))
        assert read_reply(HEARTBEAT, 4, await book.client.receives())["throttle_time_ms"] == 1000, "200 ms were left"
        assert await waits_s(book) == pytest.approx(1, abs=0.01)


@pytest.mark.usefixtures("no_own_time")
async def test_produce_without_acks_is_exempt_and_counted_as_such(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"costs": Costs(500)}, quotas=[quota(1)]) as book:
        frame = request(PRODUCE, 9, 1, acks=0, padding=10)
        await book.client.sends(frame)
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == frame
        assert await waits_s(book) == pytest.approx(0, abs=0.01)
        assert book.shared.hooks.quotas is not None
        assert book.shared.hooks.quotas.exempt_request_time.rate(0) == pytest.approx(50 / 30, rel=0.1)


async def test_a_connection_that_has_not_authenticated_is_held_as_anonymous(autojump_clock: MockClock) -> None:
    anonymous = (KEY, QuotaEntity(user="ANONYMOUS"), Quota(value=1))
    async with open_book(plugins={"costs": Costs(500)}, quotas=[anonymous]) as book:
        answer = await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        assert read_reply(HEARTBEAT, 4, answer)["throttle_time_ms"] == 1000


@pytest.mark.parametrize("estimate", [-1, float("nan"), float("inf"), "much"])
async def test_an_estimate_that_is_none_is_the_plugins_error(estimate: object, autojump_clock: MockClock) -> None:
    async with open_book(plugins={"costs": Costs(estimate)}, quotas=[quota(1)]) as book:  # type: ignore[arg-type]
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        assert book.shared.hooks.failures == {"costs": 1}


@pytest.mark.usefixtures("no_own_time")
async def test_paced_thread_time_lets_requests_take_turns(autojump_clock: MockClock) -> None:
    """20 ms each at 10 % of a thread are five per second, however they are sent. The cost of the first is unknown."""
    policy = {"mode": EnforcementMode.PACED, "burst_s": 0.0}
    async with open_book(plugins={"costs": Costs(20)}, quotas=[quota(10, **policy)]) as book:
        for number in range(6):
            await book.round_trip(request(HEARTBEAT, 4, number), reply(HEARTBEAT, 4, number))
        assert trio.current_time() == pytest.approx(5 * 0.2, abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": {}}, r"request_percentage\.cost: unknown key; did you mean .*costs\?"),
        ({"costs": 1}, "costs = 1: expected a table by API key"),
        ({"costs": {"Produce": {"base_ms": 1}}}, "costs.Produce = .*expected API key = "),
        ({"costs": {"0": {"base_ms": -1}}}, "costs.0 = .*base_ms is -1"),
        ({"costs": {"0": {"bas_ms": 1}}}, "costs.0 = .*unexpected keyword argument 'bas_ms'"),
        ({"costs": {"0": 5}}, "costs.0 = 5: expected API key"),
        ({"costs_file": 5}, "costs_file = 5: expected the path of a TOML file"),
        ({"costs_file": ""}, 'costs_file = "": expected the path of a TOML file'),
    ],
)
def test_invalid_costs_are_reported(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configured(options)


def test_costs_of_the_options_go_before_the_measured_ones() -> None:
    plugin = configured({"costs": {"12": {"base_ms": 7}}})
    connection = Connection(connection_id=1, peer=Address(host="h", port=1))
    heartbeat, produce = (Request(connection, key, 4, 1, "c", 100, 0.0) for key in (HEARTBEAT, PRODUCE))
    assert plugin.request_time_ms(heartbeat) == 7
    assert plugin.request_time_ms(produce) == estimate_ms(PRODUCE, 100, 0, None)
    heartbeat.forwarded_s, heartbeat.reply_s = 1.0, 1.002
    assert plugin.request_time_ms(heartbeat) == pytest.approx(2), "no longer than the broker had it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "costs.toml': No such file or directory; expected a TOML file with the table .costs. by API key"),
        ("[costs", "costs.toml': not TOML: .*at end of document"),
        ("[cost]", r"costs.toml': costs: required; .*cost: unknown key; did you mean costs\?; expected a TOML file"),
        ("", r"costs.toml': costs: required; expected a table by API key; expected a TOML file"),
        ("costs = 1", "costs.toml': costs = 1: expected a table by API key"),
        ("[costs]\n0 = { base_ms = -1 }", "costs.toml': costs.0 = .*base_ms is -1"),
        ("[costs]\nProduce = { base_ms = 1 }", "costs.toml': costs.Produce = .*expected API key = "),
    ],
)
def test_an_invalid_file_of_costs_is_reported(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "costs.toml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"^costs_file = .*{message}"):
        configured({"costs_file": str(file)})


def test_costs_of_a_file_go_before_the_measured_ones_and_costs_of_the_options_before_those(tmp_path: Path) -> None:
    file = tmp_path / "costs.toml"
    file.write_text("[costs]\n0 = { base_ms = 2, per_kib_ms = 4 }\n12 = { base_ms = 3 }\n", encoding="utf-8")
    plugin = configured({"costs_file": str(file), "costs": {"12": {"base_ms": 7}}})
    connection = Connection(connection_id=1, peer=Address(host="h", port=1))
    produce, heartbeat, metadata = (
        Request(connection, key, 4, 1, "c", 512, 0.0) for key in (PRODUCE, HEARTBEAT, ApiKey.METADATA)
    )
    assert plugin.request_time_ms(produce) == 2 + 4 * 0.5
    assert plugin.request_time_ms(heartbeat) == 7
    assert plugin.request_time_ms(metadata) == estimate_ms(ApiKey.METADATA, 512, 0, None)


def test_a_written_file_of_costs_can_be_read_again(tmp_path: Path) -> None:
    costs = {HEARTBEAT: RequestCost(base_ms=0.000012345), PRODUCE: RequestCost(base_ms=1234.5, per_kib_ms=0.0015)}
    file = tmp_path / "costs.toml"
    file.write_text(costs_text(costs, {0: "Produce"}, "Two lines\nof a head."), encoding="utf-8")
    assert file.read_text(encoding="utf-8").splitlines()[:4] == [
        "# Two lines", "# of a head.", "[costs]", "0 = { base_ms = 1234.5, per_kib_ms = 0.0015 }  # Produce",
    ]  # fmt: skip
    assert load_costs(str(file)) == costs


def configured(options: dict[str, object]) -> RequestPercentage:
    quotas = ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()), metric_tags=lambda *_: None, quota_limit=lambda *_: None
    )
    plugin = RequestPercentage()
    plugin.configure(PluginContext(options=options, quotas=quotas))
    return plugin


async def test_the_time_that_a_thread_of_the_data_plane_has_not_charged_is_added(autojump_clock: MockClock) -> None:
    progress = SimpleNamespace(requests=1, bytes=(0, 0, 0, 0, 0), hints=0, active_ns=0)
    rest = SimpleNamespace(completed=([], []), thread_ns=7, in_flight=[])
    async with open_book() as book:
        book.shared.data_plane = cast(
            "Any", SimpleNamespace(take_back=lambda _: rest, meters=SimpleNamespace(grant=list))
        )
        relay = NativeRelay(book.connection, cast("Any", None), cast("Any", None))
        relay._progress = cast("Any", progress)
        book.connection.info.thread_ns = 5
        relay.take_back()
        assert book.connection.info.thread_ns == 12


def test_which_steps_are_measured_is_random() -> None:
    """Otherwise a client could send what takes long in the steps between them."""
    distances = [random_distance() for _ in range(5_000)]
    assert set(distances) == set(range(1, 2 * ONE_OF))
    assert sum(distances) / len(distances) == pytest.approx(ONE_OF, rel=0.05)
    sampler = ThreadTimeSampler(iter([3, 1, 2, 9]).__next__)
    assert [bool(sampler.begin()) for _ in range(7)] == [False, False, True, True, False, True, False]
