"""The page about workers: what it names is there, and its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.config.loading import loads
from headrace.config.schema import Watchdog
from headrace.config.values import MOST_WORKERS
from headrace.plugins.metrics.names import MEASURES
from headrace.proxy.hooks.decisions import KEPT_DECISIONS
from headrace.proxy.network.connection_counts import GROUPS, ROWS_A_GROUP
from headrace.proxy.workers import answers as worker_answers
from headrace.proxy.workers import supervisor
from headrace.quota_callbacks.hookspecs import AcrossWorkers
from testbed.proxy_process import ProxyProcess

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")
MERGED = PAGE[PAGE.index("How the workers' values become one") :].split("\n\n")[1]


def test_its_configuration_is_taken() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert loads(text).workers == 2


def test_every_series_is_there() -> None:
    config = 'workers = 2\n[upstream.owner_lookup]\nmechanism = "PLAIN"\nuser = "u"\npassword = { env = "HOME" }\n'
    with ProxyProcess("127.0.0.1:1", config=config) as proxy:
        there = set(re.findall(r"^# TYPE (\S+)", proxy.get("/metrics")[1], re.MULTILINE))
    named = set(re.findall(r"`((?:headrace|process|python)_[a-z_]+)`", PAGE))
    quotas = {measure.instrument.replace(".", "_") for measure in MEASURES}
    assert quotas <= named
    assert named - quotas <= there


@pytest.mark.parametrize("across", AcrossWorkers)
def test_the_series_of_quotas_are_merged_as_documented(across: AcrossWorkers) -> None:
    word = {AcrossWorkers.SUM: "the sum", AcrossWorkers.MAX: "the highest", AcrossWorkers.MIN: "the lowest"}[across]
    listed = {
        name
        for line in MERGED.splitlines()
        if (cells := line.strip("|").split(" | "))[-1].strip().startswith(word)
        for name in re.findall(r"`(headrace_quota_[a-z_]+)`", cells[0])
    }
    assert listed == {m.instrument.replace(".", "_") for m in MEASURES if m.across_workers is across}


@pytest.mark.parametrize(
    "line", ["worker ended", "a worker does not answer", "a worker refused", "a worker hangs and is killed"]
)
def test_every_log_line_is_logged(line: str) -> None:
    assert f"`{line}`" in PAGE
    assert f'"{line}"' in (ROOT / "proxy" / "workers" / "supervisor.py").read_text(encoding="utf-8")


def test_the_numbers_are_those_of_the_code() -> None:
    words = " ".join(PAGE.split())
    assert f"at most {MOST_WORKERS} can be" in words
    assert f"within {supervisor.COMMAND_TIMEOUT_S:g} s is named" in words
    assert f"within {supervisor.END_TIMEOUT_S:g} s after" in words
    assert f"less than {supervisor.LIVED_S:g} s is replaced" in words
    assert f"up to {supervisor.LONGEST_PAUSE_S:g} s;" in words
    assert supervisor.QUESTIONS_PER_TIMEOUT == 3
    assert f"(three times in `watchdog.timeout`, {Watchdog().timeout_s:g} s)" in words
    assert supervisor.STACKS_S == 1
    assert "and one second later SIGKILL" in words
    assert f"starting or ending has {supervisor.START_TIMEOUT_S:g} s" in words
    assert f"name the worker, after {worker_answers.LIVE_TIMEOUT_S:g} s" in words
    assert supervisor.FIRST_PAUSE_S == 0.5
    assert "half a second at first" in words
    assert f"within {worker_answers.LIVE_TIMEOUT_S:g} s, with" in words
    assert f"({worker_answers.METRICS_TIMEOUT_S:g} s for metrics)" in words
    assert f"a table of {GROUPS:,} groups. A hash assigns" in words
    assert f"a group, which has room for {ROWS_A_GROUP} of them" in words
    assert f"the last {KEPT_DECISIONS:,}." in words
