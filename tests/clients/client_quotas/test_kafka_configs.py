"""``kafka-configs`` changes quotas at the proxy as it does at a broker: the same commands print the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

from testbed.kafka.tools import Tool, run_tool
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import HIGH_QUOTAS_OF_ANONYMOUS, unique

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.shared_cluster import FirstBroker

HIGH: Final = 10**9
"""A limit that no other test of the shared broker reaches."""


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("quotas")
    config = f'[client_quotas]\nfile = "{folder / "quotas.sqlite"}"\n{HIGH_QUOTAS_OF_ANONYMOUS}'
    with ProxyProcess(kafka.bootstrap_servers, config=config) as process:
        yield process


def printed(server: str, arguments: Sequence[str], version: str) -> tuple[int, str, str]:
    """Run one command; return its status and what it prints, without the time of log lines."""
    result = run_tool(Tool.CONFIGS, ["--bootstrap-server", server, *arguments], version=version, check=False)
    errors = "\n".join(line for line in result.stderr.splitlines() if not line.startswith(("[", "\tat ")))
    return result.returncode, result.stdout, errors.replace(server, "SERVER")


def short_session(name: str) -> list[list[str]]:
    user = ["users", name]
    return [
        alter(user, add=f"producer_byte_rate={HIGH},request_percentage=150.5"),
        alter(user, add=f"controller_mutation_rate={HIGH}.25", delete="producer_byte_rate"),
        describe(user),
        alter(user, add="producer_byte_rate=0"),
    ]


def session(name: str) -> list[list[str]]:
    """Commands for entities of this test's own."""
    user, client, pair = ["users", name], ["clients", name], ["users", name, "clients", f"{name}-app"]
    return [
        alter(user, add=f"producer_byte_rate={HIGH},consumer_byte_rate={HIGH + 0.0}"),
        describe(user),
        alter(user, add=f"request_percentage=150.5,producer_byte_rate={2 * HIGH}", delete="consumer_byte_rate"),
        describe(user),
        alter(pair, add=f"controller_mutation_rate={HIGH}.25"),
        describe(pair),
        alter(client, add=f"producer_byte_rate={HIGH}"),
        describe(client),
        alter(client, delete="producer_byte_rate"),
        describe(client),
        alter(client, delete="producer_byte_rate"),
        alter(user, add="producer_byte_rate=0"),
        alter(user, add="producer_byte_rate=1.5"),
        alter(user, add="producer_byte_rate=fast"),
        alter(user, add="no_such_rate=1"),
        alter(["ips", "192.0.2.7"], add="connection_creation_rate=1000"),
        describe(["ips", "192.0.2.7"]),
        alter(["ips", "192.0.2.7"], add="producer_byte_rate=1"),
        alter(["ips", "192.0.2.7"], delete="connection_creation_rate"),
        describe(["ips", "192.0.2.7"]),
    ]


def session_for_defaults() -> list[list[str]]:
    commands = []
    for entity in (["users", None], ["clients", None], ["users", None, "clients", None], ["ips", None]):
        key = "connection_creation_rate" if entity[0] == "ips" else "producer_byte_rate"
        commands += [
            alter(entity, add=f"{key}={HIGH}"),
            describe(entity),
            alter(entity, delete=key),
            describe(entity),
        ]
    return commands


def _entity(entity: Sequence[str | None]) -> list[str]:
    arguments: list[str] = []
    for entity_type, name in zip(entity[::2], entity[1::2], strict=True):
        arguments += ["--entity-type", str(entity_type)]
        arguments += ["--entity-default"] if name is None else ["--entity-name", name]
    return arguments


def alter(entity: Sequence[str | None], *, add: str = "", delete: str = "") -> list[str]:
    values = [*(["--add-config", add] if add else []), *(["--delete-config", delete] if delete else [])]
    return ["--alter", *_entity(entity), *values]


def describe(entity: Sequence[str | None]) -> list[str]:
    return ["--describe", *_entity(entity)]


def compare(proxy: ProxyProcess, broker: str, commands: Sequence[Sequence[str]], version: str) -> None:
    """Run the commands at the broker and at the proxy, both at the same time, and compare what every command prints."""

    def run(server: str) -> list[tuple[int, str, str]]:
        return [printed(server, command, version) for command in commands]

    with ThreadPoolExecutor(2) as pool:
        of_broker, of_proxy = pool.map(run, (broker, f"127.0.0.1:{proxy.port}"))
    for command, expected, found in zip(commands, of_broker, of_proxy, strict=True):
        assert found == expected, command


@pytest.mark.exhaustive
def test_a_session_prints_what_it_prints_at_a_broker(proxy: ProxyProcess, kafka: FirstBroker) -> None:
    compare(proxy, kafka.bootstrap_servers, short_session(unique("operator")), kafka.version)


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["4.3.1", "3.9.1"])
def test_defaults_of_every_kind(proxy: ProxyProcess, kafka: FirstBroker, version: str) -> None:
    compare(proxy, kafka.bootstrap_servers, session_for_defaults(), version)


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["4.3.1", "3.9.1"])
def test_a_long_session(proxy: ProxyProcess, kafka: FirstBroker, version: str) -> None:
    compare(proxy, kafka.bootstrap_servers, session(unique("operator")), version)
