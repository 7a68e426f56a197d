"""Bucket state survives a restart: a client over its quota is also throttled by the next process, however the last one
ended."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from testbed.errors import TestbedError
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, wait_for_events
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.shared_cluster import FirstBroker


OVERDRAWN = 1_000_000
LIMIT = 1000


def config(file: Path) -> str:
    return (
        f'[quota.state]\nfile = "{file}"\ninterval = "1s"\n'
        f'[quota.window]\nsize.seconds = 60\n[[quotas]]\nentity = {{ client-id = "greedy" }}\n'
        f"producer_byte_rate = {LIMIT}\n"
        'new_connections = "kafka"\n'  # to receive the throttle time at once
    )


def produce(proxy: ProxyProcess, topic: str, size: int) -> int:
    """Return the throttle time in a reply on a new connection."""
    body = messages.produce_body(topic, messages.batch(bytes(size)))
    with RawClient(proxy.port, client_id="greedy") as client:
        reply = messages.read_produce_reply(client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body))
    assert reply.error_code == 0
    return reply.throttle_ms


def saved(file: Path) -> bool:
    """Whether the bucket has come to the disk; by its bytes, since only one process may open the file."""
    return any(b"producer_byte_rate" in each.read_bytes() for each in file.parent.glob(f"{file.name}*"))


@pytest.mark.parametrize(
    "end", [pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive), signal.SIGKILL], ids=["drained", "killed"]
)
def test_the_debt_is_there_after_a_restart(kafka: FirstBroker, topic: str, tmp_path: Path, end: signal.Signals) -> None:
    file = tmp_path / "buckets.sqlite"
    with ProxyProcess(kafka.bootstrap_servers, config=config(file), arguments=JSON_LOG) as proxy:
        before_ms = produce(proxy, topic, OVERDRAWN)
        assert before_ms > 100_000
        if end is signal.SIGKILL:
            wait_until(lambda: saved(file), "the buckets were saved")
        proxy.signal(end)
        proxy.wait(30)
        assert_no_traceback(proxy)
    with ProxyProcess(kafka.bootstrap_servers, config=config(file), arguments=JSON_LOG) as proxy:
        taken = wait_for_events(proxy, "bucket state restored")
        assert [event["buckets"] for event in taken] == [1]
        assert produce(proxy, topic, 10) > before_ms - 60_000
        assert_no_traceback(proxy)


def test_without_a_file_a_restart_forgets(kafka: FirstBroker, topic: str, tmp_path: Path) -> None:
    text = config(tmp_path / "unused").replace("file =", "#file =")
    for _ in range(2):
        with ProxyProcess(kafka.bootstrap_servers, config=text) as proxy:
            assert produce(proxy, topic, 10) == 0, "nothing was used"
            assert produce(proxy, topic, OVERDRAWN) > 100_000


def test_a_file_that_another_proxy_has_stops_the_start(kafka: FirstBroker, tmp_path: Path) -> None:
    file = tmp_path / "buckets.sqlite"
    message = r"quota\.state\.file: cannot use .*another process has it"
    with ProxyProcess(kafka.bootstrap_servers, config=config(file)), pytest.raises(TestbedError, match=message):
        ProxyProcess(kafka.bootstrap_servers, config=config(file))
