"""Many connections of one address keep the proxy's long steps busy, and another client's long request has its turns.

The answers to the flood are counted, not its time: if the turns did not go round the addresses, the other client would
wait for an answer to each of the flood's connections.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.error_codes import ErrorCode
from testbed.proxy_process import ProxyProcess
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until
from tests.proxy.playbook import read_reply, request

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker

CONFIG: Final = """
[plugins.options.authorization]
enabled = true
[[plugins.options.authorization.rules]]
principal = "User:*"
operations = ["Describe"]
resource_type = "topic"
name = "allowed"
"""
FLOOD: Final = 30
"""Connections of the flood. Each sends a request that is denied topic by topic, and the next one after its answer."""
TOPICS: Final = 800
VERSION: Final = 5
ROUNDS: Final = 5


@pytest.mark.exhaustive
def test_a_flood_of_long_requests_takes_no_turns_of_others(kafka: FirstBroker) -> None:
    topics = [{"name": f"not-allowed-{number}", "num_partitions": 1} for number in range(TOPICS)]
    sent = request(ApiKey.CREATE_TOPICS, VERSION, topics=topics)
    answered: list[RawClient] = []

    def flood(client: RawClient) -> None:
        while True:
            try:
                client.send(sent)
                client.reply()
            except (ConnectionEndedError, OSError):
                return
            answered.append(client)

    with ExitStack() as stack:
        proxy = stack.enter_context(ProxyProcess(kafka.bootstrap_servers, config=CONFIG, arguments=JSON_LOG))
        other = stack.enter_context(RawClient(proxy.port))
        clients = [stack.enter_context(RawClient(proxy.port, source="127.0.0.2")) for _ in range(FLOOD)]
        threads = [threading.Thread(target=flood, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(set(answered)) == FLOOD, "each connection of the flood has an answer", 120)
            waited = []
            for _ in range(ROUNDS):
                before = len(answered)
                other.send(sent)
                _, body = other.reply()
                waited.append(len(answered) - before)
            assert median(waited) < FLOOD / 4, waited
        finally:
            for client in clients:
                client.reset()
            for thread in threads:
                thread.join()
        assert_no_traceback(proxy)
    denied = read_reply(ApiKey.CREATE_TOPICS, VERSION, bytes(8) + body)["topics"]  # the client takes off 8 bytes
    assert {topic["error_code"] for topic in denied} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
