"""Client ids of 32 KiB, which every client may choose: what they cost a real proxy, and what its operators see."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.config.loading import loads
from headrace.plugins.usage_records.rows import Seconds
from headrace.proxy.connection.state.created_topics import MAX_REMEMBERED, CreatedTopics
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import entity_in_force
from headrace.quota_callbacks.entities import MAX_NAME_BYTES, SHORT_NAME, QuotaEntity, bounded_name
from headrace.quota_callbacks.records.replay import Usage
from headrace.quota_callbacks.records.trace_lines import parse, read
from headrace.quota_callbacks.requests import Address, Connection, Request, TopicMutation
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import Asked, Conversation, FakeBroker
from tests.faults.proxy_log import JSON_LOG, events
from tests.faults.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.shared_cluster import FirstBroker

LONG: Final = "x" * 32_700
IDS: Final = 500
OF_A_LONG_ID: Final = 6 * 1024
"""Bytes of a bucket, a decision, and the rows of usage records; 3 KiB were measured, and 60 KiB without bounds."""
CONFIG: Final = """
[plugins.options.usage_records]
folder = "%s"
[[quotas]]
entity = { client-id = "<default>" }
request_percentage = 0.001
observe = true
[[quotas]]
entity = { client-id = "%s" }
request_percentage = 1000.0
"""
FAVOURED: Final = LONG + "favoured"


@pytest.mark.exhaustive
def test_long_client_ids_cost_no_more_than_short_ones(kafka: FirstBroker, tmp_path: Path) -> None:
    """One connection that gives another client id with each request, all of them alike in their first 32,000 bytes."""
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG % (tmp_path, FAVOURED), arguments=JSON_LOG) as proxy:
        with RawClient(proxy.port) as client:
            ask(client, range(50))
            before = proxy.resident_bytes
            ask(client, range(50, 50 + IDS))
            grown = proxy.resident_bytes - before
        decisions = json.loads(proxy.get("/decisions?newest=1000")[1])["decisions"]
        page = proxy.get("/metrics")[1]
        assert proxy.stop() == 0
        logged = [event for event in events(proxy) if "client_id" in event]
    assert len({decision["client_id"] for decision in decisions}) > 100, "they stay different"
    for each in (*decisions, *logged):
        assert len(each["client_id"].encode()) <= MAX_NAME_BYTES
        assert len(each["entity"].encode()) <= MAX_NAME_BYTES + len("client-id=")
    assert max(map(len, page.splitlines())) < 1000
    records = [json.loads(line) for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len({record.get("client_id") for record in records}) > IDS
    assert max(len(record.get("client_id") or "") for record in records) <= MAX_NAME_BYTES
    assert grown < IDS * OF_A_LONG_ID, f"{grown / IDS:.0f} bytes for each client id"


def ask(client: RawClient, numbers: Iterable[int]) -> None:
    for number in numbers:
        client.client_id = f"{LONG}{number}"
        for _ in range(2):
            client.call(messages.METADATA, 1, messages.NO_TOPICS)


def test_the_quota_of_a_long_client_id_is_found_and_so_are_its_decisions(kafka: FirstBroker, tmp_path: Path) -> None:
    """By the whole name, in the configuration and in the question for decisions."""
    shorter = "y" * 300
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG % (tmp_path, FAVOURED)) as proxy:
        for client_id in (FAVOURED, shorter):
            with RawClient(proxy.port, client_id=client_id) as client:
                for _ in range(3):
                    client.call(messages.METADATA, 1, messages.NO_TOPICS)
        found = json.loads(proxy.get(f"/decisions?client_id={shorter}")[1])["decisions"]
        assert found
        assert {each["client_id"] for each in found} == {bounded_name(shorter)}
        assert len(json.loads(proxy.get("/decisions")[1])["decisions"]) == len(found), "none about the other"


def test_the_broker_gets_the_client_id_as_it_is() -> None:
    """Its request log and its own quotas name it."""
    with FakeBroker({LONG: keep}) as broker, ProxyProcess(broker.address) as proxy:
        with RawClient(proxy.port, client_id=LONG) as client:
            client.call(messages.HEARTBEAT, 0)
        assert proxy.stop() == 0


def keep(conversation: Conversation, asked: Asked) -> None:
    """Answer requests with the whole client id, by which this function was found."""
    while True:
        conversation.reply(asked, conversation.broker.usual_reply(asked))
        asked = conversation.next()


TEXTS = st.text(max_size=600) | st.text(alphabet="xé€😀", min_size=200, max_size=600)


@given(name=TEXTS)
@example(name="x" * 255)
@example(name="é" * 128)
@example(name="😀" * 64)
@example(name="😀" * SHORT_NAME)
def test_a_bounded_name(name: str) -> None:
    found = bounded_name(name)
    assert len(found.encode()) <= MAX_NAME_BYTES
    assert bounded_name(found) == found, "what is recorded can be used again: in a quota, in a trace"
    if len(name.encode()) <= MAX_NAME_BYTES:
        assert found is name
    else:
        assert name.startswith(found.split("...sha256:")[0])


@given(one=TEXTS, other=TEXTS)
@example(one=LONG + "a", other=LONG + "b")
def test_bounded_names_are_told_apart(one: str, other: str) -> None:
    assert (bounded_name(one) == bounded_name(other)) is (one == other)


def test_configuration_and_replay_use_the_same_names() -> None:
    config = loads(
        'upstream.bootstrap_servers = ["kafka:9092"]\nlisten.address = "127.0.0.1:9192"\n'
        f'[[quotas]]\nentity = {{ user = "{LONG}a", client-id = "{LONG}b" }}\nproducer_byte_rate = 5\n'
    )
    (configured,) = config.entity_quotas()
    assert configured == QuotaEntity(user=LONG + "a", client_id=LONG + "b")
    entity = entity_in_force(configured)
    assert entity == QuotaEntity(user=bounded_name(LONG + "a"), client_id=bounded_name(LONG + "b"))
    line = {"t": 0, "user": LONG + "a", "client_id": LONG + "b", "op": "produce", "amount": 1}
    usage = read(parse(json.dumps(line)))
    assert isinstance(usage, Usage)
    assert (usage.user, usage.client_id) == (entity.user, entity.client_id)


def test_topics_with_impossible_names() -> None:
    """A CreateTopics may name thousands of topics of 32 KiB each, which no broker creates."""
    topics = CreatedTopics()
    topics.ask_for([TopicMutation(topic=f"{LONG}{number}", partitions=1) for number in range(100)], 0.0)
    topics.add([f"{LONG}{number}" for number in range(100)], 0.0)
    topics.ask_for([TopicMutation(topic="x" * 249, partitions=3)], 0.0)
    assert topics.partitions("x" * 249, 1.0) == 3
    assert topics.partitions(f"{LONG}1", 1.0) == 0
    assert len(topics._asked_for) + len(topics._since_s) == 1 < MAX_REMEMBERED


def test_topics_in_usage_records() -> None:
    seconds = Seconds(1000, lambda _request: 0.0)
    request = Request(Connection(connection_id=1, peer=Address(host="h", port=1)), ApiKey.PRODUCE, 9, 0, "c", 9, 0.0)
    seconds.add(request, 1)
    seconds.add_topics("ANONYMOUS", "c", ApiKey.PRODUCE, [(LONG + "a", 0, 5, -1), (LONG + "b", 0, 6, -1)])
    topics = {name[3]: row.request_bytes for name, row in seconds.rows.items() if name[3] is not None}
    assert topics == {bounded_name(LONG + "a"): 5, bounded_name(LONG + "b"): 6}
