"""The proxy's login at brokers: as whom, on which connection, and when again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs

from headrace.proxy.connection.state.timeouts import end_if_overdue
from headrace.proxy.network.listener import BrokerIdentities, ListenerSasl
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey, bounded_name
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.sasl import UpstreamSasl
from tests.proxy.connection.opening.words import (
    EXIT,
    HANDSHAKE,
    MECHANISM,
    TERMINATING,
    Words,
    accept_login,
    answer_to,
    authenticate,
    identity,
)
from tests.proxy.mutation_script import WINDOWS, create, created, quota
from tests.proxy.playbook import open_book, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.proxy.playbook import Book

HEARTBEAT, PRODUCE = ApiKey.HEARTBEAT, ApiKey.PRODUCE
SASL_AUTHENTICATION_FAILED = 58
BEAT, BEAT_REPLY = request(HEARTBEAT, 4, 9), reply(HEARTBEAT, 4, 9)
PLUGINS = {"words": Words()}
OWN = identity("proxy")
IDENTITIES = BrokerIdentities(
    {"alice": identity("alice-there"), "etl-1": identity("first")}, {"etl-": identity("etl"), "e": identity("others")}
)
SESSION_MS = 10_000


@pytest.mark.parametrize(
    ("user", "there"),
    [("alice", "alice-there"), ("etl-1", "first"), ("etl-2", "etl"), ("eve", "others"), ("bob", None)],
)
def test_a_name_precedes_prefixes_and_the_longest_prefix_the_others(user: str, there: str | None) -> None:
    found = IDENTITIES.of(user)
    assert (None if found is None else found.user) == there


def test_a_long_name_is_found_in_its_short_form() -> None:
    long = "n" * 300
    assert BrokerIdentities({long: OWN}, {}).of(bounded_name(long)) is OWN


@pytest.mark.parametrize(("user", "there"), [("alice", "alice-there"), ("etl-7", "etl")])
async def test_each_user_has_an_identity(user: str, there: str, autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN, identities=IDENTITIES) as book:
        assert (await authenticate(book, user))["error_code"] == 0
        await book.client.sends(BEAT)
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, there)
        assert await book.broker.receives() == BEAT
        await book.broker.sends(BEAT_REPLY)
        assert await book.client.receives() == BEAT_REPLY


async def test_a_user_without_an_identity_is_refused(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN, identities=IDENTITIES) as book:
        with capture_logs() as lines:
            answer = await authenticate(book, "bob")
            await book.client.receives_the_end()
        assert answer["error_code"] == SASL_AUTHENTICATION_FAILED
        assert "not served here" in str(answer["error_message"])
        [line] = [each for each in lines if each["event"] == "login refused"]
        assert line["user"] == "bob"
        assert "add it to upstream.sasl.identities" in line["reason"]
        assert not book.upstream.brokers


async def test_a_client_that_proves_no_user_has_no_identity(autojump_clock: MockClock) -> None:
    """Such as one without a certificate, where certificates are only requested."""
    everybody = BrokerIdentities({}, {"": OWN})
    unproved = ListenerSasl(mechanisms=(), max_lifetime_s=None)
    async with open_book(plugins=PLUGINS, sasl=unproved, login=OWN, identities=everybody) as book:
        await book.client.sends(BEAT)
        await book.client.receives_the_end()
        assert "the client has not authenticated" in str(book.connection.reason)
        assert not book.upstream.brokers


async def test_errors_name_the_tables_of_the_listener(autojump_clock: MockClock) -> None:
    unproved = ListenerSasl(mechanisms=(), max_lifetime_s=None)
    table = "listeners.outside.upstream.sasl"
    async with open_book(plugins=PLUGINS, sasl=unproved, login=OWN, identities=IDENTITIES) as book:
        _rename_tables(book)
        await book.client.sends(BEAT)
        await book.client.receives_the_end()
        reason = str(book.connection.reason)
        assert f"{table}.identities has identities for users only" in reason
        assert "listeners.outside.tls.client_certificates" in reason
        assert "listeners.outside.sasl.mode" in reason
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN, identities=IDENTITIES) as book:
        _rename_tables(book)
        with capture_logs() as lines:
            await authenticate(book, "bob")
            await book.client.receives_the_end()
        [line] = [each for each in lines if each["event"] == "login refused"]
        assert f"add it to {table}.identities" in line["reason"]
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=UpstreamSasl(mechanism="UNKNOWN")) as book:
        _rename_tables(book)
        await authenticate(book, "alice")
        await book.client.sends(BEAT)
        await book.client.receives_the_end()
        assert f"no plugin can authenticate to brokers by {table}.mechanism = UNKNOWN" in str(book.connection.reason)


def _rename_tables(book: Book) -> None:
    """Let the connection be one of a listener beside that of ``[listen]``."""
    book.connection.listener.setting = "listeners.outside"
    book.upstream.setting = "listeners.outside.upstream"


async def test_nobody_goes_on_with_the_identity_of_another_user(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN, identities=IDENTITIES) as book:
        await authenticate(book, "alice")
        await book.client.sends(BEAT)
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, "alice-there")
        await book.broker.receives()
        await book.broker.sends(BEAT_REPLY)
        await book.client.receives()
        await trio.sleep(2)
        assert (await authenticate(book, "etl-1"))["error_code"] == SASL_AUTHENTICATION_FAILED
        await book.client.receives_the_end()
        assert book.broker.receives_nothing()


async def test_the_proxy_logs_in_again_when_the_broker_closes_before_a_muted_client(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN, identities=IDENTITIES) as book:
        await authenticate(book, "alice")
        await book.client.sends(BEAT)
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, "alice-there")
        await book.broker.receives()
        await book.broker.sends(reply(HEARTBEAT, 4, 9, throttle_time_ms=5000))
        await book.client.receives()
        book.connection.mute.extend(trio.current_time(), 5000)
        book.broker.socket.close()
        await trio.testing.wait_all_tasks_blocked()
        await book.client.sends(BEAT)
        await book.upstream.wait_for_dial(2)
        await accept_login(book.broker, "alice-there")
        assert await book.broker.receives() == BEAT
        await book.broker.sends(BEAT_REPLY)
        assert await book.client.receives() == BEAT_REPLY


async def test_a_broker_that_does_not_answer_a_renewed_login_is_given_up(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN) as book:
        await authenticate(book, "alice")
        await book.client.sends(BEAT)
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, "proxy", lifetime_ms=SESSION_MS)
        await book.broker.receives()
        await book.broker.sends(BEAT_REPLY)
        await book.client.receives()
        await trio.sleep(SESSION_MS / 1000)
        await book.client.sends(BEAT)
        await book.broker.receives()
        state, timeout_s = book.connection, book.connection.limits.login_timeout_s
        end_if_overdue(state, trio.current_time() + timeout_s - 1)
        assert not state.ended
        end_if_overdue(state, trio.current_time() + timeout_s + 1)
        assert state.reason == "upstream: the proxy's login took longer than limits.login_timeout = 60 s"


@pytest.mark.parametrize(("lifetime_ms", "ends"), [(0, False), (SESSION_MS, True), (2**63 - 1, False)])
async def test_a_session_that_lasts_for_ever_is_not_renewed(
    lifetime_ms: int, ends: bool, autojump_clock: MockClock
) -> None:
    """The largest number is later than the data plane can count."""
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN) as book:
        await authenticate(book, "alice")
        await book.client.sends(BEAT)
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, "proxy", lifetime_ms=lifetime_ms)
        assert await book.broker.receives() == BEAT
        assert (book.connection.asks_from_s < math.inf) is ends


def paced(key: QuotaKey, limit: float) -> list[tuple[str, QuotaEntity, Quota]]:
    policy = QuotaPolicy(mode=EnforcementMode.PACED, burst_s=0)
    return [(key, QuotaEntity(user="alice"), Quota(value=limit, policy=policy))]


def produce(number: int) -> bytes:
    return request(PRODUCE, 7, number, acks=1, padding=20_000)


async def test_a_request_that_was_held_for_longer_than_the_session_follows_a_login(autojump_clock: MockClock) -> None:
    """It is read by its head, and 20 s pass between the first and the second one."""
    quotas = paced(QuotaKey.PRODUCER_BYTE_RATE, 1000)
    async with open_book(plugins=PLUGINS, quotas=quotas, sasl=TERMINATING, login=OWN) as book:
        await authenticate(book, "alice")
        await book.client.sends(produce(1), produce(2))
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, "proxy", lifetime_ms=SESSION_MS)
        assert await book.broker.receives() == produce(1)
        await book.broker.sends(reply(PRODUCE, 7, 1))
        await accept_login(book.broker, "proxy", lifetime_ms=SESSION_MS)
        assert trio.current_time() > SESSION_MS / 1000
        assert await book.broker.receives() == produce(2)


async def test_a_held_request_that_is_read_whole_follows_a_login_too(autojump_clock: MockClock) -> None:
    first, second = create(6, ("a", 60)), create(6, ("b", 60), number=2)
    policy = QuotaPolicy(mode=EnforcementMode.PACED, burst_s=1)
    async with open_book(
        plugins=PLUGINS, quotas=quota(2, policy), windows=WINDOWS, sasl=TERMINATING, login=OWN
    ) as book:
        await authenticate(book, "alice")
        await book.client.sends(first, second)
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, "proxy", lifetime_ms=SESSION_MS)
        assert await book.broker.receives() == first
        await book.broker.sends(created(6, "a"))
        await accept_login(book.broker, "proxy", lifetime_ms=SESSION_MS)
        assert trio.current_time() > SESSION_MS / 1000
        assert await book.broker.receives() == second


async def test_a_broker_without_the_mechanism_is_named(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN) as book:
        await authenticate(book, "alice")
        await book.client.sends(BEAT)
        await book.upstream.wait_for_dial(1)
        asked = await book.broker.receives()
        number = int.from_bytes(asked[8:12], "big")
        await book.broker.sends(reply(HANDSHAKE, 1, number, error_code=33, mechanisms=["PLAIN"]))
        await book.client.receives_the_end()
        assert f"does not accept upstream.sasl.mechanism = {MECHANISM}; it accepts PLAIN" in str(book.connection.reason)


async def test_a_plugin_that_ends_the_program_ends_the_connection_alone(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=identity(EXIT)) as book:
        await authenticate(book, "alice")
        await book.client.sends(BEAT)
        await book.upstream.wait_for_dial(1)
        await book.broker.sends(answer_to(await book.broker.receives(), HANDSHAKE, mechanisms=[MECHANISM]))
        await book.client.receives_the_end()
        assert "the plugin words failed" in str(book.connection.reason)
        assert book.shared.hooks.failures == {"words": 1}
