"""``export``, ``apply``, ``diff`` and ``import`` at the proxy and at a real broker."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import click
import pytest

from headrace.config.loading import loads
from headrace.proxy.quota_tools.files import parse_quotas
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import eventually, unique
from tests.proxy.quota_tools.commands import Commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.shared_cluster import FirstBroker

HIGH: Final = 10**9
REQUIRED: Final = '[upstream]\nbootstrap_servers = ["127.0.0.1:9092"]\n[listen]\naddress = "127.0.0.1:9192"\n'


def tables(*entities: str, rate: int = HIGH, more: str = "") -> str:
    return "\n".join(f"[[quotas]]\nentity = {{ {each} }}\nproducer_byte_rate = {rate}\n{more}" for each in entities)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quotas.toml"


@pytest.fixture
def users(at_proxy: Commands, at_broker: Commands) -> Iterator[list[str]]:
    """Users whose quotas are removed again."""
    names = [unique("planned") for _ in range(3)]
    yield names
    for at in (at_proxy, at_broker):
        for name in names:
            at.done("alter", "--names", f"user={name}", "--delete", "producer_byte_rate,consumer_byte_rate")


@pytest.mark.parametrize("where", ["at_proxy", "at_broker"])
def test_a_file_is_applied(where: str, request: pytest.FixtureRequest, users: list[str], file: Path) -> None:
    at: Commands = request.getfixturevalue(where)
    one, two, _ = users
    file.write_text(tables(f'user = "{one}"', f'user = "{two}"', more='enforcement = "paced"\n'))
    ran = at("diff", file)
    assert ran.status == 1
    assert f"+ {{user={one}}} producer_byte_rate={HIGH}\n" in ran.out
    assert "enforcement: policies are set in the proxy's configuration file only" in ran.err
    ran = at("apply", file, stdin="n\n")
    assert (ran.status, ran.err.splitlines()[-1]) == (1, "headrace: nothing was changed")
    assert at.done("describe", "--names", f"user={one}") == ""
    ran = at("apply", file, stdin="y\n")
    assert ran.status == 0, ran.err
    assert ran.out.splitlines() == [
        f"+ {{user={one}}} producer_byte_rate={HIGH}",
        f"+ {{user={two}}} producer_byte_rate={HIGH}",
        "2 to add, 0 unchanged",
    ]
    at.described("--names", f"user={two}", as_=f"{{user={two}}}\nproducer_byte_rate={HIGH}\n")
    file.write_text(tables(f'user = "{one}"', rate=HIGH + 1, more=f"consumer_byte_rate = {HIGH}\n"))
    result = at("apply", file, "--yes", "--json").json
    key = {"entity": {"user": one}}
    assert result["applied"] is True
    assert result["steps"] == [
        {"action": "add", **key, "key": "consumer_byte_rate", "old": None, "new": HIGH},
        {"action": "change", **key, "key": "producer_byte_rate", "old": HIGH, "new": HIGH + 1},
    ]
    at.described(
        "--names", f"user={one}", as_=f"{{user={one}}}\nconsumer_byte_rate={HIGH}\nproducer_byte_rate={HIGH + 1}\n"
    )
    ran = at("apply", file)
    assert (ran.status, ran.out) == (0, "nothing to do, 2 unchanged\n")
    assert "are kept; --prune removes them" in ran.err


def test_nobody_answers(at_proxy: Commands, users: list[str], file: Path) -> None:
    file.write_text(tables(f'user = "{users[0]}"'))
    ran = at_proxy("apply", file)
    assert ran.status == 1
    assert ran.err.endswith(
        "headrace: not confirmed, so nothing was changed; --yes is for programs that cannot answer\n"
    )


def test_the_quotas_changed_meanwhile(
    at_proxy: Commands, users: list[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = users
    file.write_text(tables(f'user = "{one}"', f'user = "{two}"'))

    def confirm(_question: str, *, err: bool) -> bool:
        assert err
        at_proxy.done("alter", "--names", f"user={one}", "--add", f"producer_byte_rate={HIGH + 5}")
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    ran = at_proxy("apply", file)
    assert ran.status == 1
    assert ran.err.splitlines()[-2:] == [
        f"headrace: {{user={one}}}: now producer_byte_rate={HIGH + 5}",
        "headrace: 1 quotas of the plan have changed meanwhile, so nothing was changed; run it again",
    ]
    assert at_proxy.done("describe", "--names", f"user={two}") == ""


def test_a_plan_that_is_refused_changes_nothing(at_proxy: Commands, users: list[str], file: Path) -> None:
    one, two, _ = users
    file.write_text(tables(f'user = "{one}"') + tables(f'user = "{two}"', more="speed = 1\n"))
    ran = at_proxy("apply", file, "--yes")
    assert ran.status == 1
    assert ran.err.startswith(f"headrace: {{user={two}}} speed: Invalid configuration key speed")
    assert ran.err.endswith("headrace: nothing was changed\n")
    ran = at_proxy("apply", file, "--yes", "--json")
    assert (ran.status, ran.json["applied"]) == (1, False)
    assert [each["key"] for each in ran.json["refused"]] == ["speed"]
    assert at_proxy.done("describe", "--names", f"user={one}") == ""


def test_export_is_a_file_that_is_applied_again(at_proxy: Commands, users: list[str], file: Path) -> None:
    names = ["<default>", "a, b", 'quote"', "back\\slash", "line\nend\x1b"]
    entities = [
        *(f'user = "{users[0]}", client-id = {{ name = {json.dumps(name)} }}' for name in names),
        f'user = "{users[0]}", client-id = "<default>"',
    ]
    file.write_text(tables(*entities, more="request_percentage = 1e9\n"))
    before = at_proxy.done("export")
    at_proxy.done("apply", file, "--yes")
    exported = at_proxy.done("export")
    assert len(parse_quotas(exported, "x").quotas) == len(parse_quotas(before, "x").quotas) + len(entities)
    assert exported.replace("\n", "").isprintable()
    as_json = at_proxy.done("export", "--json")
    assert parse_quotas(as_json, "x") == parse_quotas(exported, "x")
    required = REQUIRED.replace("[listen]", "[listen]\nadvertised_host = 'x'")
    assert loads(required + exported).entity_quotas().keys() == parse_quotas(exported, "x").quotas.keys()
    file.write_text(before)
    assert at_proxy("diff", file).status == 1
    removed = at_proxy.done("apply", file, "--yes", "--prune").splitlines()
    assert len([line for line in removed if line.startswith("- ")]) == 2 * len(entities)
    assert at_proxy.done("export") == before
    assert at_proxy.done("diff", file) == ""
    assert (
        at_proxy.done("apply", "-", "--yes", stdin=as_json).splitlines()[-1].startswith(f"{2 * len(entities)} to add")
    )
    assert at_proxy.done("export") == exported
    at_proxy.done("apply", file, "--yes", "--prune")


def test_quotas_of_the_configuration_file_are_not_pruned(at_proxy: Commands, users: list[str], file: Path) -> None:
    """All other steps are made; and a step that is refused for another reason still prevents all."""
    one, two, _ = sorted(users)
    at_proxy.done("alter", "--names", f"user={one}", "--add", f"producer_byte_rate={HIGH}")
    file.write_text(tables(f'user = "{two}"', more="speed = 1\n"))
    ran = at_proxy("apply", file, "--yes", "--prune")
    assert ran.status == 1
    assert ran.err.splitlines()[0].startswith(f"headrace: {{user={two}}} speed: Invalid configuration key speed")
    assert ran.err.splitlines()[1:] == ["headrace: nothing was changed"]
    file.write_text(tables(f'user = "{two}"'))
    reason = "producer_byte_rate of user=of-the-file is set in the proxy's configuration file and cannot be removed"
    ran = at_proxy("apply", file, "--yes", "--prune")
    assert ran.status == 0
    assert ran.err == f"headrace: warning: {{user=of-the-file}} producer_byte_rate: {reason}; it is left out\n"
    *steps, summary = ran.out.splitlines()  # other tests may have left quotas, which are removed, too
    assert f"- {{user={one}}} producer_byte_rate={HIGH}" in steps
    assert [step for step in steps if step.startswith("+")] == [f"+ {{user={two}}} producer_byte_rate={HIGH}"]
    assert re.fullmatch(r"1 to add, \d+ to remove, 0 unchanged", summary)
    ran = at_proxy("apply", file, "--yes", "--prune", "--json")
    assert (ran.status, ran.json["applied"], ran.json["steps"]) == (0, True, [])
    assert ran.json["refused"] == [
        {"entity": {"user": "of-the-file"}, "key": "producer_byte_rate", "reason": reason},
    ]


def test_a_user_who_may_not_change_quotas(kafka: FirstBroker, file: Path, tmp_path: Path) -> None:
    """Nothing is left out then: the whole command fails."""
    file.write_text("")
    store = f'[client_quotas]\nfile = "{tmp_path / "quotas.sqlite"}"\nalter = "administrators"\n'
    with ProxyProcess(kafka.bootstrap_servers, config=store + tables('user = "of-the-file"')) as proxy:
        at = Commands(proxy.bootstrap_servers)
        for command in (("apply", file), ("import", "--from", kafka.bootstrap_servers)):
            ran = at(*command, "--yes", "--prune")
            assert ran.status == 1, command
            assert "{user=of-the-file} producer_byte_rate: Cluster authorization failed" in ran.err
            assert ran.err.endswith("headrace: nothing was changed\n")


def test_a_clusters_quotas_are_imported(at_proxy: Commands, at_broker: Commands, users: list[str]) -> None:
    one, two, _ = users
    source = ("--from", at_broker.server)
    at_broker.done("alter", "--names", f"user={one}", "--add", f"producer_byte_rate={HIGH}")
    at_broker.done("alter", "--names", f"user={two}", "--add", f"consumer_byte_rate={HIGH}")
    at_broker.done("alter", "--names", "ip=localhost", "--add", f"connection_creation_rate={HIGH}")
    eventually(
        lambda: (found := at_broker.done("describe")).count(one) == 1 and two in found and "localhost" in found,
        "the broker has the quotas",
    )
    ran = at_proxy("import", *source, stdin="y\n")
    assert ran.status == 0, ran.err
    assert f"+ {{user={one}}} producer_byte_rate={HIGH}" in ran.out.splitlines()
    assert "localhost" not in ran.out
    warning = "{ip=localhost} connection_creation_rate: localhost is not a valid IP or resolvable host.; it is left out"
    assert f"headrace: warning: {warning}" in ran.err.splitlines()
    assert f"Change the quotas at {at_proxy.server}?" in ran.err
    for user in (one, two):
        entity = ("--names", f"user={user}")
        assert at_proxy.done("describe", *entity) == at_broker.done("describe", *entity) != ""
    ran = at_proxy("import", *source, "--json")
    assert (ran.json["steps"], ran.json["applied"]) == ([], True)
    assert {"ip": "localhost"} in [each["entity"] for each in ran.json["refused"]]
    at_broker.done("alter", "--names", "ip=localhost", "--delete", "connection_creation_rate")
