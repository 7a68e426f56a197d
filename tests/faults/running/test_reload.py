"""SIGHUP: what changed takes effect, on connections that are open too; or nothing does, and the log has the reason."""

from __future__ import annotations

from signal import SIGHUP
from typing import TYPE_CHECKING

import pytest

from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events, wait_for_lines
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker


BATCH = messages.batch(bytes(50_000))
CHANGED = "configuration changed"
LONG_WINDOW = "[quota.window]\nsize.seconds = 60\n"
"""Eleven minutes: nothing of a test is forgotten."""


def quota(rate: str) -> str:
    return f'[[quotas]]\nentity = {{ client-id = "raw" }}\nproducer_byte_rate = {rate}\n'


@pytest.fixture
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, arguments=JSON_LOG) as process:
        process.wait_for_log("brokers changed")
        yield process
        assert "Traceback" not in process.log


def throttle_ms(client: RawClient, topic: str) -> int:
    body = messages.produce_body(topic, BATCH)
    reply = messages.read_produce_reply(client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body))
    assert reply.error_code == 0
    return reply.throttle_ms


def reload_and_wait(proxy: ProxyProcess, config: str, event: str) -> list[str]:
    """Reload, wait until `event` is logged once more, and return the details of all such events."""

    def found() -> list[str]:
        return [str(each.get("change") or each.get("problem")) for each in events(proxy) if each["event"] == event]

    before = len(found())
    proxy.reload(config)
    wait_until(lambda: len(found()) > before, f"a reload ends with {event!r}")
    return found()[before:]


def test_a_quota_takes_effect_on_an_open_connection(proxy: ProxyProcess, topic: str) -> None:
    with Bystander(proxy.port) as bystander, bystander.watching(), RawClient(proxy.port) as client:
        assert throttle_ms(client, topic) == 0
        reload_and_wait(proxy, quota("5000"), CHANGED)
        throttle_ms(client, topic)  # usage counts from where there is a quota; this is within the burst or over it
        held = throttle_ms(client, topic)
        assert 5000 < held < 30_000
    with RawClient(proxy.port) as client:
        reload_and_wait(proxy, quota('"1GiB"'), CHANGED)
        assert throttle_ms(client, topic) == 0
        reload_and_wait(proxy, quota("100"), CHANGED)
        assert throttle_ms(client, topic) > 60_000
    with RawClient(proxy.port) as client:
        reload_and_wait(proxy, "", CHANGED)
        assert throttle_ms(client, topic) == 0


INVALID = (
    (quota('"fast"'), ["producer_byte_rate", "headrace.toml:3:", "fast"]),
    ("[limits]\nmax_conections = 5\n", ["max_conections", "headrace.toml:2:", "max_connections"]),
    ("[limits\n", ["headrace.toml:1:"]),
    ('[[quotas]]\nentity = { client-id = "raw" }\nno_such_rate = 3\n', ["no_such_rate", "headrace.toml:3:"]),
)
"""A wrong value, an unknown key, no TOML, and a quota that no plugin enforces, each with words of the log."""


def test_an_invalid_file_leaves_the_old_configuration_in_force(kafka: FirstBroker, topic: str) -> None:
    with (
        ProxyProcess(kafka.bootstrap_servers, config=LONG_WINDOW + quota("90"), arguments=JSON_LOG) as proxy,
        Bystander(proxy.port) as bystander,
        bystander.watching(),
        RawClient(proxy.port) as client,
    ):
        assert throttle_ms(client, topic) == 0
        for config, words in INVALID:
            problems = reload_and_wait(proxy, config, "the configuration is invalid; the old one stays in force")
            assert all(any(word in problem for problem in problems) for word in words), problems
        assert throttle_ms(client, topic) > 5000, "what was used before is remembered, too"
        assert "Traceback" not in proxy.log


def test_a_file_that_is_gone_leaves_the_old_configuration_in_force(proxy: ProxyProcess, topic: str) -> None:
    reload_and_wait(proxy, quota("5000"), CHANGED)
    proxy.config_file.rename(proxy.config_file.with_suffix(".away"))
    proxy.signal(SIGHUP)
    line = proxy.wait_for_log("the old one stays in force")
    assert str(proxy.config_file) in line
    with RawClient(proxy.port) as client:
        throttle_ms(client, topic)
        assert throttle_ms(client, topic) > 5000


def test_what_needs_a_restart_is_said_and_not_done(proxy: ProxyProcess) -> None:
    with Bystander(proxy.port) as bystander, bystander.watching():
        [change] = reload_and_wait(proxy, "[listen]\nbacklog = 7\n", "configuration change waits for a restart")
        assert "listen.backlog" in change
        assert "7" in change
        with RawClient(proxy.port) as client:
            client.call(messages.API_VERSIONS, 0)


def test_limits_take_effect_on_new_connections(proxy: ProxyProcess) -> None:
    with RawClient(proxy.port) as client:
        client.call(messages.API_VERSIONS, 0)
        reload_and_wait(proxy, "[limits]\nmax_connections = 1\n", CHANGED)
        client.call(messages.API_VERSIONS, 0)
        with RawClient(proxy.port) as refused, pytest.raises((ConnectionEndedError, OSError)):
            refused.call(messages.API_VERSIONS, 0)
        assert wait_for_lines(proxy, refused.name)[0]["reason"] == "limits.max_connections = 1 is reached"


def test_a_reload_without_a_change_is_logged_as_such(proxy: ProxyProcess) -> None:
    reload_and_wait(proxy, "", "configuration reloaded; nothing changed")
    assert_no_traceback(proxy)


RULES = """
[plugins.options.authorization]
enabled = true
[[plugins.options.authorization.rules]]
principal = "User:*"
operations = {operations}
resource_type = "topic"
name = "*"
"""
TOPIC_AUTHORIZATION_FAILED = 29


def test_rules_of_authorization_change_on_an_open_connection(kafka: FirstBroker, topic: str) -> None:
    def rules(operations: str) -> str:
        return RULES.format(operations=operations)

    def produce(client: RawClient) -> int:
        body = messages.produce_body(topic, BATCH)
        return messages.read_produce_reply(client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body)).error_code

    with (
        ProxyProcess(kafka.bootstrap_servers, config=rules('["Write"]'), arguments=JSON_LOG) as proxy,
        RawClient(proxy.port) as client,
    ):
        assert produce(client) == 0
        [change] = reload_and_wait(proxy, rules('["Read"]'), CHANGED)
        assert change == "plugins.options.authorization: changed"
        assert produce(client) == TOPIC_AUTHORIZATION_FAILED
        invalid = "the configuration is invalid; the old one stays in force"
        [problem] = reload_and_wait(proxy, rules('["write"]'), invalid)
        assert 'did you mean "Write"?' in problem
        assert produce(client) == TOPIC_AUTHORIZATION_FAILED
        reload_and_wait(proxy, "", "configuration change waits for a restart")
        assert produce(client) == TOPIC_AUTHORIZATION_FAILED
        reload_and_wait(proxy, rules('["Write"]'), CHANGED)
        assert produce(client) == 0
        assert "Traceback" not in proxy.log
