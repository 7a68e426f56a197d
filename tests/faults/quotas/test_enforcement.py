"""The switch that stops the enforcement of quotas, and clients without a quota."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from testbed.preloaded_command import run_headrace
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from tests.shared_cluster import FirstBroker


BATCH = messages.batch(bytes(100_000))
LONG_MS = 60_000
"""A throttle that outlasts every deadline here."""
RELEASED_S = 15.0
"""It takes a second (`headrace.proxy.connection.state.muting.HANG_UP_CHECK_S`); the rest is for a busy machine. The
mute would last a minute."""

QUOTA = '[[quotas]]\nentity = { client-id = "<default>" }\nproducer_byte_rate = 100\n'


@pytest.fixture
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, config=QUOTA, arguments=JSON_LOG, has_token=True) as process:
        yield process
        assert_no_traceback(process)


def produce(client: RawClient, topic: str) -> int:
    """Send one batch; the throttle time of the reply, in ms."""
    reply = messages.read_produce_reply(
        client.call(messages.PRODUCE, messages.PRODUCE_VERSION, messages.produce_body(topic, BATCH))
    )
    assert reply.error_code == 0
    return reply.throttle_ms


def enforcement(state: str, proxy: ProxyProcess) -> subprocess.CompletedProcess[str]:
    return run_headrace("enforcement", state, "--admin", proxy.admin, "--token-file", str(proxy.token_file))


def test_off_releases_who_is_muted_and_on_holds_again(proxy: ProxyProcess, topic: str) -> None:
    with RawClient(proxy.port) as client:
        assert produce(client, topic) > LONG_MS
        client.request(messages.PRODUCE, messages.PRODUCE_VERSION, messages.produce_body(topic, BATCH))
        assert enforcement("show", proxy).stdout == "enforcement is on\n"

        switched = enforcement("off", proxy)
        began_s = time.monotonic()
        assert (switched.returncode, switched.stdout) == (0, "enforcement is off\n")
        _, reply = client.reply()
        assert time.monotonic() - began_s < RELEASED_S
        assert messages.read_produce_reply(reply).throttle_ms == 0
        assert produce(client, topic) == 0
        assert proxy.metric("headrace_muted_connections") == 0
        assert proxy.metric("headrace_enforcement_enabled") == 0

        assert enforcement("on", proxy).stdout == "enforcement is on\n"
        assert produce(client, topic) > LONG_MS
        assert proxy.metric("headrace_muted_connections") == 1
        assert proxy.metric("headrace_enforcement_enabled") == 1
    assert proxy.wait_for_log("enforcement switched")


def test_the_switch_names_the_address_where_no_admin_server_answers(unused_port: Callable[[], int]) -> None:
    result = run_headrace("enforcement", "off", "--admin", f"127.0.0.1:{unused_port()}")
    assert result.returncode == 1
    assert result.stderr.startswith("headrace: cannot reach an admin server at 127.0.0.1:")
    assert "Traceback" not in result.stderr


@contextlib.contextmanager
def exempting(kafka: FirstBroker, setting: str) -> Iterator[ProxyProcess]:
    config = f"[enforcement]\n{setting}\n\n{QUOTA}"
    with ProxyProcess(kafka.bootstrap_servers, config=config, arguments=JSON_LOG, has_token=True) as process:
        yield process
        assert_no_traceback(process)


def test_an_exempt_client_id_is_not_held(kafka: FirstBroker, topic: str) -> None:
    with (
        exempting(kafka, 'exempt_client_ids = ["night-shift"]') as proxy,
        RawClient(proxy.port, client_id="night-shift") as exempt,
        RawClient(proxy.port, client_id="day-shift") as held,
    ):
        assert produce(held, topic) > LONG_MS
        assert [produce(exempt, topic) for _ in range(3)] == [0, 0, 0]


def test_an_exempt_user_is_not_held(kafka: FirstBroker, topic: str) -> None:
    with (
        exempting(kafka, 'exempt_users = ["ANONYMOUS"]') as proxy,
        RawClient(proxy.port) as client,
    ):
        assert [produce(client, topic) for _ in range(3)] == [0, 0, 0]


def test_it_can_be_off_from_the_start(kafka: FirstBroker, topic: str) -> None:
    with exempting(kafka, "enabled = false") as proxy, RawClient(proxy.port) as client:
        assert produce(client, topic) == 0
        assert enforcement("on", proxy).returncode == 0
        assert produce(client, topic) > LONG_MS
