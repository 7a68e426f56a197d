"""Scripts of KIP-599 at the proxy: lookups, requests that reach the broker, and replies that reach the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from headrace.proxy.network.held_bytes import held
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaEntity
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.testing import make_request
from tests.proxy.mutation_script import (
    ADD,
    CREATE,
    DELETE,
    HEARTBEAT,
    KEY,
    METADATA,
    WINDOWS,
    asked,
    create,
    created,
    next_at_s,
    outcome,
    quota,
    validates,
)
from tests.proxy.playbook import framed, open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.quota_callbacks.requests import Request


async def test_strict_admits_topic_by_topic_and_answers_in_the_order_of_the_request(autojump_clock: MockClock) -> None:
    """B5: two topics of 30 partitions at 2 per second over 10 s: the first is admitted and overdraws, the second is
    refused."""
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        await book.client.sends(create(6, ("first", 30), ("second", 30)))
        await validates(book, ("first", 30), ("second", 30))
        went_on = asked(await book.broker.receives(), CREATE, 6)
        assert [row["name"] for row in went_on["topics"]] == ["first"]
        await book.broker.sends(created(6, "first"))
        answer = await book.client.receives()
        assert outcome(answer, CREATE, 6) == ({"first": 0, "second": 89}, 5000)
        rows = read_reply(CREATE, 6, answer)["topics"]
        assert [row["error_message"] for row in rows] == ["", "The throttling quota has been exceeded."]
        assert await next_at_s(book) == pytest.approx(5, abs=0.01)


async def test_permissive_forwards_everything_and_mutes(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        sent = create(5, ("first", 30), ("second", 30))
        answer = await book.round_trip(sent, created(5, "first", "second"))
        assert outcome(answer, CREATE, 5) == ({"first": 0, "second": 0}, 20_000)
        assert await next_at_s(book) == pytest.approx(20, abs=0.01)


async def test_a_request_that_arrives_in_pieces_is_forwarded_once(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        sent = create(5, ("first", 1), ("second", 1))
        for at in range(0, len(sent), 20):
            await book.client.sends(sent[at : at + 20])
            await wait_all_tasks_blocked()
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == sent
        await book.broker.sends(created(5, "first", "second"))
        assert outcome(await book.client.receives(), CREATE, 5) == ({"first": 0, "second": 0}, 0)
        assert book.broker.receives_nothing()


async def test_the_throttle_time_shrinks_while_the_broker_works(autojump_clock: MockClock) -> None:
    """KIP-599's example: 7 topics of 80 at 5 a second over 100 s leave -60 tokens, which take 12 s."""
    async with open_book(quotas=quota(5), windows={KEY: Window(samples=100, seconds=1)}) as book:
        topics = [(f"t{number}", 80) for number in range(7)]
        await book.client.sends(create(5, *topics))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        await trio.sleep(3)
        await book.broker.sends(created(5, *(name for name, _ in topics)))
        errors, throttle_ms = outcome(await book.client.receives(), CREATE, 5)
        assert set(errors.values()) == {0}
        assert throttle_ms == 9000
        assert await next_at_s(book) == pytest.approx(12, abs=0.01)


async def test_a_strict_request_that_exceeds_the_quota_gets_no_throttle_time_and_the_next_one_the_rest(
    autojump_clock: MockClock,
) -> None:
    async with open_book(quotas=quota(5), windows={KEY: Window(samples=100, seconds=1)}) as book:
        topics = [(f"t{number}", 80) for number in range(7)]
        await book.client.sends(create(6, *topics))
        await validates(book, *topics)
        asked(await book.broker.receives(), CREATE, 6)
        await book.broker.sends(created(6, *(name for name, _ in topics)))
        assert outcome(await book.client.receives(), CREATE, 6)[1] == 0
        await trio.sleep(2)
        await book.client.sends(create(6, ("late", 1), number=2))
        assert outcome(await book.client.receives(), CREATE, 6) == ({"late": 89}, 10_000)
        assert book.broker.receives_nothing()


async def test_what_the_broker_refuses_is_given_back(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        await book.round_trip(create(6, ("there", 100)), created(6, ("there", 36)))
        answer = await book.round_trip(create(6, ("new", 1), number=2), created(6, "new", number=2))
        assert outcome(answer, CREATE, 6) == ({"new": 0}, 0)


async def test_an_old_client_is_not_muted_for_what_the_broker_refused(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        answer = await book.round_trip(create(5, ("there", 100)), created(5, ("there", 36)))
        assert outcome(answer, CREATE, 5) == ({"there": 36}, 0)
        assert await next_at_s(book) == pytest.approx(0, abs=0.01)


async def test_validate_only_is_exempt(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        for number in range(5):
            sent = create(6, ("t", 1000), number=number, validate_only=True)
            answer = await book.round_trip(sent, created(6, "t", number=number))
            assert outcome(answer, CREATE, 6) == ({"t": 0}, 0)


async def test_who_has_no_quota_is_not_looked_at(autojump_clock: MockClock) -> None:
    for quotas in ([(KEY, QuotaEntity(user="other"), Quota(value=1))], []):
        async with open_book(quotas=quotas) as book:
            await book.round_trip(create(6, ("t", -1)), created(6, "t"))
            assert book.shared.counters.lookups == 0


async def test_the_brokers_default_is_asked_for(autojump_clock: MockClock) -> None:
    """-1 partitions: a copy with ValidateOnly shows how many they are, and which topics the broker would refuse."""
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        await book.client.sends(create(6, ("doomed", -1), ("default", -1), ("late", 1)))
        await book.upstream.wait_for_dial(1)
        lookup = asked(await book.broker.receives(), CREATE, 6)
        assert lookup["validate_only"] is True
        rows = [
            {"name": "doomed", "error_code": 36},
            {"name": "default", "num_partitions": 12},
            {"name": "late", "num_partitions": 1},
        ]
        await book.broker.sends(reply(CREATE, 6, 1, topics=rows))
        went_on = asked(await book.broker.receives(), CREATE, 6)
        assert went_on["validate_only"] is False
        assert [row["name"] for row in went_on["topics"]] == ["doomed", "default"]
        await book.broker.sends(created(6, ("doomed", 36), "default"))
        assert outcome(await book.client.receives(), CREATE, 6) == ({"doomed": 36, "default": 0, "late": 89}, 2000)


async def test_an_old_create_topics_is_validated_in_a_version_that_returns_errors(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        sent = create(4, ("default", -1))
        await book.client.sends(sent)
        await book.upstream.wait_for_dial(1)
        assert asked(await book.broker.receives(), CREATE, 5)["validate_only"] is True
        await book.broker.sends(reply(CREATE, 5, 1, topics=[{"name": "default", "num_partitions": 12}]))
        assert await book.broker.receives() == sent
        await book.broker.sends(created(4, "default"))
        assert outcome(await book.client.receives(), CREATE, 4) == ({"default": 0}, 2000)


def metadata(number: int, version: int, **partitions: int) -> bytes:
    rows = [{"name": name, "partitions": [{}] * count} for name, count in partitions.items()]
    return reply(METADATA, version, number, topics=rows)


async def test_deletions_cost_what_the_topics_have(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        await book.client.sends(request(DELETE, 5, 1, topic_names=["big", "gone", "small"]))
        await book.upstream.wait_for_dial(1)
        lookup = asked(await book.broker.receives(), METADATA, 4)
        assert lookup["allow_auto_topic_creation"] is False
        await book.broker.sends(metadata(1, 4, big=15, small=1))
        assert asked(await book.broker.receives(), DELETE, 5)["topic_names"] == ["big", "gone"]
        answer = reply(DELETE, 5, 1, responses=[{"name": "big"}, {"name": "gone", "error_code": 3}])
        await book.broker.sends(answer)
        assert outcome(await book.client.receives(), DELETE, 5) == ({"big": 0, "gone": 3, "small": 89}, 5000)


async def test_deletions_by_id(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        big, small = b"b" * 16, b"s" * 16
        rows = [{"name": None, "topic_id": big}, {"name": None, "topic_id": small}]
        await book.client.sends(request(DELETE, 6, 1, topics=rows))
        await book.upstream.wait_for_dial(1)
        assert [row["topic_id"] for row in asked(await book.broker.receives(), METADATA, 12)["topics"]] == [big, small]
        topics = [
            {"name": "big", "topic_id": big, "partitions": [{}] * 15},
            {"name": "small", "topic_id": small, "partitions": [{}]},
        ]
        await book.broker.sends(reply(METADATA, 12, 1, topics=topics))
        assert [row["topic_id"] for row in asked(await book.broker.receives(), DELETE, 6)["topics"]] == [big]
        await book.broker.sends(reply(DELETE, 6, 1, responses=[{"name": "big", "topic_id": big}]))
        rows = read_reply(DELETE, 6, await book.client.receives())["responses"]
        assert [(row["topic_id"], row["error_code"]) for row in rows] == [(big, 0), (small, 89)]


@pytest.mark.parametrize(("version", "codes", "throttle_ms"), [(3, [0, 89], 5000), (2, [0, 0], 20_000)])
async def test_partitions_cost_what_is_added(
    version: int, codes: list[int], throttle_ms: int, autojump_clock: MockClock
) -> None:
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        rows = [{"name": "a", "count": 31}, {"name": "b", "count": 31}]
        await book.client.sends(request(ADD, version, 1, topics=rows))
        await book.upstream.wait_for_dial(1)
        asked(await book.broker.receives(), METADATA, 4)
        await book.broker.sends(metadata(1, 4, a=1, b=1))
        admitted = asked(await book.broker.receives(), ADD, version)["topics"]
        await book.broker.sends(reply(ADD, version, 1, results=[{"name": row["name"]} for row in admitted]))
        errors, told_ms = outcome(await book.client.receives(), ADD, version)
        assert (list(errors.values()), told_ms) == (codes, throttle_ms)


async def test_growth_that_was_not_foreseen_is_charged(autojump_clock: MockClock) -> None:
    """The topic had as many partitions when the broker was asked, and was deleted and created again since."""
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        for number, (had, expected) in enumerate([(31, 0), (1, 89)], 1):
            await book.client.sends(request(ADD, 3, number, topics=[{"name": "a", "count": 31}]))
            await book.upstream.wait_for_dial(1)
            asked(await book.broker.receives(), METADATA, 4)
            await book.broker.sends(metadata(number, 4, a=had))
            if not expected:
                asked(await book.broker.receives(), ADD, 3)
                await book.broker.sends(reply(ADD, 3, number, results=[{"name": "a"}]))
            assert outcome(await book.client.receives(), ADD, 3)[0] == {"a": expected}


async def test_a_topic_may_be_deleted_by_a_client_that_does_not_wait_for_it(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        created_topics = book.shared.created_topics
        created_topics.add(["a", "b"], trio.current_time())
        await book.client.sends(request(DELETE, 5, 1, topic_names=["a"]))
        await book.upstream.wait_for_dial(1)
        asked(await book.broker.receives(), METADATA, 4)
        await book.broker.sends(metadata(1, 4, a=1))
        asked(await book.broker.receives(), DELETE, 5)
        book.client.socket.close()
        await wait_all_tasks_blocked()
        assert created_topics.new(["a", "b"], ["a", "b"], trio.current_time()) == ["a"]


async def test_an_old_client_cannot_get_ahead_of_its_mute(autojump_clock: MockClock) -> None:
    """Twenty requests in one write: the second waits for the reply to the first, and then for the mute."""
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        frames = [create(4, (f"t{number}", 100), number=number) for number in range(20)]
        await book.client.sends(*frames)
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == frames[0]
        await trio.sleep(1)
        assert book.broker.receives_nothing()
        await book.broker.sends(created(4, "t0", number=0))
        assert outcome(await book.client.receives(), CREATE, 4)[1] == 89_000
        assert await book.broker.receives() == frames[1]
        assert trio.current_time() == pytest.approx(90, abs=0.01)


async def test_doomed_topics_cost_nothing_and_refuse_nobody(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        await book.client.sends(create(6, ("there", 100), ("new", 1), ("twice", 5), ("twice", 5)))
        await book.upstream.wait_for_dial(1)
        assert asked(await book.broker.receives(), CREATE, 6)["validate_only"] is True
        rows = [{"name": "there", "error_code": 36}, {"name": "new", "num_partitions": 1}]
        await book.broker.sends(reply(CREATE, 6, 1, topics=[*rows, {"name": "twice", "error_code": 42}]))
        went_on = asked(await book.broker.receives(), CREATE, 6)
        assert [row["name"] for row in went_on["topics"]] == ["there", "new", "twice", "twice"]
        await book.broker.sends(created(6, ("there", 36), "new", ("twice", 42)))
        assert outcome(await book.client.receives(), CREATE, 6) == ({"there": 36, "new": 0, "twice": 42}, 0)


async def test_an_absurd_count_does_not_overdraw_for_years(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        await book.client.sends(create(6, ("huge", 2_000_000_000)))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        book.broker.socket.close()
        await book.client.receives_the_end()
        assert book.shared.hooks.quotas is not None
        (bucket,) = book.shared.hooks.quotas
        assert bucket.observed(0) == 10 - 10_000


async def test_a_lookup_that_makes_no_sense_is_the_brokers_fault(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        await book.client.sends(request(DELETE, 5, 1, topic_names=["t"]))
        await book.upstream.wait_for_dial(1)
        asked(await book.broker.receives(), METADATA, 4)
        await book.broker.sends(framed((1).to_bytes(4, "big") + b"nonsense"))
        await book.client.receives_the_end()
        assert book.shared.counters.errors == {"upstream": 1}


async def test_what_was_pipelined_behind_a_lookup_keeps_its_place(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        before, behind = request(HEARTBEAT, 4, 1), request(HEARTBEAT, 4, 3)
        await book.client.sends(before, request(DELETE, 5, 2, topic_names=["t"]), behind)
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == before
        asked(await book.broker.receives(), METADATA, 4)
        await trio.testing.wait_all_tasks_blocked()
        assert book.broker.receives_nothing()
        await book.broker.sends(reply(HEARTBEAT, 4, 1), metadata(2, 4, t=1))
        asked(await book.broker.receives(), DELETE, 5)
        await trio.testing.wait_all_tasks_blocked()
        assert book.broker.receives_nothing(), "a broker takes one request of a connection after the other, too"
        await book.broker.sends(reply(DELETE, 5, 2, responses=[{"name": "t"}]))
        assert await book.broker.receives() == behind
        await book.broker.sends(reply(HEARTBEAT, 4, 3))
        numbers = [int.from_bytes((await book.client.receives())[4:8], "big") for _ in range(3)]
        assert numbers == [1, 2, 3]


async def test_nothing_is_forwarded_when_all_is_refused_and_the_answer_waits_its_turn(
    autojump_clock: MockClock,
) -> None:
    """The throttle time is what remains when the answer is sent."""
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        await book.round_trip(create(6, ("t", 40)), created(6, "t"))
        await book.client.sends(request(HEARTBEAT, 4, 2), create(6, ("u", 1), number=3))
        await book.broker.receives()
        await trio.sleep(4)
        assert book.broker.receives_nothing()
        await book.broker.sends(reply(HEARTBEAT, 4, 2))
        assert int.from_bytes((await book.client.receives())[4:8], "big") == 2
        assert outcome(await book.client.receives(), CREATE, 6) == ({"u": 89}, 6000)


# --- paced, and in shadow mode ---


async def test_paced_mutations_wait_for_their_turn_and_nothing_is_refused(autojump_clock: MockClock) -> None:
    policy = QuotaPolicy(mode=EnforcementMode.PACED, burst_s=1)
    async with open_book(quotas=quota(2, policy), windows=WINDOWS) as book:
        await book.round_trip(create(6, ("a", 30)), created(6, "a"))
        await book.client.sends(create(6, ("b", 30), number=2))
        await book.broker.receives()
        assert trio.current_time() == pytest.approx(14, abs=0.01)  # 30 tokens overdrawn, without the burst of 2
        await book.broker.sends(created(6, "b", number=2))
        assert outcome(await book.client.receives(), CREATE, 6) == ({"b": 0}, 0)


async def test_a_request_that_waits_counts_as_memory(autojump_clock: MockClock) -> None:
    policy = QuotaPolicy(mode=EnforcementMode.PACED, burst_s=1)
    async with open_book(quotas=quota(2, policy), windows=WINDOWS) as book:
        await book.round_trip(create(6, ("a", 30)), created(6, "a"))
        assert book.connection.memory_bytes == 0
        waits = create(6, ("b", 30), number=2)
        for following in (b"", create(6, ("c", 30), number=3)):
            await book.client.sends(waits, following)
            await trio.sleep(1)
            assert book.connection.memory_bytes == len(waits + following)
            assert await book.broker.receives() == waits
            await book.broker.sends(created(6, "b", number=2))
            await book.client.receives()
        await trio.sleep(1)
        assert book.connection.memory_bytes == len(following), "it waits in turn"
        book.client.socket.close()
        await trio.sleep(3)  # a muted client is found to have hung up after a while
        assert (book.connection.memory_bytes, held.count) == (0, 0)


async def test_the_decoded_topics_of_a_large_request_count_as_memory(autojump_clock: MockClock) -> None:
    """Its validation waits at the broker, as it does behind a Fetch that the broker does not answer yet."""
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        names = [f"topic-{number}" for number in range(900)]
        await book.client.sends(create(6, *((name, 1) for name in names)))
        await book.upstream.wait_for_dial(1)
        for _ in ("the validation", "the request"):
            await book.broker.receives()
            assert book.connection.memory_bytes > 12 * 16 * 1024
            await book.broker.sends(created(6, *names))
        await book.client.receives()
        assert (book.connection.memory_bytes, held.count) == (0, 0)


async def test_observed_mutations_are_refused_to_nobody(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(2, QuotaPolicy(observe=True)), windows=WINDOWS) as book:
        await book.round_trip(create(6, ("a", 40)), created(6, "a"))
        answer = await book.round_trip(create(6, ("b", 1), number=2), created(6, "b", number=2))
        assert outcome(answer, CREATE, 6) == ({"b": 0}, 0)
        assert book.shared.counters.observed == {KEY.value: 1}
        assert book.shared.counters.refused == 0


class FixedBudget:
    """Returns the same budget for every sender."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, budget: float | None) -> None:
        self.budget = budget

    @hookimpl
    def mutation_budget(self, request: Request) -> float | None:
        return self.budget


@pytest.mark.parametrize(("budgets", "lowest"), [((5.0, -1.0), -1.0), ((None, 3.0), 3.0), ((None, None), None)])
async def test_the_lowest_budget_counts(budgets: tuple[float | None, ...], lowest: float | None) -> None:
    plugins = {f"budget-{number}": FixedBudget(budget) for number, budget in enumerate(budgets)}
    async with open_book(plugins=plugins) as book:
        assert book.shared.hooks.mutation_budget(make_request(CREATE), 0) == lowest


@pytest.mark.parametrize("policy", [QuotaPolicy(observe=True), QuotaPolicy(mode=EnforcementMode.PACED)])
async def test_an_overdrawn_bucket_that_refuses_nothing_does_not_hide_a_lower_budget(
    autojump_clock: MockClock, policy: QuotaPolicy
) -> None:
    """Otherwise topics that the broker refuses would be taken for reasons to refuse others."""
    async with open_book(quotas=quota(2, policy), windows=WINDOWS, plugins={"budget": FixedBudget(3.0)}) as book:
        await book.round_trip(create(6, ("a", 40)), created(6, "a"))
        asking = make_request(CREATE, api_version=6, client_id="c", connection=book.connection.info)
        assert book.shared.hooks.mutation_budget(asking, 0) == 3.0


async def test_a_budget_of_a_plugin_decides_whether_the_broker_is_asked(autojump_clock: MockClock) -> None:
    """The plugin leaves no token, so the request is validated first; for the built-in bucket it would not be."""
    plugin = FixedBudget(0.0)
    async with open_book(quotas=quota(1000), windows=WINDOWS, plugins={"budget": plugin}) as book:
        await book.client.sends(create(6, ("first", 3), ("second", 3)))
        await validates(book, ("first", 3), ("second", 3))
        assert [row["name"] for row in asked(await book.broker.receives(), CREATE, 6)["topics"]] == ["first", "second"]
        await book.broker.sends(created(6, "first", "second"))
        await book.client.receives()
        plugin.budget = None  # the built-in callback is asked
        frame = create(6, ("third", 3), ("fourth", 3))
        await book.client.sends(frame)
        assert await book.broker.receives() == frame
