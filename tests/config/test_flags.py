"""Flags alone, flags over a file, and problems that name the flag."""

import pytest

from headrace.config import FLAGS, ConfigValueError, LogFormat, load, loads
from headrace.config.keys import keys
from headrace.config.schema import Config
from headrace.config.values import AUTO
from headrace.quota_callbacks.requests import Address
from tests.config.documents import MINIMAL, leaf

REQUIRED = {
    "upstream.bootstrap_servers": "kafka-1:9092",
    "listen.address": "127.0.0.1:19192",
    "listen.advertised_host": "kafka.example.com",
}


def refused(flags: dict[str, object], text: str | None = None) -> list[str]:
    with pytest.raises(ConfigValueError) as caught:
        load(None, flags) if text is None else loads(text, "headrace.toml", flags)
    return [str(problem) for problem in caught.value.problems]


def test_the_table_of_flags() -> None:
    assert {flag.name: flag.key for flag in FLAGS} == {
        "--bootstrap-servers": "upstream.bootstrap_servers",
        "--listen": "listen.address",
        "--advertised-host": "listen.advertised_host",
        "--advertised-port": "listen.advertised_port",
        "--node-ids": "listen.node_ids",
        "--workers": "workers",
        "--data-plane": "data_plane",
        "--data-plane-threads": "data_plane_threads",
        "--max-frame-bytes": "limits.max_frame_bytes",
        "--drain-timeout": "shutdown.drain_timeout",
        "--admin": "admin.listen",
        "--admin-token-file": "admin.token_file",
        "--log-level": "log.level",
        "--log-format": "log.format",
    }
    assert all(flag.help.endswith(".") for flag in FLAGS)
    assert {flag.key for flag in FLAGS if flag.required} == {leaf.key for leaf in keys(Config) if leaf.required}


def test_three_flags_are_enough() -> None:
    config = load(None, REQUIRED)
    assert config.upstream.bootstrap_servers == (Address(host="kafka-1", port=9092),)
    assert config.listen.advertised == Address(host="kafka.example.com", port=19192)
    assert config == loads(MINIMAL.replace("127.0.0.1:9092", "kafka-1:9092"))


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("upstream.bootstrap_servers", "a:1, [::1]:2", (Address(host="a", port=1), Address(host="::1", port=2))),
        (
            "upstream.bootstrap_servers",
            ("a:1", "b:2,c:3"),  # the flag given twice
            (Address(host="a", port=1), Address(host="b", port=2), Address(host="c", port=3)),
        ),
        ("listen.advertised_port", "29192", 29192),
        ("listen.advertised_port", 29192, 29192),
        ("listen.node_ids", "0-2", "0-2"),
        ("workers", "2", 2),
        ("data_plane_threads", "2", 2),
        ("data_plane_threads", "auto", AUTO),
        ("limits.max_frame_bytes", "1MiB", 2**20),
        ("limits.max_frame_bytes", "2048", 2048),
        ("shutdown.drain_timeout", "5", 5.0),
        ("shutdown.drain_timeout", "0.5", 0.5),
        ("shutdown.drain_timeout", "1m", 60.0),
        ("shutdown.drain_timeout", 5, 5.0),
        ("admin.listen", "[::1]:9190", Address(host="::1", port=9190)),
        ("log.level", "debug", "debug"),
        ("log.format", "json", LogFormat.JSON),
        ("quota.window.num", "5", 5),  # a key without a flag of its own can be set by its name
    ],
)
def test_values_of_flags(key: str, given: object, value: object) -> None:
    config = load(None, {**REQUIRED, key: given})
    found = leaf(key).value_of(config)
    assert value in (found, str(found))


def test_flags_win_over_the_file_and_none_is_not_given() -> None:
    text = MINIMAL + "[shutdown]\ndrain_timeout = '5s'\n[log]\nlevel = 'error'\n"
    config = loads(text, flags={"shutdown.drain_timeout": "7s", "log.level": None, "listen.address": "[::1]:19192"})
    assert config.shutdown.drain_timeout_s == 7.0
    assert config.log.level == "error"
    assert config.listen.address == Address(host="::1", port=19192)


def test_a_flag_can_give_what_the_file_lacks() -> None:
    (_, *others) = MINIMAL.splitlines(keepends=True)
    config = loads("".join(others), flags={"upstream.bootstrap_servers": "kafka-1:9092"})
    assert config.upstream.bootstrap_servers == (Address(host="kafka-1", port=9092),)


def test_without_anything_the_required_flags_are_named() -> None:
    assert [line.rpartition("; ")[2] for line in refused({})] == [
        "set it in a file or with --bootstrap-servers",
        "set it in a file or with --listen",
    ]


CONNECT = 'expected host:port, such as "kafka-1:9192", "127.0.0.1:9192" or "[::1]:9192", port 1-65535'
NO_PORT = "the port is missing or not a number"
PORT = "expected a whole number from 1 to 65535"
THREADS = 'expected a whole number from 1 to 64, or "auto" for one for each core'
HOST = 'expected a host name or IP address that clients can reach, such as "kafka.example.com"'
WILDCARD = "clients cannot connect to a wildcard address"
TOO_HIGH = "broker 70000 would be at port 89193 (this port + 1 + id), above 65535"
NARROW = 'lower the port or narrow listen.node_ids ("0-70000")'
DURATION = 'expected a duration such as "10s" (ms, s, m, h, d) or a number of seconds, from 0s to 1d'


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("log.level", "loud", '--log-level "loud": expected "debug", "info", "warning" or "error"'),
        ("upstream.bootstrap_servers", "a:1,b", f'--bootstrap-servers "b": {CONNECT}; {NO_PORT}'),
        ("upstream.bootstrap_servers", "", f'--bootstrap-servers "": {CONNECT}; {NO_PORT}'),
        ("listen.advertised_port", "x", f'--advertised-port "x": {PORT}'),
        ("listen.advertised_port", "0", f"--advertised-port 0: {PORT}"),
        ("listen.advertised_host", "*", f'--advertised-host "*": {HOST}; {WILDCARD}'),
        ("listen.node_ids", "0-70000", f'--listen "127.0.0.1:19192": {TOO_HIGH}; {NARROW}'),
        ("workers", "0", f"--workers 0: {THREADS}"),
        ("data_plane_threads", "all", f'--data-plane-threads "all": {THREADS}'),
        ("shutdown.drain_timeout", "-1", f"--drain-timeout -1: {DURATION}"),
        ("quota.window.num", 0, "quota.window.num 0: expected a whole number from 1 to 2147483647"),
        ("plugins.load", 5, "plugins.load 5: expected a list of import paths"),
        ("quota.windows", 0, "quota.windows: unknown key"),
    ],
)
def test_problems_name_the_flag(key: str, given: object, message: str) -> None:
    assert refused({**REQUIRED, key: given}) == [message]


def test_problems_of_flags_come_before_those_of_the_file() -> None:
    text = MINIMAL + "[log]\nlevel = 'loud'\n"
    assert [line.partition(" ")[0] for line in refused({"log.format": "yaml"}, text)] == [
        "--log-format",
        "headrace.toml:5:",
    ]


def test_an_invalid_value_in_the_file_is_reported_even_if_a_flag_overrides_it() -> None:
    (message,) = refused({"log.level": "info"}, MINIMAL + "[log]\nlevel = 'loud'\n")
    assert message.startswith('headrace.toml:5: log.level = "loud": ')


def test_a_number_of_threads_under_both_names_is_a_conflict_wherever_they_are() -> None:
    rule = "deprecated, and data_plane_threads = 3 is set; remove workers"
    assert refused({"data_plane_threads": "3"}, f"workers = 2\n{MINIMAL}") == [f"headrace.toml:1: workers = 2: {rule}"]
    assert refused({"workers": "2"}, f"data_plane_threads = 3\n{MINIMAL}") == [f"--workers 2: {rule}"]
    assert loads(f"workers = 2\n{MINIMAL}", flags={"data_plane_threads": "2"}).data_plane_threads == 2
