"""``headrace quotas`` and ``headrace client-quotas`` at a real broker and at the proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import unique
from tests.proxy.kafka_client.test_brokers import sasl
from tests.proxy.quota_tools.commands import Commands, run
from tests.proxy.quota_tools.entities import list_element
from tests.shared_cluster import LISTENER, SECRETS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.shared_cluster import FirstBroker

HIGH: Final = 10**9


@pytest.fixture(params=["at_proxy", "at_broker", pytest.param("at_broker39", marks=pytest.mark.exhaustive)])
def at(request: pytest.FixtureRequest) -> Commands:
    """The commands, once for the proxy and once for each broker."""
    commands: Commands = request.getfixturevalue(request.param)
    return commands


def test_quotas_are_set_described_and_removed(at: Commands) -> None:
    """Every command prints at the proxy what it prints at a broker."""
    user = unique("operator")
    entity = ("--names", f"user={user}")
    assert at.done("alter", *entity, "--add", f"producer_byte_rate={HIGH},request_percentage={HIGH}.5") == ""
    at.described(*entity, as_=f"{{user={user}}}\nproducer_byte_rate={HIGH}\nrequest_percentage={HIGH}.5\n")
    at.done("alter", *entity, "--delete", "producer_byte_rate", "--add", "consumer_byte_rate=1GiB")
    at.described(*entity, as_=f"{{user={user}}}\nconsumer_byte_rate={2**30}\nrequest_percentage={HIGH}.5\n")
    at.done("alter", *entity, "--defaults", "client-id", "--add", f"controller_mutation_rate={HIGH}")
    pair = f"{{user={user}, client-id=<default>}}\ncontroller_mutation_rate={HIGH}\n"
    at.described("--names", f"user={user}", "--any", "client-id", as_=pair)
    assert pair in at.done("describe", *entity)
    assert pair not in at.done("describe", *entity, "--strict")
    assert at("describe", "--names", f"user={user}-x").err == "headrace: no quota is set for such an entity\n"
    at.done("alter", *entity, "--delete", "consumer_byte_rate,request_percentage,producer_byte_rate")
    at.done("alter", *entity, "--defaults", "client-id", "--delete", "controller_mutation_rate")
    at.described(*entity, as_="")


def test_errors_of_the_cluster_are_sentences(at: Commands) -> None:
    user = unique("operator")

    def refused(*arguments: str) -> str:
        ran = at("alter", *arguments)
        assert (ran.status, ran.out) == (1, "")
        return ran.err.removeprefix("headrace: ").removesuffix("\n")

    entity = ("--names", f"user={user}")
    assert refused(*entity, "--add", "producer_byte_rat=1") == (
        f"{{user={user}}}: Invalid configuration key producer_byte_rat (did you mean producer_byte_rate?)"
    )
    assert refused(*entity, "--add", "producer_byte_rate=0") == (
        f"{{user={user}}}: Quota producer_byte_rate must be greater than 0"
    )
    assert refused("--names", "ip=192.0.2.1", "--add", "producer_byte_rate=1") == (
        "{ip=192.0.2.1}: Invalid configuration key producer_byte_rate"
        " (producer_byte_rate is for client-id or user or user with client-id only)"
    )
    assert refused("--names", f"user={user},OU=x", "--add", "producer_byte_rate=1") == (
        f"{{user={user}, OU=x}}: Unhandled client quota entity type: OU (a comma that belongs to a name is written \\,)"
    )
    assert refused("--names", f"usr={user}", "--add", "producer_byte_rate=1") == (
        f"{{usr={user}}}: Unhandled client quota entity type: usr (did you mean user?)"
    )
    ran = at("alter", *entity, "--add", "producer_byte_rate=0,request_percentage=5", "--json")
    assert ran.status == 1
    assert ran.json == {
        "entity": {"user": user},
        "set": {"producer_byte_rate": 0, "request_percentage": 5},
        "removed": [],
        "validate_only": False,
        "refused": [
            {"entity": {"user": user}, "key": None, "reason": "Quota producer_byte_rate must be greater than 0"}
        ],
    }
    for command in ("describe", "resolve"):
        ran = at(command, "--names", "usr=blue")
        assert (ran.status, ran.out) == (1, "")
        assert ran.err.endswith(": Unsupported entity type usr (UNSUPPORTED_VERSION) (did you mean user?)\n")
    assert at.done("describe", *entity) == "", "an entity is altered completely or not at all"


def test_validation_changes_nothing(at: Commands) -> None:
    user = unique("operator")
    entity = ("--names", f"user={user}")
    assert at.done("alter", *entity, "--add", f"producer_byte_rate={HIGH}", "--validate-only") == ""
    assert at("alter", *entity, "--add", "producer_byte_rate=0", "--validate-only").status == 1
    assert at.done("describe", *entity) == ""


def test_quotas_are_resolved_for_clients_that_were_never_seen(at: Commands) -> None:
    user, client = unique("operator"), unique("client")
    at.done("alter", "--names", f"user={user}", "--add", f"producer_byte_rate={HIGH},consumer_byte_rate={HIGH}")
    at.done("alter", "--names", f"user={user},client-id={client}", "--add", f"producer_byte_rate={2 * HIGH}")
    at.done("alter", "--names", f"client-id={client}", "--add", f"request_percentage={HIGH}")
    everything = (
        f"consumer_byte_rate={HIGH} {{user={user}}}\n"
        f"producer_byte_rate={2 * HIGH} {{user={user}, client-id={client}}}\n"
        f"    overrides {HIGH} {{user={user}}}\n"
        f"request_percentage={HIGH} {{client-id={client}}}\n"
    )
    pair = ("--names", f"user={user},client-id={client}")
    at.described(
        "--names", f"client-id={client}", "--strict", as_=f"{{client-id={client}}}\nrequest_percentage={HIGH}\n"
    )
    assert at.done("resolve", *pair) == everything
    ran = run("client-quotas", "--bootstrap-server", at.server, "--resolve", *pair)
    assert ran.out == "".join(line for line in everything.splitlines(keepends=True) if "overrides" not in line)
    (consumed, produced, _) = at("resolve", *pair, "--json").json["resolved"]
    assert consumed == {"key": "consumer_byte_rate", "value": HIGH, "source": {"user": user}, "overrides": []}
    assert produced["overrides"] == [{"value": HIGH, "source": {"user": user}}]
    ran = at("resolve", "--names", f"user={user}")
    assert f"producer_byte_rate={HIGH} {{user={user}}}\n" in ran.out
    assert (
        f"more specific entities whose quotas may apply instead: 2, such as {{user={user}, client-id={client}}}"
        in ran.err
    )
    at.done("alter", "--names", f"user={user}", "--delete", "producer_byte_rate,consumer_byte_rate")
    at.done("alter", *pair, "--delete", "producer_byte_rate")
    at.done("alter", "--names", f"client-id={client}", "--delete", "request_percentage")
    at.described("--names", f"user={user}", as_="")
    at.described("--names", f"client-id={client}", as_="")
    assert at("resolve", *pair).err == "headrace: no quota applies: unlimited\n"


def test_names_are_what_they_are(at: Commands) -> None:
    name = f"{unique('CN=operator')},OU=\x1b[31m\n{{user=x}}"
    entity = ("--names", f"user={list_element(name)},client-id=<default>")
    at.done("alter", *entity, "--add", f"producer_byte_rate={HIGH}")
    shown = name.replace("\x1b", "\\x1b").replace("\n", "\\n")
    at.described(*entity, as_=f'{{user="{shown}", client-id="<default>"}}\nproducer_byte_rate={HIGH}\n')
    (row,) = at("describe", *entity, "--json").json["quotas"]
    assert row == {"entity": {"user": name, "client-id": "<default>"}, "values": {"producer_byte_rate": HIGH}}
    at.done("alter", *entity, "--delete", "producer_byte_rate")
    at.described(*entity, as_="")


def test_addresses(at: Commands) -> None:
    entity = ("--names", "ip=192.0.2.77")
    at.done("alter", *entity, "--add", "connection_creation_rate=1000000")
    at.described(*entity, as_="{ip=192.0.2.77}\nconnection_creation_rate=1000000\n")
    assert at.done("resolve", "--names", "ip=::ffff:192.0.2.77") == (
        "connection_creation_rate=1000000 {ip=192.0.2.77}\n"
    )
    at.done("alter", *entity, "--delete", "connection_creation_rate")
    at.described(*entity, as_="")


def test_the_command_of_the_kip(at: Commands) -> None:
    """The example of KIP-546: a default user with a client id."""
    client = unique("my-client")
    entity = (f"--names=client-id={client}", "--defaults=user")

    def command(*arguments: str) -> str:
        ran = run("client-quotas", "--bootstrap-server", at.server, *arguments)
        assert ran.status == 0, ran.err
        return ran.out

    assert command("--alter", *entity, f"--add=producer_byte_rate={HIGH}") == ""
    at.described(*entity, as_=f"{{user=<default>, client-id={client}}}\nproducer_byte_rate={HIGH}\n")
    assert command("--alter", *entity, f"--add=consumer_byte_rate={HIGH}", "--delete=producer_byte_rate") == ""
    expected = f"{{user=<default>, client-id={client}}}\nconsumer_byte_rate={HIGH}\n"
    at.described(*entity, as_=expected)
    assert command("--describe", *entity) == command("--describe", f"--names=client-id={client}") == expected
    assert command("--resolve", f"--names=user=two,client-id={client}") == (
        f"consumer_byte_rate={HIGH} {{user=<default>, client-id={client}}}\n"
    )
    assert command("--alter", *entity, "--delete=consumer_byte_rate", "--validate-only") == ""
    assert command("--describe", *entity) == expected
    assert command("--alter", *entity, "--delete=consumer_byte_rate") == ""
    at.described(*entity, as_="")
    ran = run("client-quotas", "--bootstrap-server", at.server, "--alter", *entity, "--add", "speed=1")
    assert ran.status == 1
    assert "Invalid configuration key speed" in ran.err


def test_producer_ids_rate_is_for_the_proxy_alone(at_proxy: Commands, at_broker: Commands) -> None:
    """``kafka-configs`` refuses the key by itself."""
    user = unique("operator")
    arguments = ("--names", f"user={user}", "--add", "producer_ids_rate=100")
    assert at_proxy.done("alter", *arguments) == ""
    at_proxy.described("--names", f"user={user}", as_=f"{{user={user}}}\nproducer_ids_rate=100\n")
    ran = at_broker("alter", *arguments)
    assert ran.status == 1
    assert "Invalid configuration key producer_ids_rate (no version of Kafka has this quota key (KIP-936)" in ran.err


def test_who_changed_what(proxy: ProxyProcess, at_proxy: Commands) -> None:
    user = f"{unique('operator')}\x1b"
    entity = ("--names", f"user={user}")
    at_proxy.done("alter", *entity, "--add", f"producer_byte_rate={HIGH}")
    at_proxy.done("alter", *entity, "--delete", "producer_byte_rate")
    lines = run("quotas", "audit", "--admin", proxy.admin, "--newest", 2).out.splitlines()
    shown = '"' + user.replace("\x1b", "\\x1b") + '"'
    assert [line.split(" ", 1)[1] for line in lines] == [
        f"ANONYMOUS from 127.0.0.1: {{user={shown}}} producer_byte_rate {HIGH} -> none",
        f"ANONYMOUS from 127.0.0.1: {{user={shown}}} producer_byte_rate none -> {HIGH}",
    ]
    assert all(line[:2] == "20" and line.partition(" ")[0].endswith("Z") for line in lines)
    found = run("quotas", "audit", "--admin", proxy.admin, "--newest", 2, "--json").json
    newest, before = found["changes"]
    assert newest["sequence"] > before["sequence"]
    assert {key: newest[key] for key in ("principal", "address", "entity", "key", "old", "new")} == {
        "principal": "ANONYMOUS",
        "address": "127.0.0.1",
        "entity": {"user": user},
        "key": "producer_byte_rate",
        "old": HIGH,
        "new": None,
    }


def test_older_changes(proxy: ProxyProcess, at_proxy: Commands) -> None:
    """Others were made meanwhile, of other users."""
    one, two = unique("operator"), unique("operator")
    audit = ("quotas", "audit", "--admin", proxy.admin)
    for number in range(3):
        for user in (one, two):
            at_proxy.done("alter", "--names", f"user={user}", "--add", f"producer_byte_rate={HIGH + number}")
    at_proxy.done("alter", "--names", f"user={one}", "--defaults", "client-id", "--add", f"producer_byte_rate={HIGH}")
    of_one = ("--names", f"user={one}")
    ran = run(*audit, *of_one, "--newest", 2)
    assert [line.rpartition(" ")[2] for line in ran.out.splitlines()] == [str(HIGH), str(HIGH + 2)]
    position = run(*audit, *of_one, "--newest", 2, "--json").json["next_before"]
    assert ran.err == f"headrace: there are older changes: --before {position}\n"
    older = run(*audit, *of_one, "--before", position, "--json").json
    assert [each["new"] for each in older["changes"]] == [HIGH + 1, HIGH]
    assert older["next_before"] is None
    (pair,) = run(*audit, *of_one, "--defaults", "client-id", "--json").json["changes"]
    assert pair["entity"] == {"user": one, "client-id": None}
    unfiltered = run(*audit, "--before", pair["sequence"], "--newest", 1, "--json").json
    assert unfiltered["changes"][0]["entity"] == {"user": two}
    assert run(*audit, "--names", "user=nobody").err == "headrace: no change is recorded\n"
    for user in (one, two):
        at_proxy.done("alter", "--names", f"user={user}", "--delete", "producer_byte_rate")
    at_proxy.done("alter", *of_one, "--defaults", "client-id", "--delete", "producer_byte_rate")


def test_without_a_store_it_says_what_is_missing(kafka: FirstBroker) -> None:
    with ProxyProcess(kafka.bootstrap_servers) as bare:
        at = Commands(bare.bootstrap_servers)
        assert at("describe").err == "headrace: no quota is set\n"
        ran = at("alter", "--names", "user=a", "--add", "producer_byte_rate=1")
        assert ran.status == 1
        assert "client_quotas.file" in ran.err
        ran = run("quotas", "audit", "--admin", bare.admin)
        assert ran.status == 1
        assert "client_quotas.file" in ran.err


def test_users_that_log_in(kafka: FirstBroker, tmp_path: Path) -> None:
    """A user who is no administrator, and one with another password. The password is in no error."""
    file = tmp_path / "client.properties"
    settings = sasl("PLAIN", "alice", SECRETS["alice"])
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with ProxyProcess(kafka.addresses(LISTENER)) as proxy:
        at = Commands(proxy.bootstrap_servers)
        ran = at("describe", "--command-config", file)
        assert ran.status == 1
        assert "Cluster authorization failed (CLUSTER_AUTHORIZATION_FAILED): at a proxy the user must be in" in ran.err
        file.write_text(file.read_text().replace(SECRETS["alice"], "wrong-word"))
        ran = at("describe", "--command-config", file)
        assert ran.status == 1
        assert "user 'alice' by PLAIN" in ran.err
        assert "wrong-word" not in ran.err


def test_quotas_of_the_brokers_are_shown_and_not_exported(
    kafka: FirstBroker, at_broker: Commands, tmp_path: Path
) -> None:
    user = unique("operator")
    entity = ("--names", f"user={user}")
    at_broker.done("alter", *entity, "--add", f"producer_byte_rate={HIGH}")
    at_broker.described(*entity, as_=f"{{user={user}}}\nproducer_byte_rate={HIGH}\n")
    config = f'[client_quotas]\nfile = "{tmp_path / "quotas.sqlite"}"\nbrokers = "show"\n'
    with ProxyProcess(kafka.bootstrap_servers, config=config) as proxy:
        at = Commands(proxy.bootstrap_servers)
        at.described(*entity, as_=f"{{user={user}}}\nbrokers.producer_byte_rate={HIGH}\n")
        at.done("alter", *entity, "--add", f"producer_byte_rate={2 * HIGH}")
        ran = at("describe", *entity)
        assert ran.out == f"{{user={user}}}\nbrokers.producer_byte_rate={HIGH}\nproducer_byte_rate={2 * HIGH}\n"
        remark = (
            "headrace: warning: both the brokers and the proxy throttle by these quotas: producer_byte_rate of user="
        )
        assert ran.err.startswith(f"{remark}{user}")
        assert "brokers." not in at.done("export")
        assert f'"{user}"' in at.done("export")
        ran = run("client-quotas", "--bootstrap-server", at.server, "--describe", *entity)
        assert "both the brokers and the proxy" in ran.err
    at_broker.done("alter", *entity, "--delete", "producer_byte_rate")
