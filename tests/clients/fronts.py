"""A proxy in front of a real cluster, and what a client's test needs of the two.

Called by every test of this package. Whatever waits has a deadline in seconds.
"""

from __future__ import annotations

import enum
import itertools
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.errors import TestbedTimeoutError
from testbed.kafka.properties import INTERNAL_PARTITIONS
from testbed.kafka.tools import Tool, run_tool
from tests.clients.wire_connection import WireConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from testbed.kafka.cluster import KafkaCluster
    from testbed.proxy_process import ProxyProcess
    from tests.shared_cluster import FirstBroker

T = TypeVar("T")

FRONTS = {"4.3.1": "front43", "3.9.1": "front39"}
"""The fixtures of `Front`, by the brokers' version."""

HIGH_QUOTAS = """
[[quotas]]
entity = { client-id = "<default>" }
producer_byte_rate = "1024GiB"
consumer_byte_rate = "1024GiB"
request_percentage = 1000000.0
controller_mutation_rate = 1000000.0

[[quotas]]
entity = { user = "<default>" }
producer_ids_rate = 1000000
"""
"""All four quotas, so that each request is read, measured and looked up as under a limit, and none is ever reached."""

HIGH_QUOTAS_OF_ANONYMOUS = """
[[quotas]]
entity = { user = "ANONYMOUS" }
producer_byte_rate = "1024GiB"
consumer_byte_rate = "1024GiB"
request_percentage = 1000000.0
controller_mutation_rate = 1000000.0
producer_ids_rate = 1000000
"""
"""The same for clients without a login, for tests that change and describe the quotas of defaults."""

SLOW_CALLS = """
[plugins]
slow_call = "1h"
"""
"""For a proxy whose log must have no warning: where other processes take the processor, any call may take long."""

DEADLINE_S = 40.0
"""A rebalance or a transaction takes a second at most; a busy machine may take many times that."""
TOOL_DEADLINE_S = 180.0
"""For one of Kafka's tools, which compiles itself for a second or two before it does anything."""
POLL_S = 0.02

NOT_LOADED = {14, 15, 16}
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR: what changes when coordinators have
loaded their state."""

_METADATA = 9
_CREATE_TOPICS = 7
_LIST_OFFSETS = 4
_LATEST = -1
_DESCRIBE_GROUPS = 5
_FIND_COORDINATOR = 3
"""The highest version that asks for one key."""

_numbers = itertools.count(1)


class Coordinates(enum.IntEnum):
    """What a coordinator is asked for, by its number in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What clients see: one proxy, and behind it one cluster of one version."""

    cluster: KafkaCluster | FirstBroker
    proxy: ProxyProcess

    @property
    def version(self) -> str:
        """The brokers' version."""
        return self.cluster.version

    @property
    def bootstrap_servers(self) -> str:
        """Where clients begin: the proxy."""
        return self.proxy.bootstrap_servers

    @property
    def addresses(self) -> set[tuple[str, int]]:
        """Host and port of every broker as the proxy shows it."""
        return {("127.0.0.1", self.proxy.broker_port(broker.node_id)) for broker in self.cluster.brokers}

    def requests(self, api: str) -> float:
        """How many requests of that API the proxy has read from clients."""
        found = re.search(
            rf'^headrace_requests_total{{api="{api}"}} (\S+)', self.proxy.get("/metrics")[1], re.MULTILINE
        )
        return float(found[1]) if found else 0.0

    def wait_for_topic(self, topic: str, partitions: int = 1) -> None:
        """Wait until every broker knows the leaders of so many partitions, and leads its own: brokers learn of changes
        one by one, and show a partition in Metadata before they serve it."""

        def led() -> bool:
            reply = connection.ask(ApiKey.METADATA, _METADATA, {"topics": [{"name": topic}]})["topics"][0]
            leaders = {each["partition_index"]: each["leader_id"] for each in reply["partitions"]}
            if reply["error_code"] or len(leaders) < partitions or min(leaders.values()) < 0:
                return False
            own = [number for number, leader in leaders.items() if leader == broker.node_id]
            return not own or _serves(connection, topic, own)

        for broker in self.cluster.brokers:
            with WireConnection(("127.0.0.1", self.proxy.broker_port(broker.node_id))) as connection:
                eventually(led, f"broker {broker.node_id} knows the topic {topic}, and leads its partitions")

    def create_topic(self, prefix: str, partitions: int = 1) -> str:
        """Create a topic, for tests of which that is not the point, and return its name."""
        topic = unique(prefix)
        wanted = {"name": topic, "num_partitions": partitions, "replication_factor": -1}
        with WireConnection(("127.0.0.1", self.proxy.port)) as connection:
            reply = connection.ask(ApiKey.CREATE_TOPICS, _CREATE_TOPICS, {"topics": [wanted]})
        assert [row["error_code"] for row in reply["topics"]] == [0]
        self.wait_for_topic(topic, partitions)
        return topic

    def coordinator(self, kind: Coordinates, key: str) -> int:
        """The node id of the broker that coordinates a group or a transactional id, once there is one."""

        def found() -> tuple[int] | None:
            reply = connection.ask(ApiKey.FIND_COORDINATOR, _FIND_COORDINATOR, {"key": key, "key_type": kind})
            return None if reply["error_code"] else (reply["node_id"],)

        with WireConnection(("127.0.0.1", self.proxy.port)) as connection:
            return eventually(found, f"{key} has a coordinator of {kind.name.lower()}s")[0]

    def wait_for_coordinators(self, kind: Coordinates) -> None:
        """Wait until the coordinators of all partitions have loaded their state: FindCoordinator names them before."""

        def loaded() -> bool:
            if kind is Coordinates.GROUP:
                (row,) = connection.ask(ApiKey.DESCRIBE_GROUPS, _DESCRIBE_GROUPS, {"groups": [key]})["groups"]
            else:
                request = {"transactional_ids": [key]}
                (row,) = connection.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)["transaction_states"]
            return row["error_code"] not in NOT_LOADED

        for key in (f"loaded-{number}" for number in range(INTERNAL_PARTITIONS)):  # which hash to one partition each
            node_id = self.coordinator(kind, key)
            with WireConnection(("127.0.0.1", self.proxy.broker_port(node_id))) as connection:
                eventually(loaded, f"broker {node_id} has loaded the state for {key}")

    def tool(self, tool: Tool, *arguments: str, version: str | None = None, stdin: str = "") -> str:
        """Run one of Kafka's tools against the proxy, by default the brokers' version of it; return what it printed."""
        connect = ("--bootstrap-server", self.bootstrap_servers)
        if tool is Tool.CLUSTER:  # its options stand behind the name of the action
            command = [*arguments, *connect]
        elif tool is Tool.PRODUCER_PERF_TEST:  # in 3.9, a property sets it
            command = list(arguments)
        else:
            command = [*connect, *arguments]
        return run_tool(tool, command, version=version or self.version, stdin=stdin, timeout_s=TOOL_DEADLINE_S).stdout


def _serves(connection: WireConnection, topic: str, partitions: Sequence[int]) -> bool:
    """Return whether the broker answers for these partitions."""
    rows = [{"partition_index": number, "timestamp": _LATEST} for number in partitions]
    request = {"replica_id": -1, "topics": [{"name": topic, "partitions": rows}]}
    (answered,) = connection.ask(ApiKey.LIST_OFFSETS, _LIST_OFFSETS, request)["topics"]
    return all(row["error_code"] == 0 for row in answered["partitions"])


def unique(prefix: str) -> str:
    """A name that no other test uses: clusters are shared by all tests of a session."""
    return f"{prefix}-{next(_numbers)}"


def eventually(condition: Callable[[], T | None], what: str, *, pause_s: float = POLL_S) -> T:
    """Ask until ``condition`` returns something true, and return that. ``pause_s`` is 0 for one that waits by itself.

    Raises TestbedTimeoutError after DEADLINE_S.
    """
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TestbedTimeoutError(f"{what}: not within {DEADLINE_S:g} s; the last answer was {found!r}")
        time.sleep(pause_s)
