"""Quotas of teams, over memory sockets and on a fake clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from structlog.testing import capture_logs

from headrace.config import loads
from headrace.plugins.metrics.names import labels_of
from headrace.plugins.team_quotas import TeamQuotas
from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.proxy.server.preflight import rules_of
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.options import OptionsError
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.requests import TopicMutation
from headrace.quota_callbacks.testing import make_connection, make_context, make_request
from tests.config.documents import MINIMAL
from tests.proxy.mutation_script import CREATE, WINDOWS, asked, create, created, outcome
from tests.proxy.playbook import new_hooks, open_book, read_reply, reply, request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trio.testing import MockClock

    from tests.proxy.playbook import Book

PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH
PRODUCED, FETCHED = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
OPTIONS = {"team_quotas": {"teams": {"blue": {"users": ["alice", "bob"]}, "red": {"client_ids": ["red-*"]}}}}
BLUE, RED, ANY_TEAM = (QuotaEntity(other=(("team", name),)) for name in ("blue", "red", DEFAULT))


async def produce(book: Book, user: str, number: int, size: int, client_id: str = "c") -> int:
    """Produce when the client is not muted; return the throttle time in ms."""
    await trio.sleep_until(book.connection.mute.until_s)
    book.connection.info.user = user
    frame = request(PRODUCE, 9, number, client_id, acks=1, padding=size)
    answer = await book.round_trip(frame, reply(PRODUCE, 9, number))
    throttle_ms: int = read_reply(PRODUCE, 9, answer)["throttle_time_ms"]
    return throttle_ms


async def test_a_team_shares_one_bucket(autojump_clock: MockClock) -> None:
    async with open_book(
        plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=[(PRODUCED, BLUE, 1000)]
    ) as book:
        assert await produce(book, "alice", 1, 6000) == 0
        assert await produce(book, "carol", 2, 60_000) == 0
        assert await produce(book, "bob", 3, 6000) == pytest.approx(2000, abs=100)
        assert await produce(book, "carol", 4, 60_000) == 0
        (decision,) = book.shared.decisions
        assert (decision.quota, decision.entity, decision.limit) == ("producer_byte_rate", "team=blue", 1000)


def hooks_with(key: QuotaKey, limits: Mapping[QuotaEntity, float], **plugins: object) -> HookCalls:
    """Return the hooks of the built-in callbacks and the plugin, with quotas of one key."""
    hooks = new_hooks({"team_quotas": TeamQuotas(), **plugins})
    quotas = ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()), metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit
    )
    hooks.configure(quotas, OPTIONS)
    hooks.flatten()
    for entity, limit in limits.items():
        hooks.update_quota(key, entity, Quota(value=limit))
    quotas.quotas_changed()
    return hooks


@pytest.mark.parametrize(
    ("names", "team"),
    [
        ({"user": "alice"}, "blue"),
        ({"user": "carol", "client-id": "red-1"}, "red"),
        ({"user": "alice", "client-id": "red-1"}, "blue"),
        ({"client-id": "red-1"}, "red"),
        ({"team": "green", "user": "alice"}, "green"),
        ({"user": "carol"}, None),
        ({"topic": "orders"}, None),
    ],
)
def test_the_team_whose_quotas_apply(names: dict[str, str], team: str | None) -> None:
    plugin = TeamQuotas()
    plugin.configure(make_context(OPTIONS["team_quotas"]))
    (definition,) = plugin.quota_definitions()
    assert definition.names_for(names) == (() if team is None else (team,))


async def test_the_quotas_of_team_and_user_are_both_enforced_and_the_longest_throttle_counts(
    autojump_clock: MockClock,
) -> None:
    quotas = [(PRODUCED, BLUE, 2000), (PRODUCED, QuotaEntity(user="bob"), 500)]
    async with open_book(plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=quotas) as book:
        assert await produce(book, "bob", 1, 10_000) == pytest.approx(10_000, abs=300)
        await trio.sleep(20)
        assert await produce(book, "bob", 2, 4_000) == 0
        assert await produce(book, "alice", 3, 20_000) == pytest.approx(2000, abs=200)
        assert [decision.entity for decision in book.shared.decisions] == ["user=bob", "team=blue"]


async def test_members_by_client_id_and_the_default_of_all_teams(autojump_clock: MockClock) -> None:
    quotas = [(PRODUCED, ANY_TEAM, 1000), (PRODUCED, BLUE, 10**6)]
    async with open_book(plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=quotas) as book:
        assert await produce(book, "alice", 1, 20_000, "red-1") == 0
        assert await produce(book, "carol", 2, 6000, "red-1") == 0
        assert await produce(book, "dave", 3, 6000, "red-2") == pytest.approx(2000, abs=100)
        assert await produce(book, "dave", 4, 90_000, "green") == 0
        (decision,) = book.shared.decisions
        assert decision.entity == "team=<default>"


async def test_a_quota_is_changed_and_removed_while_a_connection_is_open(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"team_quotas": TeamQuotas()}, options=OPTIONS) as book:
        hooks, quotas = book.shared.hooks, book.shared.hooks.quotas
        assert quotas is not None
        assert await produce(book, "alice", 1, 50_000) == 0
        hooks.update_quota(PRODUCED, BLUE, Quota(value=1000))
        quotas.quotas_changed()
        assert await produce(book, "alice", 2, 20_000) == pytest.approx(10_000, abs=300)
        hooks.remove_quota(PRODUCED, BLUE)
        quotas.quotas_changed()
        assert await produce(book, "alice", 3, 50_000) == 0
        assert hooks.errors == 0


async def test_fetches_are_charged(autojump_clock: MockClock) -> None:
    quotas = [(FETCHED, BLUE, 1000), (FETCHED, QuotaEntity(user="alice"), 500)]  # not bob's
    async with open_book(plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=quotas) as book:
        book.connection.info.user = "bob"
        for number in (1, 2):
            frame = request(FETCH, 12, number, max_bytes=5000)
            row = {"topic": "t", "partitions": [{"partition_index": 0, "records": bytes(9000)}]}
            await book.round_trip(frame, reply(FETCH, 12, number, responses=[row]))
        (decision,) = book.shared.decisions
        assert (decision.quota, decision.entity) == ("consumer_byte_rate", "team=blue")
        assert decision.throttle_ms == pytest.approx(8000, abs=300)


@pytest.mark.parametrize(("of_user", "capped_at"), [(None, 10_000), (2000, 10_000), (500, 5000)])
def test_the_lower_cap_of_a_fetch_holds(of_user: int | None, capped_at: int) -> None:
    limits = {BLUE: 1000} | ({} if of_user is None else {QuotaEntity(user="alice"): of_user})
    hooks = hooks_with(FETCHED, limits)
    fetch = make_request(FETCH, connection=make_connection(user="alice"))
    assert hooks.request_received(hooks.request_callbacks(FETCH), fetch, 0) is None
    assert fetch.fetch_max_bytes == capped_at
    assert fetch.alone


async def test_paced_requests_of_a_team_are_held(autojump_clock: MockClock) -> None:
    policy = QuotaPolicy(mode=EnforcementMode.PACED)
    async with open_book(
        plugins={"team_quotas": TeamQuotas()},
        options=OPTIONS,
        quotas=[(PRODUCED, BLUE, Quota(value=1000, policy=policy))],
    ) as book:
        began = trio.current_time()
        for number, user in enumerate(("alice", "bob", "alice", "bob")):
            await produce(book, user, number, 1000)
        assert trio.current_time() - began == pytest.approx(2, abs=0.3)
        assert {decision.entity for decision in book.shared.decisions} == {"team=blue"}


async def test_a_new_connection_of_a_throttled_team_waits(autojump_clock: MockClock) -> None:
    async with open_book(
        plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=[(PRODUCED, BLUE, 1000)]
    ) as book:
        hooks = book.shared.hooks
        assert await produce(book, "alice", 1, 20_000) > 9000
        now_ms = int(trio.current_time() * 1000)
        other = make_request(
            PRODUCE, connection=make_connection(user="bob"), request_bytes=100, received_s=now_ms / 1000 + 1
        )
        verdict = hooks.request_received(hooks.request_callbacks(PRODUCE), other, now_ms + 1000)
        assert verdict is not None
        assert verdict.hold_ms > 8000
        assert [name for name, _ in verdict.ask_again] == ["byte_rate for team"]
        hooks.request_abandoned(other, now_ms + 1000)
        assert not other.notes


def test_a_bucket_is_shown_and_kept_as_that_of_the_team() -> None:
    hooks = hooks_with(PRODUCED, {BLUE: 1000})
    produced = make_request(PRODUCE, connection=make_connection(user="alice"), request_bytes=20_000)
    assert hooks.request_received(hooks.request_callbacks(PRODUCE), produced, 0) is not None
    (bucket,) = hooks.quotas or ()
    assert labels_of(bucket) == {"quota": "producer_byte_rate", "team": "blue"}
    assert (bucket.limit, bucket.entity) == (1000, "team=blue")
    restarted = make_context(quota_limit=hooks.quota_limit).quotas
    restarted.restore("producer_byte_rate", bucket.tags, bucket.state(0), 0)
    (restored,) = restarted
    assert restored.observed(0) == bucket.observed(0) > 0


@pytest.mark.parametrize("options", [{}, {"teams": {}}])
def test_without_teams_nothing_is_defined(options: dict[str, Any]) -> None:
    plugin = TeamQuotas()
    plugin.configure(make_context(options))
    assert plugin.quota_definitions() == ()


def test_a_quota_whose_team_a_reload_removes_is_warned_of() -> None:
    plugin = TeamQuotas()
    plugin.configure(make_context(OPTIONS["team_quotas"]))
    for entity in (BLUE, RED, ANY_TEAM):
        plugin.update_quota(PRODUCED, entity, 1, QuotaPolicy())
    put_into_force = plugin.changed_options({"teams": {"red": {"users": ["carol"]}}})
    assert put_into_force is not None
    with capture_logs() as logs:
        put_into_force()
    assert [(each["log_level"], each["team"], each["key"]) for each in logs] == [("warning", "blue", PRODUCED)]


def test_a_quota_of_an_unknown_team_is_kept_and_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = TeamQuotas()
    plugin.configure(make_context(OPTIONS["team_quotas"]))
    assert plugin.update_quota(PRODUCED, QuotaEntity(other=(("team", "bleu"),)), 1, QuotaPolicy())
    assert "there is no such team" in capsys.readouterr().out
    assert not plugin.update_quota(PRODUCED, QuotaEntity(user="alice"), 1, QuotaPolicy())
    assert not plugin.remove_quota(PRODUCED, QuotaEntity(user="alice"))


# --- keys other than byte rates ---

BOB = QuotaEntity(user="bob")
MUTATIONS, REQUEST_TIME, PRODUCER_IDS = (
    QuotaKey.CONTROLLER_MUTATION_RATE,
    QuotaKey.REQUEST_PERCENTAGE,
    QuotaKey.PRODUCER_IDS_RATE,
)


async def create_topics(book: Book, version: int, number: int, *topics: tuple[str, int]) -> tuple[dict[str, int], int]:
    """Create topics as bob, none of which the broker refuses; return the error codes and the throttle time in ms."""
    await trio.sleep_until(book.connection.mute.until_s)
    book.connection.info.user = "bob"
    await book.client.sends(create(version, *topics, number=number))
    await book.upstream.wait_for_dial(1)
    while True:
        frame = await book.broker.receives()
        sent = asked(frame, CREATE, version)
        names = [row["name"] for row in sent["topics"]]
        await book.broker.sends(created(version, *names, number=int.from_bytes(frame[8:12], "big")))
        if not sent["validate_only"]:
            return outcome(await book.client.receives(), CREATE, version)


def mutation_tokens(book: Book) -> dict[str, float]:
    now_ms = int(trio.current_time() * 1000)
    return {bucket.entity: round(bucket.observed(now_ms)) for bucket in book.shared.hooks.quotas or ()}


@pytest.mark.parametrize(("of_team", "of_user"), [(1, 10), (10, 1)])
@pytest.mark.parametrize("of_second", [3, 500])
async def test_mutations_are_refused_by_the_lower_quota_and_charged_to_neither(
    autojump_clock: MockClock, of_team: int, of_user: int, of_second: int
) -> None:
    """The throttle is that of the lower quota, also if the second topic alone would overdraw the higher one."""
    quotas = [(MUTATIONS, BLUE, of_team), (MUTATIONS, BOB, of_user)]
    async with open_book(
        plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=quotas, windows=WINDOWS
    ) as book:
        codes, throttle_ms = await create_topics(book, 6, 1, ("first", 12), ("second", of_second), ("third", 1))
        assert codes == {"first": 0, "second": 89, "third": 89}
        assert throttle_ms == 2000
        lower, higher = ("team=blue", "user=bob") if of_team < of_user else ("user=bob", "team=blue")
        assert mutation_tokens(book) == {lower: -2, higher: 88}
        (decision,) = book.shared.decisions
        assert (decision.kind.value, decision.entity) == ("refused", lower)


@pytest.mark.parametrize(("of_team", "of_user"), [(1, 10), (10, 1)])
def test_topics_created_by_metadata_are_charged_to_neither_if_one_quota_refuses_them(
    of_team: int, of_user: int
) -> None:
    hooks = hooks_with(MUTATIONS, {BLUE: of_team, BOB: of_user})
    calls, limits = hooks.request_callbacks(ApiKey.METADATA), {}
    for number in (1, 2):
        request = make_request(ApiKey.METADATA, api_version=12, connection=make_connection(user="bob"))
        request.mutations = (TopicMutation(topic=f"t{number}", partitions=15),)
        verdict = hooks.request_received(calls, request, 0)
        refused = verdict is not None and verdict.refusal is not None
        assert refused == (number == 2)
        limits = {bucket.limit: round(bucket.observed(0)) for bucket in hooks.quotas or ()}
    assert limits == {1.0: -4, 10.0: 95}


async def test_mutations_of_old_clients_are_muted_by_the_longer_throttle(autojump_clock: MockClock) -> None:
    quotas = [(MUTATIONS, BLUE, 1), (MUTATIONS, BOB, 10)]
    async with open_book(
        plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=quotas, windows=WINDOWS
    ) as book:
        assert await create_topics(book, 5, 1, ("first", 15)) == ({"first": 0}, 5000)


def request_time_hooks(limits: Mapping[QuotaEntity, float], handler_ms: float) -> HookCalls:
    class Costs:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def request_time_ms(self) -> float:
            return handler_ms

    return hooks_with(REQUEST_TIME, limits, costs=Costs())


@pytest.mark.parametrize("limits", [{BLUE: 1}, {BLUE: 1, BOB: 100}, {BLUE: 100, BOB: 1}], ids=len)
@pytest.mark.parametrize("answered", [True, False])
def test_user_and_team_are_charged_the_same_thread_time(limits: dict[QuotaEntity, float], answered: bool) -> None:
    """100 ms are what 1 % lets pass in a first request: a millisecond of the proxy's own time is above it."""
    hooks = request_time_hooks(limits, 100.0)
    request = make_request(ApiKey.HEARTBEAT, connection=make_connection(user="bob"))
    calls = hooks.request_callbacks(ApiKey.HEARTBEAT)
    assert hooks.request_received(calls, request, 0) is None
    assert request.connection.measure_thread_time
    request.connection.thread_ns, request.forwarded_s = 1_000_000, 0.0
    if answered:
        verdict = hooks.response_received(hooks.response_callbacks(ApiKey.HEARTBEAT), request, 0)
    else:
        verdict = hooks.request_abandoned(request, 0)
        assert hooks.request_abandoned(request, 0) is None, "charged once"
    assert verdict is not None
    total_ns = 101_000_000
    assert request.charged_thread_ns == total_ns
    assert request.connection.thread_ns == 0
    measured = {bucket.entity: bucket.observed(0) for bucket in hooks.quotas or ()}
    assert measured == {str(entity): pytest.approx(total_ns / 1e7 / 10) for entity in limits}


def test_exempt_thread_time_is_counted_once() -> None:
    hooks = request_time_hooks({BLUE: 1, BOB: 1}, 110.0)
    request = make_request(PRODUCE, connection=make_connection(user="bob"))
    request.acks = 0
    assert hooks.request_received(hooks.request_callbacks(PRODUCE), request, 0) is None
    assert hooks.quotas is not None
    assert hooks.quotas.exempt_request_time.rate(0) == pytest.approx(11 / 29, rel=0.1)


def test_a_refused_request_is_charged_to_both() -> None:
    hooks = request_time_hooks({BLUE: 1, BOB: 1}, 0.0)
    request = make_request(ApiKey.HEARTBEAT, connection=make_connection(user="bob"))
    request.connection.thread_ns = 120_000_000
    verdict = hooks.request_denied(request, 0)
    assert verdict is not None
    assert verdict.throttle_ms == 1000
    assert [bucket.observed(0) for bucket in hooks.quotas or ()] == [pytest.approx(1.2)] * 2


def test_producer_ids_of_all_members_are_counted_together() -> None:
    hooks = hooks_with(PRODUCER_IDS, {BLUE: 3, BOB: 100})
    calls, throttled = hooks.request_callbacks(PRODUCE), []
    for number, user in enumerate(("alice", "bob", "alice", "bob", "carol")):
        request = make_request(PRODUCE, connection=make_connection(user=user))
        assert hooks.request_received(calls, request, 0) is None
        assert request.read_batches
        request.batches = [("t", 0, 100, number)]
        verdict = hooks.batches_received(request, 0)
        assert request.new_producer_ids == 1
        if verdict is not None and verdict.throttle_reason is not None:
            throttled.append((user, verdict.throttle_reason.entity))
    assert throttled == [("bob", "team=blue")]


def test_a_quota_of_a_team_whose_callback_is_not_loaded_would_not_be_enforced() -> None:
    manager = new_plugin_manager()
    for name, plugin in {"byte_rate": ByteRate(), "team_quotas": TeamQuotas()}.items():
        register(manager, name, plugin)
    hooks = HookCalls(manager)
    hooks.configure(make_context().quotas, OPTIONS)
    hooks.flatten()
    assert hooks.enforced.of(BLUE) == {PRODUCED, FETCHED}
    table = 'quotas = [{ entity = { team = "blue" }, controller_mutation_rate = 1 }]\n'
    with pytest.raises(StartupError, match=r"headrace\.toml:1: .*controller_mutation_rate: would not be .* team=blue"):
        rules_of(hooks).check_at_start(loads(table + MINIMAL, "headrace.toml", schema=None))


async def test_members_change_while_clients_are_connected(autojump_clock: MockClock) -> None:
    teams = TeamQuotas()
    async with open_book(plugins={"team_quotas": teams}, options=OPTIONS, quotas=[(PRODUCED, BLUE, 1000)]) as book:
        assert await produce(book, "carol", 1, 60_000) == 0
        put_into_force = teams.changed_options({"teams": {"blue": {"users": ["carol"]}}})
        assert put_into_force is not None
        put_into_force()
        assert await produce(book, "carol", 2, 11_000) > 0
        assert await produce(book, "alice", 3, 60_000) == 0


def test_the_first_team_needs_a_restart_and_the_last_one_too() -> None:
    teams = TeamQuotas()
    teams.configure(make_context())
    assert teams.changed_options(OPTIONS["team_quotas"]) is None
    teams.configure(make_context(OPTIONS["team_quotas"]))
    assert teams.changed_options({}) is None
    with pytest.raises(OptionsError, match="already a member of the team blue"):
        teams.changed_options({"teams": {"blue": {"users": ["alice"]}, "red": {"users": ["alice"]}}})
