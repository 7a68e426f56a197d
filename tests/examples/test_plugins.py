"""The example plugins: over memory channels, and loaded by the real proxy in front of a real broker."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import trio
from confluent_kafka.admin import AdminClient

from examples import quota_per_topic, team_quotas
from examples.quota_per_topic import QuotaPerTopic
from examples.team_quotas import TeamQuotas
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import unique
from tests.clients.wire_connection import WireConnection
from tests.faults import messages
from tests.faults.conftest import leads
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.proxy.playbook import open_book, read_reply, reply, request
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.shared_cluster import FirstBroker


PRODUCE = ApiKey.PRODUCE
TEAMS = {"teams": {"blue": {"members": ["alice", "bob"], "producer_byte_rate": 1000}}}


def context(options: dict[str, Any]) -> PluginContext:
    quotas = ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()), metric_tags=lambda *_: None, quota_limit=lambda *_: None
    )
    return PluginContext(options=options, quotas=quotas)


def options_of(module: Any) -> dict[str, Any]:
    """What stands in the module's docstring as configuration."""
    text = "\n".join(line[4:] for line in module.__doc__.splitlines() if line.startswith("    "))
    loaded = tomllib.loads(text)
    (name,) = loaded["plugins"]["load"]
    options: dict[str, Any] = loaded["plugins"]["options"][name]
    return options


def produce(number: int, **bytes_by_topic: int) -> bytes:
    rows = [
        {"name": topic, "partition_data": [{"index": 0, "records": bytes(size)}]}
        for topic, size in bytes_by_topic.items()
    ]
    return request(PRODUCE, 9, number, acks=1, topic_data=rows)


async def test_a_topic_has_one_limit_whoever_produces(autojump_clock: MockClock) -> None:
    plugin = QuotaPerTopic()
    plugin.configure(context({"orders": 1000}))
    async with open_book(plugins={"topics": plugin}) as book:
        throttles = []
        for number, sizes in enumerate(({"free": 90_000}, {"orders": 8000}, {"free": 9000, "orders": 5000})):
            answer = await book.round_trip(produce(number, **sizes), reply(PRODUCE, 9, number))
            throttles.append(read_reply(PRODUCE, 9, answer)["throttle_time_ms"])
        assert throttles == [0, 0, 3000]
        (decision,) = book.shared.decisions
        assert (decision.quota, decision.entity, decision.limit) == ("topic_byte_rate", "topic=orders", 1000)


async def test_a_topic_is_known_by_its_name_where_requests_have_its_id(autojump_clock: MockClock) -> None:
    orders, unknown = bytes(range(16)), bytes(range(1, 17))
    plugin = QuotaPerTopic()
    plugin.configure(context({"orders": 1000}))

    def produce_by_id(number: int, topic_id: bytes) -> bytes:
        rows = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": bytes(13_000)}]}]
        return request(PRODUCE, 13, number, acks=1, topic_data=rows)

    async with open_book(plugins={"topics": plugin}) as book:
        topics = [{"name": "orders", "topic_id": orders, "partitions": [{"partition_index": 0}]}]
        await book.round_trip(request(ApiKey.METADATA, 12, 1), reply(ApiKey.METADATA, 12, 1, topics=topics))
        throttles = {}
        for number, topic_id in enumerate((unknown, orders), 2):
            answer = await book.round_trip(produce_by_id(number, topic_id), reply(PRODUCE, 13, number))
            throttles[topic_id] = read_reply(PRODUCE, 13, answer)["throttle_time_ms"]
        assert throttles == {unknown: 0, orders: 3000}


async def test_a_team_shares_one_bucket(autojump_clock: MockClock) -> None:
    plugin = TeamQuotas()
    plugin.configure(context(TEAMS))
    alone = [(QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(user="carol"), 1000)]
    async with open_book(plugins={"teams": plugin}, quotas=alone) as book:
        throttles = {}
        for number, user in enumerate(("alice", "bob", "carol", "dave")):
            book.connection.info.user = user
            frame = request(PRODUCE, 9, number, acks=1, padding=6000)
            answer = await book.round_trip(frame, reply(PRODUCE, 9, number))
            throttles[user] = read_reply(PRODUCE, 9, answer)["throttle_time_ms"]
            await trio.sleep_until(book.connection.mute.until_s)
        assert throttles["bob"] == pytest.approx(2000, abs=100), "alice has used up the most of it"
        assert (throttles["alice"], throttles["carol"], throttles["dave"]) == (0, 0, 0)
        (decision,) = book.shared.decisions
        assert decision.entity == "team=blue"


@pytest.mark.parametrize(
    ("plugin", "options", "said"),
    [
        (QuotaPerTopic, {"orders": 0}, "orders = 0: expected bytes per second, above 0"),
        (QuotaPerTopic, {"orders": "much"}, "orders = 'much': expected"),
        (TeamQuotas, {"teams": {"a": {"members": ["x"]}, "b": {"members": ["x"]}}}, "x is in two teams, a and b"),
        (TeamQuotas, {"teams": {"a": {"producer_byte_rate": -1}}}, "Quota producer_byte_rate must be greater than 0"),
    ],
)
def test_options_that_make_no_sense_are_told(plugin: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plugin().configure(context(options))


@pytest.mark.parametrize("module", [quota_per_topic, team_quotas])
def test_what_the_docstring_shows_is_taken(module: Any) -> None:
    plugin = QuotaPerTopic() if module is quota_per_topic else TeamQuotas()
    plugin.configure(context(options_of(module)))
    assert plugin.limits


@pytest.mark.parametrize(
    ("name", "options", "entity"),
    [
        ("examples.quota_per_topic:QuotaPerTopic", "orders = 1000", "topic=orders"),
        (
            "examples.team_quotas:TeamQuotas",
            'teams.blue = { members = ["ANONYMOUS"], producer_byte_rate = 1000 }',
            "team=blue",
        ),
    ],
)
def test_the_real_proxy_enforces_them(kafka: FirstBroker, name: str, options: str, entity: str) -> None:
    config = f'[plugins]\nload = ["{name}"]\n[plugins.options."{name}"]\n{options}\n'
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    if "orders" not in client.list_topics().topics:
        client.create_topics([new_topic("orders")])["orders"].result(30)
        wait_until(lambda: leads(client, "orders"), "the broker leads the topic")
    body = messages.produce_body("orders", messages.batch(bytes(30_000)))
    with ProxyProcess(kafka.bootstrap_servers, config=config) as proxy, RawClient(proxy.port) as raw:
        answer = messages.read_produce_reply(raw.call(messages.PRODUCE, messages.PRODUCE_VERSION, body))
        assert answer.error_code == 0
        assert 15_000 < answer.throttle_ms <= 21_000
        proxy.wait_for_log(f"entity='{entity}'")


def test_the_real_proxy_knows_a_topic_by_its_id(kafka: FirstBroker) -> None:
    """Produce v13 has topic ids; the client learns them from Metadata, and the proxy with it."""
    name = "examples.quota_per_topic:QuotaPerTopic"
    topic = unique("orders")
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    client.create_topics([new_topic(topic)])[topic].result(30)
    wait_until(lambda: leads(client, topic), "the broker leads the topic")
    config = f'[plugins]\nload = ["{name}"]\n[plugins.options."{name}"]\n{topic} = 1000\n'
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config) as proxy,
        WireConnection(("127.0.0.1", proxy.port)) as connection,
    ):
        (row,) = connection.ask(ApiKey.METADATA, 12, {"topics": [{"topic_id": bytes(16), "name": topic}]})["topics"]
        records = [{"index": 0, "records": messages.batch(bytes(30_000))}]
        rows = [{"topic_id": row["topic_id"], "partition_data": records}]
        answer = connection.ask(PRODUCE, 13, {"acks": 1, "timeout_ms": 30_000, "topic_data": rows})
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
        assert 15_000 < answer["throttle_time_ms"] <= 21_000
        proxy.wait_for_log(f"entity='topic={topic}'")
