"""Kafka's own tools against real brokers."""

from __future__ import annotations

import signal
import zipfile
from typing import TYPE_CHECKING

import pytest

from testbed.errors import TestbedTimeoutError, ToolError, UnknownVersionError
from testbed.kafka.artifacts import BROKER_VERSIONS, broker_jars
from testbed.kafka.tools import Tool, main_class, run_tool, start_tool
from tests.testbed.callers import caller, printed_by, wait_until_nothing_is_left
from tests.testbed.kafka.clients import create_topic, new_name, produce

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.kafka.cluster import KafkaCluster


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_every_tool_is_in_the_jars_of_its_version(version: str) -> None:
    classes: set[str] = set()
    for jar in broker_jars(version):
        with zipfile.ZipFile(jar) as archive:
            classes.update(archive.namelist())
    missing = []
    for tool in Tool:
        try:
            name = main_class(tool, version)
        except UnknownVersionError:
            name = tool.value
            assert f"{name.replace('.', '/')}.class" not in classes, f"{version} has {tool.name} after all"
        else:
            if f"{name.replace('.', '/')}.class" not in classes:
                missing.append(tool.name)
    assert not missing


@pytest.fixture(params=["kafka", "kafka39"])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue(request.param)
    return found


def test_a_tool_prints_its_output_and_nothing_else(cluster: KafkaCluster) -> None:
    topic = new_name()
    servers = ["--bootstrap-server", cluster.bootstrap_servers]
    made = run_tool(Tool.TOPICS, [*servers, "--create", "--topic", topic], version=cluster.version)
    assert (made.returncode, made.stdout, made.stderr) == (0, f"Created topic {topic}.\n", "")
    run_tool(Tool.CONSOLE_PRODUCER, [*servers, "--topic", topic], version=cluster.version, stdin="eins\nzwölf\n")
    read = run_tool(
        Tool.CONSOLE_CONSUMER,
        [
            *(*servers, "--topic", topic, "--from-beginning", "--max-messages", "2", "--group", new_name("group")),
            *("--consumer-property", "group.protocol=consumer"),
        ],
        version=cluster.version,
    )
    assert read.stdout.splitlines()[-2:] == ["eins", "zwölf"]
    assert read.stderr == "Processed a total of 2 messages\n"


def test_a_failing_tool_is_an_error_with_its_words(kafka: KafkaCluster) -> None:
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--describe", "--topic", "no-such-topic"]
    with pytest.raises(ToolError, match=r"(?s)TOPICS .* ended with status 1: .*'no-such-topic' does not exist"):
        run_tool(Tool.TOPICS, arguments)
    assert run_tool(Tool.TOPICS, arguments, check=False).returncode == 1


def test_a_tool_has_a_deadline() -> None:
    with pytest.raises(TestbedTimeoutError, match=r"java \(pid \d+\) still runs after 0\.2 s"):
        run_tool(Tool.TOPICS, ["--bootstrap-server", "127.0.0.1:1", "--list"], timeout_s=0.2)


def test_share_groups_work(kafka: KafkaCluster) -> None:
    topic, group = create_topic(kafka.bootstrap_servers), new_name("group")
    produce(kafka.bootstrap_servers, topic, 3)
    servers = ["--bootstrap-server", kafka.bootstrap_servers]
    earliest = ["--alter", "--add-config", "share.auto.offset.reset=earliest"]
    run_tool(Tool.CONFIGS, [*servers, *earliest, "--entity-type", "groups", "--entity-name", group])
    read = run_tool(Tool.CONSOLE_SHARE_CONSUMER, [*servers, "--topic", topic, "--group", group, "--max-messages", "3"])
    assert sorted(read.stdout.split()) == ["0", "1", "2"]


def test_a_running_tool_is_read_fed_and_stopped(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    servers = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic]
    with (
        start_tool(Tool.CONSOLE_CONSUMER, [*servers, "--from-beginning"]) as consumer,
        start_tool(Tool.CONSOLE_PRODUCER, servers) as producer,
    ):
        producer.stdin.write("first\n")
        consumer.wait_for_output("first\n")
        assert consumer.poll() is None
        producer.stdin.close()
        assert producer.wait() == 0
        assert consumer.stop() == 128 + signal.SIGINT
        assert "Processed a total of 1 messages" in consumer.output()
        with pytest.raises(ToolError, match=r"ended with status 130 before it printed 'second'"):
            consumer.wait_for_output("second")


def test_a_running_tool_ends_with_its_caller(kafka: KafkaCluster, tmp_path: Path) -> None:
    code = f"""
import json, signal
from testbed.kafka.tools import Tool, start_tool
topic = {create_topic(kafka.bootstrap_servers)!r}
tool = start_tool(Tool.CONSOLE_CONSUMER, ["--bootstrap-server", {kafka.bootstrap_servers!r}, "--topic", topic])
print(json.dumps(tool.pid), flush=True)
signal.pause()
"""
    with caller(code) as process:
        pid = printed_by(process)
        process.kill()
        wait_until_nothing_is_left([pid], tmp_path / "nothing")


def test_a_tool_that_a_version_lacks_is_named() -> None:
    with pytest.raises(UnknownVersionError, match=r"Kafka 3\.9\.1 has no tool SHARE_GROUPS"):
        run_tool(Tool.SHARE_GROUPS, ["--list"], version="3.9.1")


def test_any_main_class_can_be_run() -> None:
    result = run_tool("org.apache.kafka.tools.OAuthCompatibilityTool", ["--help"], check=False)
    assert "usage" in result.stdout.lower() + result.stderr.lower()
