"""The notifications to systemd, over a real socket: readiness, reloads, the end, and that the event loop runs."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from testbed.errors import TestbedTimeoutError
from testbed.proxy_process import ProxyProcess
from tests.faults import blocking_plugin, messages
from tests.faults.fake_broker import FakeBroker
from tests.faults.raw_client import RawClient
from tests.faults.service_manager import WATCHDOG_S, Receiver
from tests.faults.waiting import wait_until, wait_until_steady

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(str(tmp_path / "notify"))
    yield made
    made.close()


@pytest.fixture
def abstract_receiver() -> Iterator[Receiver]:
    made = Receiver(f"\0headrace-{os.getpid()}")
    yield made
    made.close()


def test_all_states_are_reported(receiver: Receiver) -> None:
    assert_reports_all_states(receiver)


def test_all_states_are_reported_to_an_abstract_socket(abstract_receiver: Receiver) -> None:
    assert_reports_all_states(abstract_receiver)


def assert_reports_all_states(receiver: Receiver) -> None:
    with ProxyProcess(NOWHERE, environment=receiver.variables) as proxy:
        wait_until(lambda: receiver.states() == ["READY=1"], "it reports that it is ready")
        before_us = time.monotonic_ns() // 1000
        proxy.reload("[enforcement]\nenabled = false\n")
        wait_until(lambda: receiver.states()[1:] == ["RELOADING=1", "READY=1"], "it reports the reload")
        proxy.wait_for_log("configuration changed")
        [reload] = [message for message in receiver.messages() if message.startswith("RELOADING=1")]
        name, _, time_us = reload.split("\n")[1].partition("=")
        assert name == "MONOTONIC_USEC"
        assert before_us <= int(time_us) <= time.monotonic_ns() // 1000
        proxy.reload("what is this")
        wait_until(lambda: receiver.states()[3:] == ["RELOADING=1", "READY=1"], "it reports the failed reload, too")
        alive = receiver.messages().count("WATCHDOG=1")
        wait_until(lambda: receiver.messages().count("WATCHDOG=1") >= alive + 2, "it reports that its loop runs")
        proxy.signal(signal.SIGTERM)
        assert proxy.wait(20) == 0
        assert receiver.states()[5:] == ["STOPPING=1"]
        assert receiver.senders == {proxy.pid}, "systemd accepts messages of the service's main process only"


def test_a_loop_that_hangs_does_not_report_that_it_runs(receiver: Receiver, tmp_path: Path) -> None:
    environment = receiver.variables | blocking_plugin.install(tmp_path)
    with (
        FakeBroker({}) as broker,
        ProxyProcess(broker.address, config=blocking_plugin.CONFIG, environment=environment) as proxy,
        RawClient(proxy.port, client_id=blocking_plugin.CLIENT_ID) as client,
    ):
        wait_until(lambda: receiver.messages().count("WATCHDOG=1") >= 4, "it reports that its loop runs")
        client.request(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        blocking_plugin.wait_until_it_blocks(tmp_path)
        steady_s = 5 * WATCHDOG_S
        wait_until_steady(lambda: len(receiver.messages()), "it hangs", steady_s=steady_s, timeout_s=20)
        proxy.signal(signal.SIGABRT)  # as systemd does then
        assert proxy.wait(20) == -signal.SIGABRT
        assert f"in {blocking_plugin.FUNCTION}" in proxy.log, "the log shows where it hangs"


@pytest.mark.exhaustive
def test_the_watchdog_of_another_process_is_none_of_its_business(receiver: Receiver) -> None:
    environment = receiver.variables | {"WATCHDOG_PID": "1"}
    with ProxyProcess(NOWHERE, environment=environment) as proxy:
        wait_until(lambda: receiver.messages() == ["READY=1"], "it reports that it is ready")
        with pytest.raises(TestbedTimeoutError):
            proxy.wait(2 * WATCHDOG_S)
        assert receiver.messages() == ["READY=1"]


@pytest.mark.exhaustive
def test_a_service_manager_that_is_not_there_is_warned_of_once(tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "missing"), "WATCHDOG_USEC": "100000"}
    with ProxyProcess(NOWHERE, environment=environment) as proxy:
        proxy.wait_for_log("the service manager cannot be notified")
        assert proxy.stop() == 0
        assert proxy.log.count("the service manager cannot be notified") == 1
