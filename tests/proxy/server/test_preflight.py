"""What would keep the proxy from starting is found before, with its table; nothing is started, and no secret read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headrace.config import loads
from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.handshake_turns import TurnsByAddress
from headrace.proxy.server.listeners import create_listeners
from headrace.proxy.server.preflight import problems_of
from headrace.proxy.server.server import Server
from tests.clients.tls.proxies import users_file
from tests.config.documents import MINIMAL
from tests.plugins.sasl_oauth.issuer import key_set, rsa_key

if TYPE_CHECKING:
    from pathlib import Path

ALL_UNENFORCED = """
[plugins]
disabled = ["producer_ids"]
[[quotas]]
entity = { user = "a" }
producer_byte_rate = 5
producer_ids_rate = 5
[[quotas]]
entity = { user = "b" }
producer_ids_rate = 5
"""
USER = 'user = "proxy"\npassword = { command = ["/not/read"] }\n'
TERMINATE = '[listen.sasl]\nmode = "terminate"\nmechanisms = ["PLAIN", "OAUTHBEARER"]\n'
OTHER = """
[listeners.other]
address = "127.0.0.1:9392"
[listeners.other.sasl]
mode = "terminate"
mechanisms = ["GSSAPI"]
[listeners.other.upstream]
bootstrap_servers = ["127.0.0.1:9"]
[listeners.other.upstream.sasl]
mechanism = "GSSAPI"
"""


def login(mechanism: str, more: str = "") -> str:
    return f'[upstream.sasl]\nmechanism = "{mechanism}"\n{more}'


def token_login(options: str) -> str:
    return login("OAUTHBEARER", f"{USER}options = {{ {options} }}\n")


ENDPOINT = 'token_endpoint = "https://idp.example.com/token"'


@pytest.mark.parametrize(
    ("tables", "problems"),
    [
        (login("GSSAPI"), ["upstream.sasl: no plugin authenticates to brokers by the mechanism GSSAPI"]),
        (
            token_login(ENDPOINT.replace("point", "pont")),
            ["upstream.sasl: the plugin sasl_oauth: OAUTHBEARER: unknown option token_endpont"],
        ),
        (
            login("SCRAM-SHA-256", USER) + '[[upstream.sasl.identities]]\nclient = "*"\nuser = "a"\n',
            ["upstream.sasl.identities[0]: the plugin sasl_client: SCRAM-SHA-256 to brokers needs a user and a pass"],
        ),
        (
            TERMINATE,
            [
                "listen.sasl.mechanisms: no plugin authenticates clients by PLAIN; the plugin sasl_users: set plugins",
                "listen.sasl.mechanisms: no plugin authenticates clients by OAUTHBEARER; the plugin sasl_oauth: set p",
            ],
        ),
        (
            OTHER,
            [
                "listeners.other.upstream.sasl: no plugin authenticates to brokers by the mechanism GSSAPI",
                "listeners.other.sasl.mechanisms: no plugin authenticates clients by GSSAPI",
            ],
        ),
        (login("PLAIN", USER), []),
        (token_login(ENDPOINT), []),
    ],
)
def test_logins_that_cannot_succeed(tables: str, problems: list[str]) -> None:
    config = loads(MINIMAL + tables)
    found = "\n".join(problems_of(config)).splitlines()
    assert [each.startswith(expected) for each, expected in zip(found, problems, strict=True)] == [True] * len(problems)
    if problems:
        with pytest.raises(StartupError) as caught:
            Server(config)
        assert str(caught.value).splitlines() == found


def test_mechanisms_with_users_and_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(key_set(rsa_key()))
    options = (
        f'[plugins.options.sasl_users]\nfile = "{users_file(tmp_path)}"\n'
        f'[plugins.options.sasl_oauth]\njwks_file = "{keys}"\nissuer = "https://idp.example.com"\n'
        'audience = ["kafka"]\n'
    )
    threads = set(threading.enumerate())
    assert problems_of(loads(MINIMAL + TERMINATE + options)) == []
    assert set(threading.enumerate()) <= threads, "nothing is started"


SEVERAL = """
upstream.bootstrap_servers = ["kafka:9092"]
listen.address = "127.0.0.1:9192"
listen.tls.certificate_file = "/no/such/listen.pem"
admin.listen = "127.0.0.1:9190"
admin.tls.certificate_file = "/no/such/admin.pem"
plugins.autoload = false
plugins.load = ["default_quotas"]

[[quotas]]
entity = { user = "alice" }
producer_byte_rate = 5
consumer_byte_rate = 5
"""


def test_all_problems_are_found_at_once() -> None:
    quotas, listen, admin = problems_of(loads(SEVERAL))
    assert [line.split(": ")[0] for line in quotas.splitlines()] == [
        "quotas[0].producer_byte_rate",
        "quotas[0].consumer_byte_rate",
    ]
    assert "/no/such/listen.pem" in listen
    assert "/no/such/admin.pem" in admin


def test_quotas_that_no_plugin_enforces_have_their_lines() -> None:
    config = loads(MINIMAL + ALL_UNENFORCED, "headrace.toml", schema=None)
    (problems,) = problems_of(config)
    before = MINIMAL.count("\n")
    rule = "no loaded plugin enforces producer_ids_rate; enforced are "
    assert [line.partition(rule)[0] for line in problems.splitlines()] == [
        f"headrace.toml:{before + 7}: quotas[0].producer_ids_rate: would not be enforced for user=a: ",
        f"headrace.toml:{before + 10}: quotas[1].producer_ids_rate: would not be enforced for user=b: ",
    ]


def test_a_quota_of_a_variable_that_no_plugin_enforces_has_its_name() -> None:
    variables = {"HEADRACE_QUOTAS": '[{ entity = { user = "a" }, producer_ids_rate = 5 }]'}
    text = MINIMAL + '[plugins]\ndisabled = ["producer_ids"]\n'
    (problem,) = problems_of(loads(text, environment=variables, schema=None))
    assert problem.startswith("HEADRACE_QUOTAS: would not be enforced for user=a: no loaded plugin enforces")


WRONG_LISTENERS = """
upstream.bootstrap_servers = ["127.0.0.1:9"]
upstream.tls = { enabled = true, ca_file = "/no/such/ca.pem" }
listen.address = "127.0.0.1:9192"
listen.tls.certificate_file = "/no/such/listen.pem"
[listeners.second]
address = "127.0.0.1:9392"
tls.certificate_file = "/no/such/second.pem"
"""


def test_all_problems_of_all_listeners_are_found_at_once() -> None:
    """The brokers' table, to which both listeners lead, is named once."""
    config = loads(WRONG_LISTENERS)
    (problems,) = problems_of(config)
    settings = ["listen.tls.certificate_file", "upstream.tls.ca_file", "listeners.second.tls.certificate_file"]
    assert len(problems.splitlines()) == len(settings), problems
    for line, setting in zip(problems.splitlines(), settings, strict=True):
        assert line.startswith(setting)
    with pytest.raises(StartupError) as caught:
        create_listeners(config, HookCalls(new_plugin_manager()), Poller(), TurnsByAddress(1))
    assert str(caught.value) == problems
