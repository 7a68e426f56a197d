"""Proxies in front of Kafka 4.3.1 and 3.9.1, and the check that all clients use them without errors.

Each test that asks for a front is watched: see `peers`. Its proxy must log no error and count no fault of the brokers'
or its own meanwhile.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import FRONTS, HIGH_QUOTAS, SLOW_CALLS, Coordinates, Front, eventually
from tests.clients.peers import PeerWatch
from tests.clients.quotas.quota_client import Behind, quota_front
from tests.clients.quotas.quota_mutations import QUICK, SLOW, creating_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kafka.cluster import KafkaCluster

JSON_LOG = ("--log-format", "json")


def front_config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The proxy makes no connection of its own while a test is watched, so it does not ask for the brokers' quotas."""
    file = tmp_path_factory.mktemp("front") / "quotas.sqlite"
    return f'[client_quotas]\nfile = "{file}"\nbrokers = "ignore"\n{SLOW_CALLS}{HIGH_QUOTAS}'


@pytest.fixture(scope="session")
def front43(kafka3: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Three brokers of Kafka 4.3.1 behind a proxy."""
    config = front_config(tmp_path_factory)
    with ProxyProcess(kafka3.bootstrap_servers, config=config, arguments=JSON_LOG) as proxy:
        yield _ready(Front(cluster=kafka3, proxy=proxy))


@pytest.fixture(scope="session")
def front39(kafka39: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """One broker of Kafka 3.9.1 behind a proxy."""
    config = front_config(tmp_path_factory)
    with ProxyProcess(kafka39.bootstrap_servers, config=config, arguments=JSON_LOG) as proxy:
        yield _ready(Front(cluster=kafka39, proxy=proxy))


@pytest.fixture(params=[*FRONTS.values()], ids=[*FRONTS])
def front(request: pytest.FixtureRequest) -> Front:
    """Each of the two in turn."""
    found: Front = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[PeerWatch | None]:
    """Fail the test if one of its clients connected to a broker, or if its proxy logged a fault of its own."""
    names = {FRONTS.get(name, name) for name in request.fixturenames}
    if "front" in names:
        names.add(request.node.callspec.params["front"])
    fronts = [request.getfixturevalue(name) for name in FRONTS.values() if name in names]
    if not fronts:
        yield None
        return
    logged = [len(front.proxy.log) for front in fronts]
    peers = PeerWatch(fronts)
    peers.start()
    try:
        yield peers
    finally:
        broken = peers.stop()
    faults = [
        line
        for front, before in zip(fronts, logged, strict=True)
        for line in front.proxy.log[before:].splitlines()
        if _is_fault(line)
    ]
    assert not broken, "; ".join(broken)
    assert not faults, "the proxy logged:\n" + "\n".join(faults)


@pytest.fixture(scope="session")
def creating() -> Iterator[KafkaCluster]:
    """One broker that creates topics by itself, for the tests of ``controller_mutation_rate``."""
    with creating_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def behind(creating: KafkaCluster) -> Behind:
    """That broker itself."""
    return Behind(creating)


@pytest.fixture(scope="session")
def quick43(creating: KafkaCluster) -> Iterator[Front]:
    """That broker behind a proxy whose quota is paid off soon."""
    with quota_front(creating, QUICK) as running:
        yield running


@pytest.fixture(scope="session")
def slow(creating: KafkaCluster) -> Iterator[Front]:
    """That broker behind a proxy whose quota, once exceeded, stays exceeded until the end of a test."""
    with quota_front(creating, SLOW) as running:
        yield running


def _ready(front: Front) -> Front:
    """Wait until the proxy knows all brokers, so that all it dials later is for a client, and coordinators have loaded.

    A cluster makes the topic behind a kind of coordinators when a client first asks for one. Until then it
    answers with an error that can be retried.
    """
    brokers = len(front.cluster.brokers)
    eventually(lambda: front.proxy.metric("headrace_brokers") == brokers, f"the proxy knows {brokers} brokers")
    for kind in Coordinates:
        front.wait_for_coordinators(kind)
    return front


def _is_fault(line: str) -> bool:
    """Return whether a line of the log reports that something went wrong."""
    if not line.startswith("{"):
        return True
    event = json.loads(line)
    return event["level"] in ("warning", "error", "critical")
