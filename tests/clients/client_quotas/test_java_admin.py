"""Java's ``describeClientQuotas`` and ``alterClientQuotas`` return at the proxy what they return at a broker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import pytest

from testbed.proxy_process import ProxyProcess
from tests.clients.client_quotas.java_quotas import java_quotas
from tests.clients.fronts import HIGH_QUOTAS_OF_ANONYMOUS, unique
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clients.client_quotas.java_quotas import Alteration, JavaQuotas, Names
    from tests.shared_cluster import FirstBroker

HIGH: Final = 10.0**9
"""A limit that no other test of the shared broker reaches."""


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    file = tmp_path_factory.mktemp("quotas") / "quotas.sqlite"
    with ProxyProcess(
        kafka.bootstrap_servers, config=f'[client_quotas]\nfile = "{file}"\n{HIGH_QUOTAS_OF_ANONYMOUS}'
    ) as process:
        yield process


def alterations(name: str) -> list[list[Alteration]]:
    """Requests, most of which a broker refuses in some part."""
    user, client, pair = {"user": name}, {"client-id": name}, {"user": name, "client-id": f"{name}-app"}
    default_pair: Names = {"user": f"{name}-2", "client-id": None}
    odd = [f"{name} <default>", f"{name}%2A", f"{name}\u00e9/\u4e2d", f"<{name}>", f"{name}" + "x" * 300]
    return [
        [(user, {"producer_byte_rate": HIGH, "request_percentage": 150.5}), (client, {"consumer_byte_rate": HIGH})],
        [
            (pair, {"controller_mutation_rate": HIGH + 0.25}),
            (default_pair, {"request_percentage": HIGH}),
        ],
        [({"user": each}, {"producer_byte_rate": HIGH + number}) for number, each in enumerate(odd)],
        [(user, {"request_percentage": None, "consumer_byte_rate": HIGH})],
        [(user, {"producer_byte_rate": 0.0}), (client, {"producer_byte_rate": HIGH})],
        [(user, {"producer_byte_rate": -1.0}), (pair, {"producer_byte_rate": 1.5})],
        [(user, {"producer_byte_rate": 3.7e19}), (client, {"no_such_key": 1.0})],
        [({"user": ""}, {"producer_byte_rate": HIGH}), ({"ip": "192.0.2.9"}, {"producer_byte_rate": HIGH})],
        [({"team": name}, {"producer_byte_rate": HIGH}), ({}, {"producer_byte_rate": HIGH})],
        [({"ip": "192.0.2.9", "user": name}, {"connection_creation_rate": 1000.0})],
        [({"ip": "192.0.2.9"}, {"connection_creation_rate": 1000.5})],
        [(user, {"no_such_key": None}), (client, {})],
        [(client, {"producer_byte_rate": None, "consumer_byte_rate": None})],
    ]


def filters(name: str) -> list[dict[str, str]]:
    """Every combination of matches for users and client ids, and some that a broker refuses."""
    matches = (None, name, f"{name}-2", "<default>", "<any>")
    found = [
        {each: match for each, match in (("user", user), ("client-id", client)) if match is not None}
        for user, client in itertools.product(matches, (None, name, f"{name}-app", "<default>", "<any>"))
    ]
    return [*found, {"ip": "<any>"}, {"ip": "<any>", "user": "<any>"}, {"team": name}, {"": name}, {"user": ""}]


@pytest.mark.parametrize("version", ["4.4.0", pytest.param("3.9.1", marks=pytest.mark.exhaustive)])
def test_a_matrix_of_changes_and_filters(proxy: ProxyProcess, kafka: FirstBroker, version: str) -> None:
    name = unique("quotas")
    with (
        java_quotas(kafka.bootstrap_servers, version) as at_broker,
        java_quotas(f"127.0.0.1:{proxy.port}", version) as at_proxy,
    ):
        for request in alterations(name):
            for validate_only in (True, False):
                expected = at_broker.alter(request, validate_only=validate_only)
                assert at_proxy.alter(request, validate_only=validate_only) == expected, request
        wait_until(lambda: not _of_client(at_broker, name), "the broker describes the last change")
        for wanted in filters(name):
            for strict in (False, True):
                expected_here, found = (
                    each.describe([each.component(kind, match) for kind, match in wanted.items()], strict=strict)
                    for each in (at_broker, at_proxy)
                )
                assert own(found, name) == own(expected_here, name), (wanted, strict)
        assert own(at_proxy.describe([]), name)


def _of_client(admin: JavaQuotas, name: str) -> str | dict[str, str]:
    """What the last change takes away; a broker of KRaft may describe the state before it for some moments."""
    return admin.describe([admin.component("client-id", name)], strict=True)


def own(described: str | dict[str, str], name: str) -> str | dict[str, str]:
    """What was described, without the entities of other tests."""
    if isinstance(described, str):
        return described
    return {entity: values for entity, values in described.items() if name in entity}
