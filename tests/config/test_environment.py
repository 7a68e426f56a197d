"""Environment variables: their names, their precedence over the file and below flags, and unknown variables."""

import tomllib

import pytest

from headrace.config import ConfigValueError, loads
from headrace.config.keys import keys
from headrace.config.overrides import variable_of
from headrace.config.schema import Config
from headrace.quota_callbacks.requests import Address
from tests.config.cases import GOOD
from tests.config.documents import COMPANIONS, MINIMAL, leaf, with_key


def refused(variables: dict[str, str], text: str = MINIMAL, **arguments: object) -> list[str]:
    with pytest.raises(ConfigValueError) as caught:
        loads(text, "headrace.toml", environment=variables, **arguments)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


def test_every_key_can_come_from_the_environment() -> None:
    for case in GOOD:
        value = tomllib.loads(f"value = {case.toml}")["value"]
        text = value if isinstance(value, str) else case.toml
        variables = {variable_of(leaf(key).path): toml.strip('"') for key, toml in COMPANIONS.get(case.key, {}).items()}
        config = loads(MINIMAL, environment=variables | {variable_of(leaf(case.key).path): text})
        assert config == loads(with_key(case.key, case.toml)), case


def test_the_rule_of_names() -> None:
    names = {leaf.key: variable_of(leaf.path) for leaf in keys(Config)}
    assert names["listen.address"] == "HEADRACE_LISTEN__ADDRESS"
    assert names["quota.window.size.seconds"] == "HEADRACE_QUOTA__WINDOW__SIZE__SECONDS"
    assert names["workers"] == "HEADRACE_WORKERS"
    assert len(set(names.values())) == len(names)


def test_flags_win_over_variables_and_those_over_the_file_and_that_over_the_default() -> None:
    text = MINIMAL + "[log]\nlevel = 'error'\nformat = 'json'\n[shutdown]\ndrain_timeout = '5s'\n"
    variables = {"HEADRACE_LOG__LEVEL": "debug", "HEADRACE_SHUTDOWN__DRAIN_TIMEOUT": "7"}
    config = loads(text, flags={"log.level": "warning"}, environment=variables)
    assert (config.log.level, config.log.format) == ("warning", "json")
    assert config.shutdown.drain_timeout_s == 7.0
    assert config.limits.idle_timeout_s == 600.0


def test_a_file_is_not_needed() -> None:
    variables = {
        "HEADRACE_UPSTREAM__BOOTSTRAP_SERVERS": "a:1, b:2",
        "HEADRACE_LISTEN__ADDRESS": "127.0.0.1:9",
        "HEADRACE_QUOTAS": '[{ entity = { user = "<default>" }, producer_byte_rate = "1MiB" }]',
        "HEADRACE_ENFORCEMENT__EXEMPT_USERS": '["CN=a,O=b"]',
        "PATH": "/bin",
    }
    config = loads("", environment=variables)
    assert config.upstream.bootstrap_servers == (Address(host="a", port=1), Address(host="b", port=2))
    assert config.quotas[0].producer_byte_rate == 2**20
    assert config.enforcement.exempt_users == ("CN=a,O=b",)


def test_options_of_plugins_are_laid_over_those_of_the_file() -> None:
    text = MINIMAL + "[plugins.options.tracing]\nenabled = true\nsample_ratio = 0.5\n"
    variables = {
        "HEADRACE_PLUGINS__OPTIONS__TRACING__SAMPLE_RATIO": "0.25",
        "HEADRACE_PLUGINS__OPTIONS__USAGE_RECORDS__FOLDER": "/var/lib/usage",
        "HEADRACE_PLUGINS__OPTIONS__USAGE_RECORDS__CLIENT": '{ "sasl.password_file" = "/run/secrets/kafka" }',
    }
    assert loads(text, environment=variables).plugins.options == {
        "tracing": {"enabled": True, "sample_ratio": 0.25},
        "usage_records": {"folder": "/var/lib/usage", "client": {"sasl.password_file": "/run/secrets/kafka"}},
    }


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("HEADRACE_LISTN__ADDRESS", "HEADRACE_LISTEN__ADDRESS"),
        ("HEADRACE_LISTEN_ADDRESS", "HEADRACE_LISTEN__ADDRESS"),
        ("HEADRACE_LISTN", "HEADRACE_LISTEN__ADDRESS"),
        ("HEADRACE_LISTEN", "HEADRACE_LISTEN__ADDRESS"),
        ("HEADRACE_UPSTREM__SERVERS", "HEADRACE_UPSTREAM__BOOTSTRAP_SERVERS"),
        ("HEADRACE_WORKER", "HEADRACE_WORKERS"),
        ("HEADRACE_LISTEN__ADVERTISD_PORT", "HEADRACE_LISTEN__ADVERTISED_PORT"),
        ("HEADRACE_PLUGINS__OPTIONS__TRACING", "HEADRACE_PLUGINS__OPTIONS"),
        ("HEADRACE_PLUGINS__OPTIONS____ENABLED", "HEADRACE_PLUGINS__OPTIONS"),
    ],
)
def test_a_variable_that_is_none_is_an_error_without_its_value(name: str, closest: str) -> None:
    assert refused({name: "hunter2"}) == [f"{name}: unknown variable; did you mean {closest}?"]


def test_a_variable_that_resembles_no_key_gets_the_rule_for_names() -> None:
    rule = "the variable of a key is HEADRACE_ and the key in capitals, with two underscores for each dot"
    assert refused({"HEADRACE_XYZ": "hunter2"}) == [f"HEADRACE_XYZ: unknown variable; {rule}"]


@pytest.mark.parametrize("name", ["HEADRACE_WATCHDOG", "HEADRACE_WATCHDOG__TIMEOUT"])
def test_the_variable_of_a_removed_key_is_refused_with_the_reason(name: str) -> None:
    (problem,) = refused({name: "10s"})
    assert problem.startswith(f"{name}: removed, together with the worker processes ")


@pytest.mark.parametrize(
    "name",
    [
        *("HEADRACE_SERVICE_HOST", "HEADRACE_SERVICE_PORT", "HEADRACE_SERVICE_PORT_BOOTSTRAP", "HEADRACE_PORT"),
        *(
            "HEADRACE_PORT_9192_TCP",
            "HEADRACE_PORT_9192_TCP_ADDR",
            "HEADRACE_ADMIN_SERVICE_HOST",
            "HEADRACE_ADMIN_PORT",
        ),
        *("HEADRACE_PURE", "HEADRACE_PIPELINE_CACHE", "HEADRACE_TESTBED_CACHE"),
        *("HEADRACEX", "headrace_workers", "OTEL_SDK_DISABLED"),
    ],
)
def test_variables_of_kubernetes_and_of_other_programs_are_left_alone(name: str) -> None:
    assert loads(MINIMAL, environment={name: "tcp://10.0.0.1:9192"}) == loads(MINIMAL)


@pytest.mark.parametrize("name", ["HEADRACE_LISTEN_PORT", "HEADRACE_ADMIN_PORT", "HEADRACE_PORT_9192_TCP"])
def test_a_port_that_is_not_of_kubernetes_is_an_error(name: str) -> None:
    (problem,) = refused({name: "9192"})
    assert problem.startswith(f"{name}: unknown variable; ")


def test_keys_of_further_listeners() -> None:
    text = MINIMAL + '[listeners.external]\naddress = "127.0.0.1:9193"\nbacklog = 7\n'
    variables = {
        "HEADRACE_LISTENERS__EXTERNAL__ADDRESS": "127.0.0.1:9194",
        "HEADRACE_LISTENERS__EXTERNAL__UPSTREAM__BOOTSTRAP_SERVERS": "kafka-1:9093,kafka-2:9093",
        "HEADRACE_LISTENERS__OTHER__ADDRESS": "127.0.0.1:29195",
    }
    in_file = text.replace("9193", "9194") + (
        '[listeners.external.upstream]\nbootstrap_servers = ["kafka-1:9093", "kafka-2:9093"]\n'
        '[listeners.other]\naddress = "127.0.0.1:29195"\n'
    )
    assert loads(text, environment=variables).listeners == loads(in_file).listeners
    (problem,) = refused({"HEADRACE_LISTENERS__EXTERNAL__ADRESS": "127.0.0.1:9194"})
    assert problem.startswith("HEADRACE_LISTENERS__EXTERNAL__ADRESS: unknown variable; ")


DASHED = MINIMAL + '[listeners.my-team]\naddress = "127.0.0.1:9193"\n'


def test_an_underscore_stands_for_a_hyphen_of_a_listener_of_the_file() -> None:
    variables = {"HEADRACE_LISTENERS__MY_TEAM__ADDRESS": "127.0.0.1:9194"}
    assert loads(DASHED, environment=variables).listeners == loads(DASHED.replace("9193", "9194")).listeners
    (problem,) = refused({"HEADRACE_LISTENERS__MY_TEAM__BACKLOG": "0"}, DASHED)
    assert problem.startswith("HEADRACE_LISTENERS__MY_TEAM__BACKLOG 0: expected")
    assert list(loads(MINIMAL, environment=variables).listeners) == ["my_team"], "a new listener has no hyphen"


def test_an_underscore_stands_for_a_hyphen_of_a_listener_of_a_variable() -> None:
    variables = {
        "HEADRACE_LISTENERS__MY_TEAM__BACKLOG": "7",
        "HEADRACE_LISTENERS": '{ my-team = { address = "127.0.0.1:9193" } }',
    }
    assert loads(MINIMAL, environment=variables).listeners == loads(DASHED + "backlog = 7\n").listeners


def test_a_variable_of_two_listeners_is_an_error() -> None:
    text = DASHED + '[listeners.my_team]\naddress = "127.0.0.1:9293"\n'
    (problem,) = refused({"HEADRACE_LISTENERS__MY_TEAM__BACKLOG": "7"}, text)
    name = "HEADRACE_LISTENERS__MY_TEAM__BACKLOG"
    assert problem.startswith(f"{name}: could be a key of the listeners my-team or my_team, since an underscore stands")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert loads(MINIMAL, environment={"HEADRACE_LOG__LEVEL": " ", "HEADRACE_NO_SUCH": ""}) == loads(MINIMAL)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("HEADRACE_LOG__LEVEL", "loud", 'HEADRACE_LOG__LEVEL "loud": expected "debug", "info", "warning" or "error"'),
        ("HEADRACE_ENFORCEMENT__ENABLED", "no", 'HEADRACE_ENFORCEMENT__ENABLED "no": expected true or false'),
        ("HEADRACE_LISTEN__BACKLOG", "0", "HEADRACE_LISTEN__BACKLOG 0: expected a whole number from 1 to 65535"),
        ("HEADRACE_LISTEN__BACKLOG", "5\ny = 3", 'HEADRACE_LISTEN__BACKLOG "5\\ny = 3": expected a whole number from'),
        ("HEADRACE_PLUGINS__LOAD", "a-b", 'HEADRACE_PLUGINS__LOAD "a-b": expected an import path'),
        (
            "HEADRACE_PLUGINS__OPTIONS__TRACIN__ENABLED",
            "true",
            "HEADRACE_PLUGINS__OPTIONS__TRACIN__ENABLED: there is no such plugin; did you mean tracing?",
        ),
    ],
)
def test_problems_name_the_variable(name: str, text: str, message: str) -> None:
    (problem,) = refused({name: text}, plugins=("tracing",))
    assert problem.startswith(message)


def test_a_bad_value_in_the_file_is_reported_even_if_a_variable_wins() -> None:
    (message,) = refused({"HEADRACE_LOG__LEVEL": "info"}, MINIMAL + "[log]\nlevel = 'loud'\n")
    assert message.startswith('headrace.toml:5: log.level = "loud": ')


def test_a_variable_does_not_hide_that_its_section_is_no_table() -> None:
    (message,) = refused({"HEADRACE_LOG__LEVEL": "info"}, MINIMAL + "log = 5\n")
    assert message == "headrace.toml:4: log = 5: expected a table: [log] and keys below it"
