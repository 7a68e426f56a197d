"""Several listeners: the tables ``[listeners.NAME]``."""

from __future__ import annotations

import pytest

from headrace.config import ConfigValueError, loads
from headrace.config.check import summary
from headrace.config.reload import diff
from tests.config.documents import MINIMAL

INTERNAL = """\
[listeners.internal]
address = "127.0.0.1:29192"
node_ids = "0-2"
"""
SECURE = """\
[listeners.secure]
address = "127.0.0.1:39192"
broker_host = "b-$(node_id).example.com"
[listeners.secure.tls]
certificate_file = "proxy.pem"
[listeners.secure.sasl]
mode = "terminate"
[listeners.secure.upstream]
bootstrap_servers = ["127.0.0.1:9094"]
[listeners.secure.upstream.sasl]
mechanism = "PLAIN"
"""


def problems(text: str) -> list[str]:
    try:
        loads(MINIMAL + text)
    except ConfigValueError as error:
        return [f"{problem.key}: {problem.rule}" for problem in error.problems]
    return []


def test_each_has_its_own_settings_and_brokers() -> None:
    first, internal, secure = loads(MINIMAL + INTERNAL + SECURE).all_listeners()
    assert [first.setting, internal.setting, secure.setting] == ["listen", "listeners.internal", "listeners.secure"]
    assert internal.upstream is first.upstream
    assert (internal.upstream_setting, secure.upstream_setting) == ("upstream", "listeners.secure.upstream")
    assert str(secure.upstream.bootstrap_servers[0]) == "127.0.0.1:9094"
    assert secure.upstream.sasl.mechanism == "PLAIN"
    assert secure.listen.sasl.mode == "terminate"
    assert str(internal.listen.node_ids) == "0-2"


def test_the_summary_has_all() -> None:
    assert summary(loads(MINIMAL + INTERNAL + SECURE))[2:6] == [
        "ok: listeners.internal listening at 127.0.0.1:29192, advertised as 127.0.0.1:29192",
        "ok: listeners.internal brokers 0-2 at ports 29193-29195",
        "ok: listeners.secure listening at 127.0.0.1:39192 with TLS, advertised as 127.0.0.1:39192",
        "ok: listeners.secure brokers 0-31 advertised as b-$(node_id).example.com:39192",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[listeners.Big]\naddress = "127.0.0.1:29192"\n', "listeners.Big: expected a name of lower-case letters"),
        ('[listeners.x]\nnode_ids = "0"\n', "listeners.x.address: required; expected host:port"),
        (INTERNAL + "adress = 1\n", "listeners.internal.adress: unknown key; did you mean listeners.internal.address?"),
        (
            INTERNAL + "[listeners.internal.upstream]\n",
            "listeners.internal.upstream.bootstrap_servers: required; expected a list of one or more host:port",
        ),
        (
            INTERNAL + '[listeners.internal.upstream]\nbootstrap_servers = ["a:1"]\ntls.enabeld = true\n',
            (
                "listeners.internal.upstream.tls.enabeld: unknown key; did you mean"
                " listeners.internal.upstream.tls.enabled?"
            ),
        ),
        ("[listeners.internal]\naddress = 7\n", "listeners.internal.address: expected host:port"),
        ('listeners = ["x"]\n', "listeners: expected a table: [listeners] and keys below it"),
        ('[listeners]\nx = "y"\n', "listeners.x: expected a table: [listeners.x] and keys below it"),
    ],
)
def test_what_is_wrong_is_named(text: str, expected: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            INTERNAL.replace("127.0.0.1", "0.0.0.0"),
            'listeners.internal.advertised_host: required, since listeners.internal.address ("0.0.0.0:29192") is a',
        ),
        (
            INTERNAL + 'tls.client_certificates = "required"\n',
            "listeners.internal.tls.client_ca_file: required, since listeners.internal.tls.client_certificates",
        ),
        (INTERNAL + 'tls.key_file = "x"\n', "listeners.internal.tls.certificate_file: required, since other keys of"),
        (INTERNAL + 'broker_host = "b$(node_id).x"\n', "listeners.internal.broker_host: without effect, since clients"),
        (
            '[listeners.internal]\naddress = "127.0.0.1:65530"\n',
            "listeners.internal.address: broker 31 would be at port 65562",
        ),
        (
            INTERNAL.replace("29192", "19190"),
            (
                "listeners.internal.address: the port of broker 1 would be at port 19192, which is the bootstrap port"
                ' of listen.address ("127.0.0.1:19192"); choose another port'
            ),
        ),
        (
            INTERNAL + SECURE.replace("39192", "29194"),
            (
                "listeners.secure.address: the bootstrap port would be at port 29194, which is the port of broker 1 of"
                ' listeners.internal.address ("127.0.0.1:29192"); choose another port'
            ),
        ),
        (
            SECURE.replace("9094", "19193"),
            (
                "listeners.secure.upstream.bootstrap_servers[0]: the proxy would connect to itself: this is the port of"
                ' broker 0 of listen.address ("127.0.0.1:19192")'
            ),
        ),
        (INTERNAL + '[admin]\nlisten = "127.0.0.1:29193"\n', "admin.listen: the port is taken by the port of broker 0"),
        (
            SECURE.replace('mechanism = "PLAIN"', 'user = "x"'),
            "listeners.secure.upstream.sasl.mechanism: required, since other keys of listeners.secure.upstream.sasl",
        ),
    ],
)
def test_rules_between_keys(text: str, expected: str) -> None:
    found = problems(text)
    assert any(problem.startswith(expected) for problem in found), found
    assert len(found) == (2 if "client_certificates" in text else 1)


def test_one_port_listeners_need_no_ports_of_brokers() -> None:
    assert problems(SECURE.replace("39192", "65535")) == []
    assert problems(SECURE + INTERNAL.replace("29192", "39193")) == []


def test_a_change_needs_a_restart_and_its_text_has_the_name_alone() -> None:
    before, after = loads(MINIMAL + INTERNAL), loads(MINIMAL + INTERNAL.replace("0-2", "0-3") + SECURE)
    changes = diff(before, after)
    assert str(changes) == ("listeners.internal: changed (needs a restart)\nlisteners.secure: added (needs a restart)")
    assert changes.effective == before
