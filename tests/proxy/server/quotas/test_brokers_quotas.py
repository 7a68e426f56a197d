"""The brokers' quotas: they are asked for as the brokers are reached, and many of them do not delay clients; the remark
follows every change."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.errors import UpstreamFault
from headrace.proxy.kafka_client.connection.long_replies import LONG_BYTES
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import UnansweredFault, Upstream
from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.store import Author, Change
from headrace.proxy.server.quotas import brokers_quotas
from headrace.proxy.server.quotas.brokers_quotas import EVERY_QUOTA, SHOWN, SLICE, BrokersQuotas, by_entity_in_force
from headrace.proxy.wire.messages.codec import encode
from headrace.proxy.wire.proxy_protocol import write_header
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, bounded_name
from headrace.quota_callbacks.policies import KAFKA_POLICY, Quota
from headrace.quota_callbacks.requests import Address
from headrace.quota_callbacks.sasl import UpstreamSasl

if TYPE_CHECKING:
    from headrace.proxy.network.upstream import Ask
    from headrace.proxy.server.quotas.brokers_quotas import Quotas

ALICE = QuotaEntity(user="alice")
RATE = "producer_byte_rate"
BOTH = "both the brokers and the proxy throttle by these quotas: "


def upstream_of(port: int, **settings: Any) -> Upstream:
    return Upstream(
        bootstrap_servers=[Address(host="127.0.0.1", port=port)],
        topology=Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3)),
        connect_timeout_s=20.0,
        **settings,
    )


def known(upstream: Upstream | None = None) -> tuple[QuotaDefinitions, BrokersQuotas]:
    definitions = QuotaDefinitions(lambda entity, _key, _quota: brokers.note(entity), lambda: None)
    brokers = BrokersQuotas(upstream or upstream_of(9, poller=Poller()), definitions, wanted=True)
    return definitions, brokers


def description(quotas: Quotas = {}, **fields: object) -> memoryview:  # noqa: B006 -- not changed
    """The body of a reply."""
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.parts()],
            "values": [{"key": key, "value": value} for key, value in values.items()],
        }
        for entity, values in quotas.items()
    ]
    return memoryview(encode("DescribeClientQuotasResponse", 0, {"entries": entries, **fields}))


def set_in_store(definitions: QuotaDefinitions, entity: QuotaEntity, value: float | None) -> None:
    author = Author(principal="alice", address="127.0.0.1")
    change = Change(sequence=1, time_ms=0, author=author, entity=entity, key=RATE, old=None, new=value)
    assert list(definitions.apply([change])) == []


async def learn(brokers: BrokersQuotas, quotas: Quotas) -> None:
    await brokers.learn(quotas, by_entity_in_force(quotas))


async def test_the_remark_follows_each_change_of_either_side() -> None:
    definitions, brokers = known()
    await learn(brokers, {ALICE: {RATE: 1.0, "request_percentage": 2.0}})
    assert brokers.remark() == ""
    set_in_store(definitions, ALICE, 5.0)
    assert brokers.remark() == f"{BOTH}producer_byte_rate of user=alice"
    set_in_store(definitions, ALICE, 6.0)
    assert brokers.remark() == f"{BOTH}producer_byte_rate of user=alice"
    list(definitions.set_file({ALICE: {"request_percentage": Quota(value=3.0)}}, KAFKA_POLICY))
    assert brokers.remark() == f"{BOTH}producer_byte_rate of user=alice; request_percentage of user=alice"
    set_in_store(definitions, ALICE, None)
    assert brokers.remark() == f"{BOTH}request_percentage of user=alice"
    await learn(brokers, {})
    assert brokers.remark() == ""


@pytest.mark.parametrize(
    ("at_brokers", "ours"),
    [
        (QuotaEntity(ip="2001:DB8:0::1"), QuotaEntity(ip="2001:db8::1")),
        (QuotaEntity(user="x" * 300), QuotaEntity(user=bounded_name("x" * 300))),
    ],
)
async def test_forms_of_a_name_are_one_entity(at_brokers: QuotaEntity, ours: QuotaEntity) -> None:
    definitions, brokers = known()
    await learn(brokers, {at_brokers: {RATE: 1.0}})
    set_in_store(definitions, ours, 5.0)
    assert brokers.remark() == f"{BOTH}producer_byte_rate of {ours}"
    assert brokers.quotas == {at_brokers: {RATE: 1.0}}, "they are described as the brokers have them"


async def test_many_quotas_are_compared_in_slices() -> None:
    definitions, brokers = known()
    quotas = {QuotaEntity(user=f"user-{number}"): {RATE: 1.0} for number in range(3 * SLICE)}
    for entity in quotas:
        set_in_store(definitions, entity, 1.0)
    counts: list[int] = []

    async def watch() -> None:
        while True:
            counts.append(len(brokers._both))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await learn(brokers, quotas)
        nursery.cancel_scope.cancel()
    assert {SLICE, 2 * SLICE} & set(counts), "other tasks run between the slices"
    assert brokers.remark().endswith(f"user=user-{SHOWN - 1} and {3 * SLICE - SHOWN} more")


async def test_the_cluster_is_asked_as_brokers_are_reached() -> None:
    """With the header of the PROXY protocol, and the login of whichever plugin."""
    asked: list[tuple[int, bytes]] = []
    header = write_header(None, None)

    async def serve(stream: trio.SocketStream) -> None:
        received = bytearray()
        async for chunk in stream:
            received += chunk
            if received.startswith(header):
                del received[: len(header)]
            if len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
                continue
            api_key, frame = int.from_bytes(received[4:6], "big"), bytes(received)
            received.clear()
            asked.append((api_key, frame[-5:]))
            body = b"challenge" if api_key == ApiKey.SASL_AUTHENTICATE else description({ALICE: {RATE: 1.0}})
            await stream.send_all((4 + len(body)).to_bytes(4, "big") + frame[8:12] + body)

    async def log_in(ask: Ask) -> None:
        assert bytes(await ask(ApiKey.SASL_AUTHENTICATE, 1, b"login")) == b"challenge"

    poller = Poller()
    with trio.fail_after(60), poller.attach():
        async with trio.open_nursery() as nursery:
            [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            sasl = UpstreamSasl(mechanism="OWN")
            _, brokers = known(upstream_of(port, poller=poller, proxy_protocol=True, sasl=sasl, log_in=log_in))
            await brokers._refresh()
            nursery.cancel_scope.cancel()
    assert asked == [(ApiKey.SASL_AUTHENTICATE, b"login"), (ApiKey.DESCRIBE_CLIENT_QUOTAS, EVERY_QUOTA)]
    assert brokers.quotas == {ALICE: {RATE: 1.0}}
    assert brokers.known.is_set()


async def test_a_long_answer_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = upstream_of(9, poller=Poller())
    _, brokers = known(upstream)
    reading, may_end = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    async def request(*_: object, **__: object) -> memoryview:
        await trio.lowlevel.checkpoint()
        return memoryview(bytes(LONG_BYTES))

    def read(_body: memoryview) -> tuple[Quotas, Quotas]:
        token.run_sync_soon(reading.set)
        assert may_end.wait(60)
        return {ALICE: {RATE: 1.0}}, {ALICE: {RATE: 1.0}}

    monkeypatch.setattr(upstream, "request", request)
    monkeypatch.setattr(brokers_quotas, "_read", read)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(brokers.run)
            await reading.wait()
            assert not brokers.known.is_set()
            may_end.set()
            await brokers.known.wait()
            nursery.cancel_scope.cancel()
    assert brokers.quotas == {ALICE: {RATE: 1.0}}


@pytest.mark.parametrize(
    "failure",
    [
        UpstreamFault("no login"),
        UnansweredFault("closed"),
        RuntimeError("a bug"),
        memoryview(b"garbage"),
        description(error_code=31, error_message="not for this user"),
    ],
)
async def test_a_failure_changes_nothing(monkeypatch: pytest.MonkeyPatch, failure: Exception | memoryview) -> None:
    upstream = upstream_of(9, poller=Poller())
    _, brokers = known(upstream)
    await learn(brokers, {ALICE: {RATE: 1.0}})
    answers = iter([failure, description()])

    async def request(*_: object, **__: object) -> memoryview:
        await trio.lowlevel.checkpoint()
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(upstream, "request", request)
    await brokers._refresh()
    assert (brokers.known.is_set(), brokers.quotas) == (False, {ALICE: {RATE: 1.0}})
    await brokers._refresh()
    assert (brokers.known.is_set(), brokers.quotas) == (True, {})
