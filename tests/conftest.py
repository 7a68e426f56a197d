"""Shared brokers, Hypothesis profiles, and which tests run in which tier and in which process.

The brokers are started with the first test that wants them and shared by all. `docs/contributing.md` describes the
tiers.
"""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HEADRACE_TESTBED_PRELOADED", "1")  # before a test starts a proxy
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for a background job of a shell; processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from testbed.kafka.certificates import Authority
from testbed.kafka.cluster import KafkaCluster
from tests.secure_cluster import SecureKafka, secure_cluster
from tests.shared_cluster import FirstBroker, shared_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent
EXHAUSTIVE_FOLDERS = ("testbed",)
EXHAUSTIVE_FIXTURES = {"kafka39", "front39", "quick39"}
"""Tests that use one of them, by name or as a parameter, run in ``make test-all`` only."""
SHARED_CLUSTERS = {"kafka", "kafka3", "secure_kafka"}
"""Modules with tests that use one of them get the marker ``cluster``, and so do the tests of clients."""
PARAMETER = re.compile(rf"\b({'|'.join(SHARED_CLUSTERS)}): ")
"""A shared cluster as a parameter of a test or fixture, which always has a type."""
LONGEST_FIRST = ("clients", "faults")
"""Folders that two processes begin with, so that neither is left with much when the other has ended."""
ONE_PROCESS = ("tests/clients/",)
"""Folders whose tests share fixtures of the session, such as proxies, and stay in one process."""

# `make test` takes the first, with the same examples in each run; `make test-all` the second, with others each time
# (``--hypothesis-profile=long``).
settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=200, deadline=None)
settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules that can have no test with a shared cluster, if only such tests are wanted.

    Importing all modules takes some 25 seconds in a new clone.
    """
    only_clusters = config.getoption("markexpr").endswith(" and cluster")
    unwanted = only_clusters and collection_path.suffix == ".py" and not may_share_a_cluster(collection_path)
    return unwanted or None


@cache
def may_share_a_cluster(path: Path) -> bool:
    """Return whether a module is one of the tests of clients, or has a parameter with the name of a shared cluster,
    itself or in a ``conftest.py`` of its folders below `TESTS`."""
    if not path.is_relative_to(TESTS) or folder_of(path) == "clients":
        return True
    folders = [folder for folder in path.parents if folder != TESTS and folder.is_relative_to(TESTS)]
    sources = [path, *(folder / "conftest.py" for folder in folders)]
    return any(source.exists() and PARAMETER.search(source.read_text(encoding="utf-8")) for source in sources)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is exhaustive and what needs a shared cluster, and put the longest folders first."""
    used = {item: used_by(item) for item in items}
    sharing = {item.path for item in items if used[item] & SHARED_CLUSTERS or folder_of(item.path) == "clients"}
    if unseen := [str(path) for path in sharing if not may_share_a_cluster(path)]:
        raise pytest.UsageError(f"no parameter shows that {', '.join(unseen)} uses one of {sorted(SHARED_CLUSTERS)}")
    for item in items:
        if folder_of(item.path) in EXHAUSTIVE_FOLDERS or used[item] & EXHAUSTIVE_FIXTURES:
            item.add_marker("exhaustive")
        if item.path in sharing:
            item.add_marker("cluster")
        if isinstance(item, pytest.Function) and "autojump_clock" in used[item] - {*item._fixtureinfo.argnames}:
            raise pytest.UsageError(f"{item.nodeid} must ask for autojump_clock itself: otherwise its clock is real")
    ranks = {folder: rank for rank, folder in enumerate(LONGEST_FIRST)}
    # Stable: otherwise as pytest-randomly has it.
    items.sort(key=lambda item: ranks.get(folder_of(item.path), len(ranks)))


def pytest_collection_finish() -> None:
    """Let garbage collections pass over the modules of all tests, which saves a tenth of the processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def used_by(item: pytest.Item) -> set[str]:
    """Return the names of the fixtures that a test uses, by name or as a parameter."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {*getattr(item, "fixturenames", ()), *(value for value in parameters if isinstance(value, str))}


def folder_of(path: Path) -> str:
    return path.relative_to(TESTS).parts[0]


class Scheduling(LoadScopeScheduling):
    """Which tests pytest-xdist keeps in one process: those of a module, and those of `ONE_PROCESS`."""

    def _split_scope(self, nodeid: str) -> str:
        for folder in ONE_PROCESS:
            if nodeid.startswith(folder):
                return folder
        return nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Return the scheduler, regardless of ``--dist``."""
    return Scheduling(config, log)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that are others in each run. A failure prints the option that repeats them."""
    seed = request.config.getoption("randomly_seed", 0)
    print(f"random samples: repeat them with --randomly-seed={seed}")  # noqa: T201 - shown at a failure
    return random.Random(f"{seed} {request.node.name}")  # noqa: S311


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority of the test module."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def kafka3() -> Iterator[KafkaCluster]:
    """Three brokers of Kafka 4.3.1, see `tests.shared_cluster`.

    Shared: use topics, groups and users of your own, and leave it running; tests that kill or move brokers start their
    own cluster.
    """
    with shared_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka(kafka3: KafkaCluster) -> FirstBroker:
    """Broker 0 of `kafka3`, for tests that talk to one broker."""
    return FirstBroker(kafka3)


@pytest.fixture(scope="session")
def kafka39() -> Iterator[KafkaCluster]:
    """One broker of Kafka 3.9.1. Shared, see `kafka`."""
    with KafkaCluster(version="3.9.1") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """One broker of Kafka 4.3.1 with TLS and SASL, see `tests.secure_cluster`. Shared, see `kafka3`."""
    secure = secure_cluster(tmp_path_factory.mktemp("certificates"))
    with secure.cluster:
        yield secure
