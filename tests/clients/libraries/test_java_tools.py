"""Kafka's own command line tools, which are Java's Admin, producers and consumers, through the proxy.

A start of a tool costs a second: each test is one story of several steps.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.tools import Tool
from tests.clients.fronts import DEADLINE_S, eventually, unique
from tests.clients.libraries.payloads import SMALL
from tests.clients.wire_connection import WireConnection

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clients.fronts import Front

LINES = [value.decode() for value in SMALL[:20]]
RECORDS = 20_000
TIMEOUT_MS = str(int(DEADLINE_S * 1000))
"""After which a console consumer gives up, and kafka-broker-api-versions, whose own default is five seconds."""

# Kafka 4.2 gave the same option the same name in all tools (KIP-1147).
NEW_OPTIONS = {"--producer-props": "--command-property", "--messages": "--num-records"}
NEW_OPTIONS |= dict.fromkeys(("--producer-property", "--consumer-property"), "--command-property")


def tool(front: Front, which: Tool, *arguments: str, version: str | None = None, stdin: str = "") -> str:
    """Run a tool, by default of the brokers' version, with the options as that version calls them."""
    if (version or front.version) != "3.9.1":
        arguments = tuple(NEW_OPTIONS.get(each, each) for each in arguments)
    return front.tool(which, *arguments, version=version, stdin=stdin)


def produce(front: Front, topic: str, *more: str, version: str | None = None) -> None:
    """Run ProducerPerformance, with ``more`` properties and options behind them."""
    records = ("--topic", topic, "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1")
    properties = ("--producer-props", f"bootstrap.servers={front.bootstrap_servers}", "linger.ms=5")
    printed = tool(front, Tool.PRODUCER_PERF_TEST, *records, *properties, *more, version=version)
    assert f"{RECORDS} records sent" in printed


def consume_lines(front: Front, topic: str, *more: str, version: str | None = None) -> list[str]:
    """Run the console consumer until it has read as many lines as were written."""
    arguments = ("--topic", topic, "--from-beginning", "--max-messages", str(len(LINES)), "--timeout-ms", TIMEOUT_MS)
    return tool(front, Tool.CONSOLE_CONSUMER, *arguments, *more, version=version).splitlines()


@pytest.mark.exhaustive
def test_topics(front: Front) -> None:
    topic = unique("java-tools")
    printed = tool(front, Tool.TOPICS, "--create", "--topic", topic, "--partitions", "2")
    assert f"Created topic {topic}." in printed
    tool(front, Tool.TOPICS, "--alter", "--topic", topic, "--partitions", "5")
    front.wait_for_topic(topic, 5)
    printed = tool(front, Tool.TOPICS, "--describe", "--topic", topic)
    leaders = re.findall(rf"Topic: {topic}\tPartition: \d\tLeader: (\d)", printed)
    assert len(leaders) == 5
    assert {int(leader) for leader in leaders} == {broker.node_id for broker in front.cluster.brokers}
    tool(front, Tool.TOPICS, "--delete", "--topic", topic)
    with WireConnection(("127.0.0.1", front.proxy.port)) as connection:
        request = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        eventually(lambda: connection.ask(ApiKey.METADATA, 9, request)["topics"][0]["error_code"] == 3, "it is gone")


@pytest.mark.exhaustive
def test_configs(front: Front) -> None:
    topic, user = front.create_topic("java-tools"), unique("java-tools-user")
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tool(front, Tool.CONFIGS, "--alter", *of_topic, "--add-config", "retention.ms=3600000,cleanup.policy=delete")
    printed = tool(front, Tool.CONFIGS, "--describe", *of_topic)
    assert "retention.ms=3600000" in printed
    of_user = ("--entity-type", "users", "--entity-name", user)
    tool(front, Tool.CONFIGS, "--alter", *of_user, "--add-config", "producer_byte_rate=1048576")
    printed = tool(front, Tool.CONFIGS, "--describe", *of_user)
    assert f"Quota configs for user-principal '{user}' are producer_byte_rate=1048576.0" in printed


@pytest.mark.exhaustive
def test_performance_and_transactions(front: Front) -> None:
    topic, transactional_id = front.create_topic("java-tools", 3), unique("java-tools")
    produce(front, topic, "compression.type=zstd", "acks=all")
    produce(front, topic, "--transactional-id", transactional_id, "--transaction-duration-ms", "50")
    printed = tool(front, Tool.CONSUMER_PERF_TEST, "--topic", topic, "--messages", str(2 * RECORDS), "--hide-header")
    assert int(printed.split(", ")[4]) == 2 * RECORDS
    printed = tool(front, Tool.TRANSACTIONS, "describe", "--transactional-id", transactional_id)
    assert "CompleteCommit" in printed


@pytest.mark.exhaustive
def test_consoles_and_groups(front: Front) -> None:
    """One group of the classic protocol and one of KIP-848's read the same lines."""
    topic = front.create_topic("java-tools", 2)
    classic, consumer = unique("java-tools-classic"), unique("java-tools-consumer")
    tool(front, Tool.CONSOLE_PRODUCER, "--topic", topic, stdin="\n".join(LINES) + "\n")
    assert sorted(consume_lines(front, topic, "--group", classic)) == sorted(LINES)
    protocol = ("--consumer-property", "group.protocol=consumer")
    assert sorted(consume_lines(front, topic, "--group", consumer, *protocol)) == sorted(LINES)
    both = ("--group", classic, "--group", consumer)
    reset = ("--reset-offsets", "--to-earliest", "--topic", f"{topic}:0", "--execute")
    tool(front, Tool.CONSUMER_GROUPS, "--group", classic, *reset)
    printed = tool(front, Tool.CONSUMER_GROUPS, "--describe", *both)
    offsets = {
        (row[0], row[2]): (int(row[3]), int(row[4])) for row in map(str.split, printed.splitlines()) if topic in row
    }
    for each in (classic, consumer):  # a partition without records may have got no position before the consumer ended
        ends = {partition: end for (group, partition), (_, end) in offsets.items() if group == each}
        assert ends.keys() <= {"0", "1"}
        assert sum(ends.values()) == len(LINES)
    assert {key for key, (current, end) in offsets.items() if current != end} <= {(classic, "0")}
    assert offsets[classic, "0"][0] == 0
    printed = tool(front, Tool.CONSUMER_GROUPS, "--delete", *both)
    assert re.search(r"Deletion of requested consumer groups \('(.*)'\) was successful", printed)
    assert all(group in printed for group in (classic, consumer))


@pytest.mark.exhaustive
def test_share_groups(front43: Front) -> None:
    topic, group = front43.create_topic("java-tools", 2), unique("java-tools-share")
    of_group = ("--entity-type", "groups", "--entity-name", group)
    tool(front43, Tool.CONFIGS, "--alter", *of_group, "--add-config", "share.auto.offset.reset=earliest")
    tool(front43, Tool.CONSOLE_PRODUCER, "--topic", topic, stdin="\n".join(LINES) + "\n")
    reading = ("--topic", topic, "--group", group, "--max-messages", str(len(LINES)), "--timeout-ms", TIMEOUT_MS)
    assert sorted(tool(front43, Tool.CONSOLE_SHARE_CONSUMER, *reading).splitlines()) == sorted(LINES)
    printed = tool(front43, Tool.SHARE_GROUPS, "--describe", "--group", group)
    assert re.search(rf"{group}\s+{topic}\s+0", printed)


@pytest.mark.exhaustive
def test_cluster(front: Front, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"request.timeout.ms={TIMEOUT_MS}\n", encoding="ascii")
    printed = tool(front, Tool.BROKER_API_VERSIONS, "--command-config", str(file))
    shown = {(host, int(port)) for host, port in re.findall(r"^(\S+):(\d+) \(id: \d", printed, re.MULTILINE)}
    assert shown == front.addresses
    assert "UNKNOWN" not in printed
    printed = tool(front, Tool.METADATA_QUORUM, "describe", "--status")
    assert f"ClusterId:              {front.cluster.cluster_id}" in printed
    assert tool(front, Tool.CLUSTER, "cluster-id") == f"Cluster ID: {front.cluster.cluster_id}\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("front", "version"), [("front43", "3.9.1"), ("front39", "4.3.1")], indirect=["front"])
def test_tools_of_another_version_than_the_brokers(front: Front, version: str) -> None:
    topic = unique("java-tools")
    tool(front, Tool.TOPICS, "--create", "--topic", topic, "--partitions", "2", version=version)
    front.wait_for_topic(topic, 2)
    assert "PartitionCount: 2" in tool(front, Tool.TOPICS, "--describe", "--topic", topic, version=version)
    tool(front, Tool.CONSOLE_PRODUCER, "--topic", topic, stdin="\n".join(LINES) + "\n", version=version)
    group = ("--group", unique("java-tools-group"))
    assert sorted(consume_lines(front, topic, *group, version=version)) == sorted(LINES)
