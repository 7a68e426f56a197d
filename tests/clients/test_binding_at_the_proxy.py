"""Quotas of a proxy that bind hard, in front of the shared cluster, whose brokers have none.

Two of the scenarios of `test_binding_quotas`, which also compares what clients report with what they report at a broker
that has the same quotas. Neither client reports an error there.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.wire.heads import request_frame
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.binding_front import proxied_front
from tests.clients.fronts import unique
from tests.clients.test_binding_quotas import KINDS, Scenario, idempotent, in_a_group, run
from tests.clients.wire_connection import CORRELATION_ID, WireConnection, read_reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clients.binding_front import BindingFront
    from tests.shared_cluster import FirstBroker

SCENARIOS: Final[list[tuple[str, Scenario, object, str]]] = [
    ("librdkafka", idempotent, True, "producer_byte_rate"),
    ("aiokafka", in_a_group, (True, 400), "consumer_byte_rate"),
]
"""A client, what it does, what is delivered, and the quota that throttles it."""
RESOURCE_NOT_FOUND: Final = 91
ENOUGH: Final = 6
"""Requests of which the last ones are relayed natively, if there is a native data plane and nothing has to be read."""
EVERYTHING_ALLOWED: Final = """
[plugins.options.authorization]
enabled = true
super_users = ["User:ANONYMOUS"]
"""


@pytest.fixture(scope="module")
def proxied(kafka: FirstBroker) -> Iterator[BindingFront]:
    with proxied_front(kafka) as running:
        yield running
        assert running.faults() == []


def test_clients_deliver_everything_and_report_no_error(proxied: BindingFront) -> None:
    sides = [proxied.proxied_side(name) for name, *_ in SCENARIOS]
    with ThreadPoolExecutor(len(sides)) as pool:
        futures = [
            pool.submit(run, proxied, scenario, KINDS[name], side)
            for (name, scenario, *_), side in zip(SCENARIOS, sides, strict=True)
        ]
    for (name, _, wanted, quota), side, future in zip(SCENARIOS, sides, futures, strict=True):
        outcome = future.result()
        assert (outcome.delivered, outcome.errors) == (wanted, set()), f"{name}\n{outcome.failure}"
        assert quota in proxied.throttled(side), name


@pytest.fixture(scope="module")
def authorizing(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    """A proxy that reads requests to authorize them."""
    with ProxyProcess(kafka.bootstrap_servers, config=EVERYTHING_ALLOWED) as proxy:
        yield proxy


def test_a_byte_behind_a_request_is_ignored(authorizing: ProxyProcess) -> None:
    """librdkafka writes one byte too many behind AlterUserScramCredentials v0. Brokers ignore it."""
    api_key, deletion = ApiKey.ALTER_USER_SCRAM_CREDENTIALS, {"name": "nobody", "mechanism": 1}
    body = encode("AlterUserScramCredentialsRequest", 0, {"deletions": [deletion], "upsertions": []})
    frame = request_frame(api_key, 0, CORRELATION_ID, unique("one-more"), body + b"\0")
    with WireConnection(("127.0.0.1", authorizing.port)) as connection:
        for _ in range(ENOUGH):
            reply = read_reply(api_key, 0, connection.exchange(frame))
            assert [row["error_code"] for row in reply["results"]] == [RESOURCE_NOT_FOUND]
        assert connection.ask(ApiKey.API_VERSIONS, 0, {})["error_code"] == 0
