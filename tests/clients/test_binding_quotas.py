"""Quotas that bind hard: through the proxy, a client sees no error that a broker with the same quotas would not cause.

Each scenario runs with four clients, and each client runs it twice: limited by the proxy, and limited by the broker
(`binding_front`). All of them run side by side, since they wait for quotas most of the time. Both have to deliver
exactly what was sent, both have to be throttled, and the kinds of errors that a client reports through the proxy have
to be among those that it reports without.
"""

from __future__ import annotations

import contextlib
import random
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest
from confluent_kafka import KafkaException

from tests.clients.binding_clients import Java, Librdkafka
from tests.clients.binding_front import OF_ADMINS, QUOTAS, BindingFront, binding_front
from tests.clients.binding_python_clients import Aiokafka, KafkaPython
from tests.clients.fronts import eventually, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.clients.binding_clients import ClientUnderTest, MemberUnderTest
    from tests.clients.binding_front import Side

KINDS: Final[dict[str, Callable[[Side], ClientUnderTest]]] = {
    "librdkafka": Librdkafka,
    "java": Java,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
    "librdkafka-kip-848": partial(Librdkafka, group_protocol="consumer"),
    "java-kip-848": partial(Java, group_protocol="consumer"),
}
CLIENTS: Final = ("librdkafka", "java", "kafka-python", "aiokafka")
MEMBERS: Final = (*CLIENTS, "librdkafka-kip-848", "java-kip-848")
PARTITIONS: Final = 4
VALUE_BYTES: Final = 1000
LARGE_BYTES: Final = 350_000
"""Size of a producer's first value. Its request exceeds `QUOTAS` by itself, even if the window began 3 s earlier."""
PARTS: Final = (range(150), range(150, 180), range(180, 210))
"""What is produced in turn."""
SAMPLE_S: Final = 0.2
CONNECTIONS: Final = 2
"""Of librdkafka with one broker: to the bootstrap server, and to the broker under the name that it has in Metadata."""
LISTINGS: Final = 2
"""Requests for all topics, repeated until they are throttled. Few, since each takes up to a second from then on."""

BY_THE_BROKER: Final = {"transactional": {"record-retry-total"}}
"""Errors of scenarios that no quota causes. A broker may refuse the first records of a transaction with
CONCURRENT_TRANSACTIONS while it still completes the transaction before (KIP-890), and the client sends them again."""

Scenario: TypeAlias = "Callable[[BindingFront, ClientUnderTest], object]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one client on one side."""

    delivered: object
    errors: set[str]
    failure: str


@pytest.fixture(scope="module")
def both() -> Iterator[BindingFront]:
    with binding_front() as running:
        yield running


@pytest.fixture(autouse=True)
def no_faults(both: BindingFront) -> Iterator[None]:
    """Fail the test if the proxy logs a warning or an error meanwhile."""
    before = len(both.faults())
    yield
    assert both.faults()[before:] == []


def values(count: int, first_bytes: int = VALUE_BYTES) -> list[bytes]:
    """So many values that do not compress, each its own."""
    dice = random.Random(count)  # noqa: S311
    return [b"%d " % number + dice.randbytes(VALUE_BYTES if number else first_bytes) for number in range(count)]


# --- the scenarios, each of which returns what was delivered ---


def in_a_group(both: BindingFront, client: ClientUnderTest) -> object:
    """A member joins while the other consumes, and takes half; then the first leaves. Nothing is read twice."""
    topic, group, sent = both.topic("binding-group", PARTITIONS), unique("binding-group"), values(400)
    both.fill(topic, PARTITIONS, sent)
    found: list[bytes] = []

    def consumed(*members: MemberUnderTest) -> int:
        for member in members:
            found.extend(member.poll())
        return len(found)

    def shared(*members: MemberUnderTest) -> bool:
        consumed(*members)
        return all(member.assigned() == PARTITIONS // len(members) for member in members)

    with contextlib.ExitStack() as stack:
        with contextlib.closing(client.member(topic, group)) as first:
            eventually(lambda: consumed(first) >= 50, "the first member consumes", pause_s=0)
            second = stack.enter_context(contextlib.closing(client.member(topic, group)))
            eventually(lambda: shared(first, second), "each member has half of the partitions", pause_s=0)
        eventually(lambda: shared(second), "the second member has all partitions", pause_s=0)
        eventually(lambda: consumed(second) >= len(sent), "the second member consumes the rest", pause_s=0)
    return (Counter(found) == Counter(sent), len(found))


def idempotent(both: BindingFront, client: ClientUnderTest) -> object:
    """Three producers, one after the other: a new id each, which ``producer_ids_rate`` does not allow."""
    topic, sent = both.topic("binding-idempotent"), values(PARTS[-1].stop, LARGE_BYTES)
    for part in PARTS:
        with client.producer() as producer:
            producer.send(topic, [sent[number] for number in part])
    return both.read(topic) == sent


def transactional(both: BindingFront, client: ClientUnderTest) -> object:
    """One transaction is aborted, two are committed; each has an offset of a group with it."""
    topic, group = both.topic("binding-transactions"), unique("binding-transactions")
    sent, (_, aborted, _) = values(PARTS[-1].stop, LARGE_BYTES), PARTS
    with client.producer(unique("binding")) as producer:
        for part in PARTS:
            producer.begin()
            producer.send(topic, [sent[number] for number in part])
            producer.send_offset(group, topic, part.stop)
            producer.end(commits=part is not aborted)
    committed = [*sent[: aborted.start], *sent[aborted.stop :]]
    return (
        both.read(topic) == sent,
        both.read(topic, "read_committed") == committed,
        both.committed(group, topic),
    )


def administering(both: BindingFront, client: ClientUnderTest) -> object:
    """Topics are created and deleted, and all topics are listed until that is throttled."""
    sizes = {unique("binding-admin"): count for count in (16, 4, 1)}  # the first one overdraws the bucket for 2 s
    first, second, third = sizes
    with client.admin() as admin:
        for topic, count in sizes.items():
            admin.create(topic, count)
        eventually(lambda: admin.topics() >= {*sizes}, "the topics are listed")
        admin.delete(second)
        eventually(lambda: admin.topics() & {*sizes} == {first, third}, "a topic is gone")

        def throttled() -> bool:
            for _ in range(LISTINGS):
                admin.topics()
            return "request_percentage" in both.throttled(client.side)

        eventually(throttled, "the listings are throttled", pause_s=0)
    return [both.behind.partitions(topic) for topic in sizes]


# --- running and comparing them ---


def run(both: BindingFront, scenario: Scenario, make: Callable[[Side], ClientUnderTest], side: Side) -> Outcome:
    """Run a scenario with one client on one side."""
    delivered: object = None
    failure = ""
    with contextlib.closing(make(side)) as client:
        try:
            delivered = scenario(both, client)
        except Exception as error:  # noqa: BLE001 - whatever a client raises is compared
            client.errors.add(kind_of(error))
            failure = traceback.format_exc()
        return Outcome(delivered=delivered, errors=client.errors, failure=failure)


def kind_of(error: BaseException) -> str:
    """The kind of an exception: librdkafka's code, the cause of one that Java's futures raise, or its class."""
    if isinstance(error, KafkaException):
        return str(error.args[0].name())
    cause = getattr(error, "getCause", lambda: None)()
    return type(cause or error).__name__


def compare(
    both: BindingFront, scenario: Scenario, clients: Iterable[str], *, wanted: object, binding: set[str]
) -> None:
    """Run a scenario with clients on both sides. ``binding`` are the quotas that have to throttle each of them."""
    quotas = OF_ADMINS if scenario is administering else QUOTAS
    sides = {name: both.sides(name, quotas) for name in clients}
    throttled: dict[Side, set[str]] = {side: set() for pair in sides.values() for side in pair}
    with ThreadPoolExecutor(len(throttled)) as pool:
        futures = {
            side: pool.submit(run, both, scenario, KINDS[name], side) for name, pair in sides.items() for side in pair
        }
        running = True
        while running:
            running = bool(wait(futures.values(), SAMPLE_S).not_done)
            for side, seen in throttled.items():  # once more at the end, for what came last
                seen |= both.throttled(side)
    problems = []
    expected = BY_THE_BROKER.get(scenario.__name__, set())
    for name, pair in sides.items():
        proxied, direct = (futures[side].result() for side in pair)
        for side, outcome in zip(pair, (proxied, direct), strict=True):
            if outcome.delivered != wanted:
                problems.append(f"{name}, {side.name}: {outcome.delivered}, {outcome.errors}\n{outcome.failure}")
            if not binding <= throttled[side]:
                problems.append(f"{name}, {side.name}: throttled by {throttled[side]}, not by all of {binding}")
        if not proxied.errors <= direct.errors | expected:
            problems.append(f"{name}: {proxied.errors} through the proxy, {direct.errors} without")
    assert not problems, "\n".join(problems)


def check_group(both: BindingFront, clients: Iterable[str]) -> None:
    compare(both, in_a_group, clients, wanted=(True, 400), binding={"consumer_byte_rate"})


def check_idempotent_producer(both: BindingFront, clients: Iterable[str]) -> None:
    compare(both, idempotent, clients, wanted=True, binding={"producer_byte_rate"})


def check_transactions(both: BindingFront, clients: Iterable[str]) -> None:
    compare(both, transactional, clients, wanted=(True, True, PARTS[-1].stop), binding={"producer_byte_rate"})


def check_admin(both: BindingFront, clients: Iterable[str]) -> None:
    quotas = {"controller_mutation_rate", "request_percentage"}
    compare(both, administering, clients, wanted=[16, 0, 1], binding=quotas)


@pytest.mark.exhaustive
def test_group_that_rebalances(both: BindingFront) -> None:
    check_group(both, CLIENTS)


@pytest.mark.exhaustive
def test_idempotent_producer(both: BindingFront) -> None:
    before = both.producer_ids_throttled()
    check_idempotent_producer(both, CLIENTS)
    assert both.producer_ids_throttled() - before >= len(CLIENTS)


@pytest.mark.exhaustive
def test_transactions(both: BindingFront) -> None:
    check_transactions(both, CLIENTS)


@pytest.mark.exhaustive
def test_admin_of_topics(both: BindingFront) -> None:
    check_admin(both, CLIENTS)


@pytest.mark.exhaustive
def test_listing_all_topics_keeps_the_connection(both: BindingFront) -> None:
    """librdkafka leaves three bytes behind a Metadata v13 for all topics. Brokers ignore them."""
    topic = both.topic("binding-listed")
    side, _ = both.sides("lists")
    accepted = both.accepted()
    client = Librdkafka(side)
    with client.admin() as admin:
        for _ in range(3):
            assert topic in admin.topics()
    assert both.accepted() - accepted <= CONNECTIONS
    assert client.errors == set()


@pytest.mark.soak
@pytest.mark.parametrize("client", MEMBERS)
def test_group_alone(both: BindingFront, client: str) -> None:
    check_group(both, [client])


@pytest.mark.soak
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("check", [check_idempotent_producer, check_transactions, check_admin])
def test_alone(both: BindingFront, client: str, check: Callable[[BindingFront, Iterable[str]], None]) -> None:
    check(both, [client])
