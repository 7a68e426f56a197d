"""Verdicts of plugins for the requests of one connection: refusals, exceptions, and values that are no verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.requests import Detail, Interest, Request
from headrace.quota_callbacks.verdicts import Refuse, Throttle
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

PRODUCE, HEARTBEAT = ApiKey.PRODUCE, ApiKey.HEARTBEAT
CREATE_TOPICS, DELETE_TOPICS = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS


# --- refusals ---


class Gatekeeper:
    """A plugin that refuses the requests that a test selects."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, verdict: Any, *, api_key: int, detail: Detail = Detail.HEAD) -> None:
        self.verdict = verdict
        self.interest = Interest(api_key=api_key, detail=detail)
        self.completed: list[Request] = []

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        return (self.interest,)

    @hookimpl
    def request_received(self, request: Request) -> Any:
        return self.verdict(request) if callable(self.verdict) else self.verdict

    @hookimpl
    def request_completed(self, request: Request) -> None:
        self.completed.append(request)


async def test_a_request_refused_whole_never_reaches_the_broker(autojump_clock: MockClock) -> None:
    gate = Gatekeeper(Refuse(error_code=44, message="not here", throttle_ms=5000), api_key=CREATE_TOPICS)
    async with open_book(plugins={"gate": gate}) as book:
        topics = [{"name": "a", "num_partitions": 1, "replication_factor": 1}]
        await book.client.sends(request(HEARTBEAT, 4, 1), request(CREATE_TOPICS, 7, 2, topics=topics, timeout_ms=1000))
        await trio.testing.wait_all_tasks_blocked()
        assert await book.broker.receives() == request(HEARTBEAT, 4, 1)
        assert book.client.receives_nothing()
        await book.broker.sends(reply(HEARTBEAT, 4, 1))
        await book.client.receives()
        fields = read_reply(CREATE_TOPICS, 7, await book.client.receives())
        assert fields["throttle_time_ms"] == 5000
        assert [(row["name"], row["error_code"]) for row in fields["topics"]] == [("a", 44)]
        assert book.broker.receives_nothing()
        await trio.testing.wait_all_tasks_blocked()
        assert [(each.refused_code, each.forwarded_s) for each in gate.completed] == [(44, None)]
        assert book.shared.counters.refused == 1


class Abandons:
    """Counts the calls of `request_abandoned`, by request."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl
    def request_abandoned(self, request: Request) -> None:
        self.seen.append(request.correlation_id)


@pytest.mark.parametrize("padding", [10, 300_000])
async def test_a_refused_request_is_abandoned_once(autojump_clock: MockClock, padding: int) -> None:
    """Its answer waits behind a slow request when the client closes; a large one has not arrived by then."""
    gate, abandons = Gatekeeper(Refuse(error_code=44), api_key=PRODUCE), Abandons()
    async with open_book(plugins={"gate": gate, "abandons": abandons}) as book:
        produce = request(PRODUCE, 9, 2, acks=1, padding=padding)
        await book.client.sends(request(HEARTBEAT, 4, 1), produce[: min(len(produce), 1000)])
        await book.upstream.wait_for_dial(1)
        await trio.testing.wait_all_tasks_blocked()
        book.client.socket.close()
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(abandons.seen) == [1, 2]


async def test_topics_are_refused_one_by_one_and_merged_in_the_requests_order(autojump_clock: MockClock) -> None:
    gate = Gatekeeper(Refuse(topics={"b": 89}, throttle_ms=700), api_key=CREATE_TOPICS, detail=Detail.BODY)
    async with open_book(plugins={"gate": gate}) as book:
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in "abc"]
        await book.client.sends(request(CREATE_TOPICS, 7, 3, topics=topics, timeout_ms=1000))
        await trio.testing.wait_all_tasks_blocked()
        admitted = [each for each in topics if each["name"] != "b"]
        assert await book.broker.receives() == request(CREATE_TOPICS, 7, 3, topics=admitted, timeout_ms=1000)
        rows = [{"name": "c", "num_partitions": 1}, {"name": "a", "num_partitions": 1}]
        await book.broker.sends(reply(CREATE_TOPICS, 7, 3, topics=rows))
        fields = read_reply(CREATE_TOPICS, 7, await book.client.receives())
        assert [(row["name"], row["error_code"]) for row in fields["topics"]] == [("a", 0), ("b", 89), ("c", 0)]
        assert fields["topics"][1]["error_message"] == "The throttling quota has been exceeded."
        assert 0 < fields["throttle_time_ms"] <= 700
        assert book.connection.mute.until_s > trio.current_time()


@pytest.mark.parametrize("later", [None, Refuse(topics={"c": 44}, throttle_ms=100)], ids=["admitted", "refused later"])
async def test_what_is_left_of_a_request_waits_for_the_hold_of_another_quota(
    autojump_clock: MockClock, later: Refuse | None
) -> None:
    verdicts = iter([Throttle(throttle_ms=2000, hold=True, ask_again=True), later])
    gate = Gatekeeper(Refuse(topics={"b": 89}, throttle_ms=700), api_key=CREATE_TOPICS, detail=Detail.BODY)
    paced = Gatekeeper(lambda _: next(verdicts), api_key=CREATE_TOPICS, detail=Detail.BODY)
    async with open_book(plugins={"gate": gate, "paced": paced}) as book:
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in "abc"]
        await book.client.sends(request(CREATE_TOPICS, 7, 3, topics=topics, timeout_ms=1000))
        await trio.sleep(1.9)
        assert book.upstream.dialled == []
        await trio.sleep(0.2)
        admitted = [each for each in topics if each["name"] == "a" or (each["name"] == "c" and later is None)]
        assert await book.broker.receives() == request(CREATE_TOPICS, 7, 3, topics=admitted, timeout_ms=1000)
        await book.broker.sends(reply(CREATE_TOPICS, 7, 3, topics=[{"name": each["name"]} for each in admitted]))
        fields = read_reply(CREATE_TOPICS, 7, await book.client.receives())
        errors = {row["name"]: row["error_code"] for row in fields["topics"]}
        assert errors == {"a": 0, "b": 89, "c": 0 if later is None else 44}
    assert next(verdicts, None) is None


async def test_when_no_topic_is_admitted_the_proxy_answers_alone(autojump_clock: MockClock) -> None:
    gate = Gatekeeper(Refuse(topics={"a": 89, "b": 89}), api_key=DELETE_TOPICS, detail=Detail.BODY)
    async with open_book(plugins={"gate": gate}) as book:
        await book.client.sends(request(DELETE_TOPICS, 5, 3, topic_names=["b", "a"], timeout_ms=1000))
        fields = read_reply(DELETE_TOPICS, 5, await book.client.receives())
        assert [(row["name"], row["error_code"]) for row in fields["responses"]] == [("b", 89), ("a", 89)]
        assert book.upstream.dialled == []


async def test_a_body_is_decoded_for_who_asks(autojump_clock: MockClock) -> None:
    bodies: list[Any] = []
    gate = Gatekeeper(lambda request: bodies.append(request.body), api_key=DELETE_TOPICS, detail=Detail.BODY)
    async with open_book(plugins={"gate": gate}) as book:
        await book.round_trip(request(DELETE_TOPICS, 5, 3, topic_names=["x"], timeout_ms=9), reply(DELETE_TOPICS, 5, 3))
        assert bodies == [{"topic_names": ["x"], "timeout_ms": 9}]


async def test_a_refusal_that_the_protocol_cannot_express_closes_the_connection(autojump_clock: MockClock) -> None:
    gate = Gatekeeper(Refuse(error_code=44), api_key=PRODUCE)
    async with open_book(plugins={"gate": gate}) as book:
        await book.client.sends(request(PRODUCE, 9, 1, acks=0, padding=10))
        await book.client.receives_the_end()
        assert book.upstream.dialled == []


async def test_produces_without_acks_are_completed_while_the_next_one_arrives(autojump_clock: MockClock) -> None:
    """Otherwise a client that always sends ahead would have all of them kept."""
    gate = Gatekeeper(None, api_key=PRODUCE)
    async with open_book(plugins={"gate": gate}) as book:
        *whole, last = (request(PRODUCE, 9, number, acks=0, padding=1000) for number in range(1, 5))
        await book.client.sends(*whole, last[:100])
        await trio.testing.wait_all_tasks_blocked()
        assert [each.correlation_id for each in gate.completed] == [1, 2, 3]
        await book.client.sends(last[100:])
        await trio.testing.wait_all_tasks_blocked()
        assert [each.correlation_id for each in gate.completed] == [1, 2, 3, 4]


async def test_a_refused_produce_has_an_error_for_every_partition(autojump_clock: MockClock) -> None:
    gate = Gatekeeper(Refuse(error_code=44), api_key=PRODUCE)
    async with open_book(plugins={"gate": gate}) as book:
        await book.client.sends(request(PRODUCE, 9, 1, acks=1, padding=100_000))
        fields = read_reply(PRODUCE, 9, await book.client.receives())
        assert [row["error_code"] for row in fields["responses"][0]["partition_responses"]] == [44]


async def test_an_own_answer_that_blocks_keeps_its_place(autojump_clock: MockClock) -> None:
    """While the client does not read the proxy's own answer, the broker's next reply waits behind it."""
    gate = Gatekeeper(Refuse(error_code=44), api_key=CREATE_TOPICS)
    async with open_book(plugins={"gate": gate}) as book:
        client_socket = book.connection.client
        plain_send, taken = client_socket.send, trio.Event()

        async def slow_send(parts: Any) -> None:
            kept = [bytes(part) for part in parts]
            if not taken.is_set():
                await taken.wait()
            await plain_send(kept)

        client_socket.send = slow_send  # type: ignore[method-assign]
        await book.client.sends(request(CREATE_TOPICS, 7, 1, topics=[], timeout_ms=1), request(HEARTBEAT, 4, 2))
        await trio.testing.wait_all_tasks_blocked()
        await book.broker.receives()
        await book.broker.sends(reply(HEARTBEAT, 4, 2))
        await trio.testing.wait_all_tasks_blocked()
        taken.set()
        received = [(await book.client.receives())[4:8] for _ in range(2)]
        assert received == [b"\x00\x00\x00\x01", b"\x00\x00\x00\x02"]


@pytest.mark.parametrize("refusal", [Refuse(error_code=44), None], ids=["own answer", "broker's reply"])
async def test_a_request_whose_reply_the_client_does_not_take_is_completed(
    autojump_clock: MockClock, refusal: Refuse | None
) -> None:
    """With an error: usage records would lack it otherwise."""
    gate = Gatekeeper(refusal, api_key=CREATE_TOPICS)
    async with open_book(plugins={"gate": gate}) as book:

        async def blocks(_: Any) -> None:
            await trio.sleep_forever()

        book.connection.client.send = blocks  # type: ignore[method-assign]
        book.connection.client.send_now = lambda *_, **__: False  # type: ignore[method-assign]
        await book.client.sends(request(CREATE_TOPICS, 7, 1, topics=[], timeout_ms=1))
        if refusal is None:
            await book.upstream.wait_for_dial(1)
            await book.broker.receives()
            await book.broker.sends(reply(CREATE_TOPICS, 7, 1, topics=[]))
        await trio.testing.wait_all_tasks_blocked()
        assert gate.completed == []
        book.connection.end("the test is over", None)
        await trio.testing.wait_all_tasks_blocked()
        assert [each.error for each in gate.completed] == ["the test is over"]


# --- plugins that raise ---


def raising(_request: Request) -> None:
    raise RuntimeError("boom")


async def test_a_plugin_that_raises_is_passed_over(autojump_clock: MockClock) -> None:
    gate = Gatekeeper(raising, api_key=HEARTBEAT)
    async with open_book(plugins={"gate": gate}) as book:
        answer = reply(HEARTBEAT, 4)
        assert await book.round_trip(request(HEARTBEAT, 4), answer) == answer
        assert book.shared.hooks.failures == {"gate": 1}


async def test_fail_closed_refuses_what_a_plugin_failed_on(autojump_clock: MockClock) -> None:
    gate = Gatekeeper(raising, api_key=HEARTBEAT)
    async with open_book(plugins={"gate": gate}, fail_closed=True) as book:
        await book.client.sends(request(HEARTBEAT, 4))
        assert read_reply(HEARTBEAT, 4, await book.client.receives())["error_code"] == -1
        assert book.upstream.dialled == []


@pytest.mark.parametrize("fail_closed", [False, True])
@pytest.mark.parametrize(
    "verdict", [Refuse(error_code=44), Throttle(throttle_ms=5000, hold=True)], ids=["refuse", "hold"]
)
async def test_what_was_forwarded_cannot_be_refused_or_held(
    autojump_clock: MockClock, verdict: Throttle | Refuse, *, fail_closed: bool
) -> None:
    class Mistaken:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def request_arrived(self) -> Throttle | Refuse:
            return verdict

        @hookimpl
        def response_received(self) -> Throttle | Refuse:
            return verdict

    async with open_book(plugins={"mistaken": Mistaken()}, fail_closed=fail_closed) as book:
        answer = reply(PRODUCE, 9, 1)
        assert await book.round_trip(request(PRODUCE, 9, 1, acks=1, padding=300_000), answer) == answer
        assert book.shared.hooks.failures == {"mistaken": 2}
        assert not list(book.shared.decisions)


async def test_a_throttle_is_recorded_although_another_plugin_fails(autojump_clock: MockClock) -> None:
    class Fails:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def response_received(self) -> None:
            raise RuntimeError("boom")

    class Throttles:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def response_received(self) -> Throttle:
            return Throttle(throttle_ms=5000)

    async with open_book(plugins={"fails": Fails(), "throttles": Throttles()}, fail_closed=True) as book:
        await book.round_trip(request(HEARTBEAT, 4), reply(HEARTBEAT, 4))
        assert [(each.kind.value, each.throttle_ms) for each in book.shared.decisions] == [("throttled", 5000)]


async def test_a_verdict_that_is_none_is_the_plugins_error(autojump_clock: MockClock) -> None:
    gate = Gatekeeper("throttle please", api_key=HEARTBEAT)
    async with open_book(plugins={"gate": gate}) as book:
        answer = reply(HEARTBEAT, 4)
        assert await book.round_trip(request(HEARTBEAT, 4), answer) == answer
        assert book.shared.hooks.failures == {"gate": 1}


@pytest.mark.parametrize(
    "verdict",
    [
        Throttle(throttle_ms=float("inf")),  # type: ignore[arg-type]
        Throttle(throttle_ms=-1),
        Throttle(throttle_ms=5, reason="why"),  # type: ignore[arg-type]
        Refuse(error_code=99_999),
        Refuse(topics={"t": 89}),
    ],
)
async def test_a_verdict_that_cannot_be_is_the_plugins_error(autojump_clock: MockClock, verdict: Any) -> None:
    gate = Gatekeeper(verdict, api_key=HEARTBEAT)
    async with open_book(plugins={"gate": gate}) as book:
        answer = reply(HEARTBEAT, 4)
        assert await book.round_trip(request(HEARTBEAT, 4), answer) == answer
        assert book.shared.hooks.failures == {"gate": 1}


async def test_a_throttle_beyond_an_int32_is_the_longest_there_is(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"gate": Gatekeeper(Throttle(throttle_ms=2**40), api_key=HEARTBEAT)}) as book:
        answer = await book.round_trip(request(HEARTBEAT, 4), reply(HEARTBEAT, 4))
        assert read_reply(HEARTBEAT, 4, answer)["throttle_time_ms"] > 2**31 - 1000


async def test_the_longest_of_several_throttles_wins(autojump_clock: MockClock) -> None:
    plugins = {str(ms): Gatekeeper(Throttle(throttle_ms=ms), api_key=HEARTBEAT) for ms in (100, 3000, 200)}
    async with open_book(plugins=plugins) as book:
        answer = await book.round_trip(request(HEARTBEAT, 4), reply(HEARTBEAT, 4))
        assert read_reply(HEARTBEAT, 4, answer)["throttle_time_ms"] == pytest.approx(3000, abs=2)


async def test_completed_requests_have_their_times_and_errors(autojump_clock: MockClock) -> None:
    gate = Gatekeeper(None, api_key=HEARTBEAT)
    async with open_book(plugins={"gate": gate}) as book:
        await book.round_trip(request(HEARTBEAT, 4), reply(HEARTBEAT, 4))
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await trio.testing.wait_all_tasks_blocked()
        book.broker.socket.close()
        await book.client.receives_the_end()
        await trio.testing.wait_all_tasks_blocked()
        answered, lost = gate.completed
        assert answered.error is None
        assert answered.response_bytes == len(reply(HEARTBEAT, 4)) - 4
        times = [answered.received_s, answered.forwarded_s, answered.reply_s, answered.completed_s]
        assert times == sorted(times, key=float)
        assert lost.error == "upstream: the broker closed; requests in flight: 1"
