"""Java's ``describeClientQuotas`` and ``alterClientQuotas`` return at the proxy what they return at a broker."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final

import pytest

from testbed.kafka.jvm import start_jvm
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import unique
from tests.clients.java_clients import CLIENTS, COMMON, JavaClients, done

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.shared_cluster import FirstBroker

QUOTA: Final = f"{COMMON}.quota"
HIGH: Final = 10.0**9
"""A limit that no other test of the shared broker reaches."""

Names = dict[str, str | None]
Alteration = tuple[Names, dict[str, float | None]]


class JavaQuotas:
    """The calls for quotas of one Admin client, with plain values."""

    def __init__(self, java: JavaClients, admin: Any) -> None:
        self._java = java
        self._admin = admin

    def alter(self, alterations: Sequence[Alteration], *, validate_only: bool = False) -> list[str]:
        """Alter, and return what each entity's future comes to, in no particular order."""
        alteration, operation = (self._java.cls(f"{QUOTA}.ClientQuotaAlteration{each}") for each in ("", "$Op"))
        double = start_jvm().java.lang.Double
        entries = [
            alteration(
                self._entity(names),
                [operation(key, None if value is None else double(value)) for key, value in values.items()],
            )
            for names, values in alterations
        ]
        options = self._java.cls(f"{CLIENTS}.admin.AlterClientQuotasOptions")().validateOnly(validate_only)
        results = self._admin.alterClientQuotas(entries, options).values()
        return sorted(f"{each.getKey()}: {outcome(each.getValue())}" for each in results.entrySet())

    def describe(self, components: Sequence[Any], *, strict: bool = False) -> str | dict[str, str]:
        """Describe, and return the values by entity, or the error."""
        kind = self._java.cls(f"{QUOTA}.ClientQuotaFilter")
        wanted = kind.containsOnly([*components]) if strict else kind.contains([*components])
        future = self._admin.describeClientQuotas(wanted).entities()
        if (error := outcome(future)) != "done":
            return error
        found = start_jvm().java.util.TreeMap
        return {str(each.getKey()): str(found(each.getValue())) for each in done(future).entrySet()}

    def component(self, entity_type: str, match: str | None) -> Any:
        """A component: an exact name, ``<default>``, or ``<any>``."""
        kind = self._java.cls(f"{QUOTA}.ClientQuotaFilterComponent")
        if match == "<default>":
            return kind.ofDefaultEntity(entity_type)
        return kind.ofEntityType(entity_type) if match == "<any>" else kind.ofEntity(entity_type, match)

    def _entity(self, names: Mapping[str, str | None]) -> Any:
        entries = start_jvm().java.util.HashMap()
        for entity_type, name in names.items():
            entries.put(entity_type, name)
        return self._java.cls(f"{QUOTA}.ClientQuotaEntity")(entries)


def outcome(future: Any) -> str:
    """What a future comes to: "done", or the error's class and message."""
    try:
        done(future)
    except start_jvm().java.util.concurrent.ExecutionException as error:
        cause = error.getCause()
        return f"{cause.getClass().getName()}: {cause.getMessage()}"
    return "done"


@contextlib.contextmanager
def both(proxy: ProxyProcess, kafka: FirstBroker, version: str) -> Iterator[tuple[JavaQuotas, JavaQuotas]]:
    """The same client at the broker and at the proxy."""
    with contextlib.ExitStack() as stack:
        clients = [JavaClients(version, each) for each in (kafka.bootstrap_servers, f"127.0.0.1:{proxy.port}")]
        at_broker, at_proxy = (JavaQuotas(each, stack.enter_context(each.admin())) for each in clients)
        yield at_broker, at_proxy


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    file = tmp_path_factory.mktemp("quotas") / "quotas.sqlite"
    with ProxyProcess(kafka.bootstrap_servers, config=f'[client_quotas]\nfile = "{file}"\n') as process:
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
    with both(proxy, kafka, version) as (at_broker, at_proxy):
        for request in alterations(name):
            for validate_only in (True, False):
                expected = at_broker.alter(request, validate_only=validate_only)
                assert at_proxy.alter(request, validate_only=validate_only) == expected, request
        for wanted in filters(name):
            for strict in (False, True):
                expected_here, found = (
                    each.describe([each.component(kind, match) for kind, match in wanted.items()], strict=strict)
                    for each in (at_broker, at_proxy)
                )
                assert own(found, name) == own(expected_here, name), (wanted, strict)
        assert own(at_proxy.describe([]), name)


def own(described: str | dict[str, str], name: str) -> str | dict[str, str]:
    """What was described, without the entities of other tests."""
    if isinstance(described, str):
        return described
    return {entity: values for entity, values in described.items() if name in entity}
