"""The example plugin: by itself, over memory sockets, and loaded by the real proxy in front of a real broker."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest
import trio

from examples import request_rate
from examples.request_rate import KEY, RequestRate
from headrace.config import check_quota_names, loads
from headrace.proxy.admin.operations import Operations
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.testing import make_connection, make_context, make_request
from testbed.proxy_process import ProxyProcess
from tests.clients.wire_connection import WireConnection
from tests.config.documents import MINIMAL
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.shared_cluster import FirstBroker

ANYBODY = QuotaEntity(user=DEFAULT)
FIND = ApiKey.FIND_COORDINATOR


def configuration() -> str:
    """What stands in the module's docstring."""
    lines = (request_rate.__doc__ or "").splitlines()
    return "\n".join(line[4:] for line in lines if line.startswith("    "))


@pytest.mark.parametrize("mode", EnforcementMode)
async def test_requests_are_counted(autojump_clock: MockClock, mode: EnforcementMode) -> None:
    quota = Quota(value=1, policy=QuotaPolicy(mode=mode, burst_s=10))
    async with open_book(plugins={"rate": RequestRate()}, quotas=[(KEY, ANYBODY, quota)]) as book:
        throttles = []
        for number in range(13):
            answer = await book.round_trip(request(FIND, 3, number), reply(FIND, 3, number))
            throttles.append(read_reply(FIND, 3, answer)["throttle_time_ms"])
            await trio.sleep_until(book.connection.mute.until_s)
        assert throttles[:10] == [0] * 10
        assert max(throttles[10:]) >= 900
        decision = next(iter(book.shared.decisions))
        assert (decision.quota, decision.entity, decision.limit) == (KEY, "user=<default>", 1)
        (shown,) = Operations(book.shared, []).decisions(None, None, newest=1)["decisions"]
        assert shown["unit"] == "requests/s"
        assert book.shared.hooks.errors == 0


def test_a_new_connection_waits_for_its_user() -> None:
    plugin = RequestRate()
    plugin.configure(make_context(limits={KEY: 1}))
    known, new = make_connection(user="alice"), make_connection(user="alice")
    for _ in range(10):
        assert plugin.request_received(make_request(FIND, connection=known), 0) is None
    assert plugin.request_received(make_request(FIND, connection=known), 0) is not None
    waiting = make_request(FIND, connection=new, received_s=0.5)
    verdict = plugin.request_received(waiting, 500)
    assert verdict is not None
    assert (verdict.hold, verdict.ask_again, verdict.throttle_ms) == (True, True, 500)
    plugin.request_abandoned(waiting)
    assert not waiting.notes


def test_what_the_docstring_shows_is_taken() -> None:
    config = loads(MINIMAL + configuration(), schema=None)
    check_quota_names(config, BUILTIN_SCHEMA.extended(RequestRate().quota_definitions()))
    assert config.entity_quotas() == {ANYBODY: {KEY: Quota(value=100)}}
    assert config.plugins.load == tuple(tomllib.loads(configuration())["plugins"]["load"])


def test_the_real_proxy_enforces_it(kafka: FirstBroker) -> None:
    """One request in ten seconds is free, so that the second one is beyond the quota, however long the broker takes."""
    config = configuration().replace("request_rate = 100", "request_rate = 0.1")
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config) as proxy,
        WireConnection(("127.0.0.1", proxy.port)) as connection,
    ):
        throttles = [connection.ask(ApiKey.METADATA, 9, {"topics": []})["throttle_time_ms"] for _ in range(2)]
        assert throttles[0] == 0
        assert throttles[1] > 0
        assert "quota=request_rate" in proxy.wait_for_log("entity='user=<default>'")
        assert (
            'headrace_quota_limit{client_id="",quota="request_rate",user="ANONYMOUS"} 0.1' in proxy.get("/metrics")[1]
        )
