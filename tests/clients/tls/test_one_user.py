"""A user has one quota for all connections: whatever their client ids, and however they have proved who they are."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.connecting import OAUTHBEARER
from tests.clients.tls.proxies import MECHANISMS, listen_tls, terminated
from tests.clients.tls.test_through_proxy import created_topic
from tests.faults import messages
from tests.faults.raw_client import RawClient, speaking_tls
from tests.plugins.sasl_oauth.issuer import key_set, rsa_key
from tests.secure_cluster import Port
from tests.security.ways import USER, Mode, Way

if TYPE_CHECKING:
    from pathlib import Path

    from tests.secure_cluster import SecureKafka

LIMIT: Final = 400_000
"""Bytes a second; the burst of a paced quota is that of one second."""
VALUE_BYTES: Final = 50_000
REQUESTS: Final = 6
"""Bytes that each connection sends: less than the burst, so that none of them alone would have to wait."""
ALL: Final = (*MECHANISMS, OAUTHBEARER)


@pytest.mark.exhaustive
def test_a_paced_quota_holds_over_connections_client_ids_and_mechanisms(
    secure_kafka: SecureKafka, tmp_path: Path
) -> None:
    """What has passed at any time is the sum of all, however slow the machine is."""
    topic = created_topic({"bootstrap.servers": secure_kafka.address(Port.PLAINTEXT)})
    body = messages.produce_body(topic, messages.batch(bytes(VALUE_BYTES)))
    passed: list[float] = []

    def send(client: RawClient) -> None:
        for _ in range(REQUESTS):
            reply = client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body)
            passed.append(time.monotonic())  # some time after it has passed
            assert messages.read_produce_reply(reply).error_code == 0

    with ExitStack() as stack:
        certified = stack.enter_context(reserve_ports(2)).first
        proxy = stack.enter_context(
            ProxyProcess(secure_kafka.address(Port.PLAINTEXT), config=_config(secure_kafka, tmp_path, certified))
        )
        stack.enter_context(speaking_tls(certified, secure_kafka.mutual_tls.ssl_context()))
        clients = [stack.enter_context(RawClient(certified, client_id="certified"))]
        for mechanism in ALL:
            clients.append(stack.enter_context(RawClient(proxy.port, client_id=f"by-{mechanism}")))
            Way(mode=Mode.TERMINATE, mechanism=mechanism).log_in(clients[-1])
        begin_s = time.monotonic()
        with ThreadPoolExecutor(len(clients)) as threads:
            list(threads.map(send, clients))
    assert len(passed) == REQUESTS * len(clients)
    for count, at_s in enumerate(sorted(passed), 1):
        allowed = LIMIT * (at_s - begin_s) + LIMIT + len(body)
        assert count * VALUE_BYTES <= allowed, f"{count} requests in {at_s - begin_s:.3f} s"


def _config(kafka: SecureKafka, folder: Path, certified: int) -> str:
    """Two listeners: one for each mechanism, and one that makes the subject of a certificate the same user."""
    keys = folder / "keys.json"
    keys.write_bytes(key_set(rsa_key()))
    tls = listen_tls(kafka.broker, clients=kafka.authority.ca_file).replace("[listen.", "[listeners.certified.")
    return (
        terminated(folder, ALL)
        + f'[plugins.options.sasl_oauth]\njwks_file = "{keys}"\naudience = ["kafka"]\n'
        + f'[listeners.certified]\naddress = "127.0.0.1:{certified}"\nnode_ids = "0"\n{tls}'
        + f'principal_mapping_rules = "RULE:^CN=alice,.*$/{USER}/"\n'
        + f'[[quotas]]\nentity = {{ user = "{USER}" }}\nproducer_byte_rate = {LIMIT}\nenforcement = "paced"\n'
    )
