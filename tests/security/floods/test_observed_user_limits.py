"""A user with too many connections, where brokers verify the login: in front of a real broker."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from testbed.kafka.certificates import Authority
from tests.faults import messages
from tests.faults.limits.test_limits import is_served
from tests.faults.metrics import series
from tests.faults.raw_client import ConnectionEndedError
from tests.security.floods.test_user_limits import NUMBER, connect
from tests.security.ways import USER, WAYS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.shared_cluster import FirstBroker


def test_logins_that_the_brokers_verify_count(kafka: FirstBroker, tmp_path: Path) -> None:
    """Over TLS, and only once a broker has accepted them."""
    way = WAYS["observe SCRAM-SHA-256"]
    limits = "[limits]\nmax_connections_per_user = 2\n"
    with way.proxy(kafka, Authority(tmp_path), tmp_path, limits) as proxy, contextlib.ExitStack() as stack:
        for client in connect(stack, proxy, 5):
            assert client.call(messages.SASL_HANDSHAKE, 1, messages.string(str(way.mechanism)))[:2] == b"\0\0"
        for client in connect(stack, proxy, 2):
            way.log_in(client)
            assert is_served(client)
        [third] = connect(stack, proxy, 1)
        with pytest.raises(ConnectionEndedError):
            way.log_in(third)
        proxy.wait_for_log(f"client: user {USER}: limits.max_connections_per_user = 2 is reached")
        assert series(proxy, NUMBER) == 1
