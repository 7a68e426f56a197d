"""Filling the table of buckets with invented client ids, on a real proxy in front of a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.buckets.bucket_table import MAX_OWNED
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.raw_client import RawClient
from tests.security.floods.test_stalling_clients import MIB
from tests.security.quotas.test_unaccepted_clients import produce
from tests.security.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

CONFIG: Final = """
[[quotas]]
entity = { user = "ANONYMOUS" }
producer_byte_rate = 10000
[[quotas]]
entity = { client-id = "<default>" }
request_percentage = 10000
"""
INVENTED: Final = MAX_OWNED + 2000
AT_ONCE: Final = 100


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG) as process:
        yield process


@pytest.fixture(scope="module")
def topic(kafka: FirstBroker) -> str:
    return create_topic(kafka, "table")


@pytest.mark.exhaustive
def test_invented_client_ids_end_no_throttle_and_take_little_memory(proxy: ProxyProcess, topic: str) -> None:
    with RawClient(proxy.port, client_id="owes") as client:
        client.send(produce(topic, "owes", 900_000, 1))
        client.reply()
    before = proxy.resident_bytes
    with RawClient(proxy.port) as attacker:
        for first in range(0, INVENTED, AT_ONCE):
            ids = [f"{number:08}".ljust(250, "z") for number in range(first, first + AT_ONCE)]
            attacker.send(b"".join(messages.request(messages.API_VERSIONS, 0, 1, b"", each) for each in ids))
            for _ in ids:
                attacker.reply()
    assert proxy.resident_bytes - before < 60 * MIB
    counts = [proxy.metric(f"headrace_quota_buckets_{how}_total") for how in ("overflowed", "evicted")]
    assert sum(counts) >= INVENTED - MAX_OWNED, counts  # on a slow machine, the first ones have forgotten everything
    with RawClient(proxy.port, client_id="owes", timeout_s=2) as client:
        client.send(produce(topic, "owes", 1000, 2))
        with pytest.raises(TimeoutError):
            client.reply()
