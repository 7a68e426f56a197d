"""Servers that real brokers are not: without an API, too old for a version, hostile, or no brokers at all."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.kafka_client.admin import AdminClient
from headrace.proxy.kafka_client.errors import (
    ApiTimeoutError,
    BadReplyError,
    InvalidRequestError,
    UnsupportedVersionError,
)
from headrace.proxy.kafka_client.quotas import QuotaAlteration
from headrace.proxy.kafka_client.settings import ClientSettings
from headrace.proxy.kafka_client.topics import NewTopic
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.kafka_client.fake_cluster import ONE, Act, Answer, Asked, offered, open_cluster, without
from tests.proxy.playbook import framed, reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

DESCRIBE, ALTER, VERSIONS = ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.API_VERSIONS
ALICE = QuotaEntity(user="alice")
UNSUPPORTED = 35


async def test_a_broker_before_2_6_has_no_client_quotas(autojump_clock: MockClock) -> None:
    async with open_cluster({}) as (cluster, admin):
        cluster.versions = without(DESCRIBE, ALTER)
        with pytest.raises(UnsupportedVersionError) as raised:
            await admin.describe_client_quotas()
        assert str(raised.value) == (
            "UNSUPPORTED_VERSION: the broker bootstrap:9092 has no DescribeClientQuotas (API key 48)"
            " (the client needs version 0 to 1; brokers have it since Kafka 2.6 (KIP-546))"
        )
        results = await admin.alter_client_quotas([QuotaAlteration(entity=ALICE)], raise_errors=False)
        assert "has no AlterClientQuotas (API key 49)" in str(results.errors[ALICE])
    assert {each.api_key for each in cluster.asked} == {VERSIONS}, "nothing else is sent"


async def test_versions_that_have_been_removed(autojump_clock: MockClock) -> None:
    async with open_cluster({}, versions={DESCRIBE: (2, 7)}) as (_, admin):
        with pytest.raises(UnsupportedVersionError, match="has versions 2 to 7 of DescribeClientQuotas"):
            await admin.describe_client_quotas()


async def test_the_error_of_an_old_broker_keeps_its_message(autojump_clock: MockClock) -> None:
    """It has the API, but not the key: INVALID_REQUEST and UNSUPPORTED_VERSION are told apart."""
    row = {
        "error_code": 42,
        "error_message": "Invalid configuration key controller_mutation_rate",
        "entity": [{"entity_type": "user", "entity_name": "alice"}],
    }
    async with open_cluster({ALTER: lambda _: {"entries": [row]}}) as (_, admin):
        with pytest.raises(InvalidRequestError) as raised:
            await admin.alter_client_quotas([QuotaAlteration(entity=ALICE, values={"controller_mutation_rate": 5})])
    assert raised.value.message == "Invalid configuration key controller_mutation_rate"
    assert "may need a newer version of Kafka" in raised.value.explanation
    assert raised.value.message in str(raised.value)
    assert raised.value.explanation in str(raised.value)


@pytest.mark.parametrize(("listed", "second"), [((0, 2), 2), (None, 0), ((0, 9), 2)])
async def test_api_versions_of_older_brokers(
    listed: tuple[int, int] | None, second: int, autojump_clock: MockClock
) -> None:
    """KIP-511: the refusal has version 0, and names the versions of ApiVersions since Kafka 2.4."""

    def answer(asked: Asked) -> Answer:
        if asked.version == 3:
            refusal = offered({VERSIONS: listed} if listed else {}, UNSUPPORTED)
            return framed(asked.correlation_id.to_bytes(4, "big") + encode("ApiVersionsResponse", 0, refusal))
        return offered(cluster.versions)

    async with open_cluster({VERSIONS: answer, DESCRIBE: lambda _: {"entries": []}}) as (cluster, admin):
        assert await admin.describe_client_quotas() == {}
    assert [each.version for each in cluster.requests(VERSIONS)] == [3, second]


async def test_a_broker_that_refuses_every_version_of_api_versions(autojump_clock: MockClock) -> None:
    body = encode("ApiVersionsResponse", 0, offered({}, UNSUPPORTED))
    answers = {VERSIONS: lambda asked: framed(asked.correlation_id.to_bytes(4, "big") + body)}
    async with open_cluster(answers) as (cluster, admin):
        with pytest.raises(BadReplyError, match="does not say which APIs it has: UNSUPPORTED_VERSION"):
            await admin.describe_client_quotas()
    assert [each.version for each in cluster.requests(VERSIONS)] == [3, 0]


def head(size: int, correlation_id: int = 0) -> bytes:
    return struct.pack(">ii", size, correlation_id)


HOSTILE: dict[str, tuple[Callable[[Asked], Answer], str]] = {
    "a length of 2 GiB": (lambda _: head(0x7FFFFFFF), "sent a reply of 2147483647 bytes; the limit is 1000000"),
    "a negative length": (lambda _: head(-1), "shorter than its header"),
    "a length of 3": (lambda _: head(3), "shorter than its header"),
    "the reply to another request": (lambda asked: head(8, 77) + bytes(4), "answered request 77 instead of"),
    "a body that ends early": (lambda asked: head(5, asked.correlation_id) + b"\0", "malformed"),
    "an endless header": (lambda asked: head(9, asked.correlation_id) + b"\xff" * 5, "malformed"),
    "TLS": (lambda _: b"\x15\x03\x03\x00\x02\x02\x0a\x00", "speaks TLS; set security.protocol to SSL or SASL_SSL"),
    "HTTP": (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP instead of Kafka's protocol"),
    "an entity without a name": (
        lambda _: {"entries": [{"entity": [{"entity_type": "user", "entity_name": ""}], "values": []}]},
        "has an invalid entity",
    ),
    "an entity without parts": (lambda _: {"entries": [{"entity": [], "values": []}]}, "has an invalid entity"),
    "many small rows": (
        lambda _: {"entries": [{"entity": [], "values": []}] * 20_000},
        "more rows than max_reply_rows = 10000",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_replies(name: str, autojump_clock: MockClock) -> None:
    """Each is an error at once, and not tried again."""
    answer, expected = HOSTILE[name]
    async with open_cluster({DESCRIBE: answer}, max_reply_bytes=1_000_000, max_reply_rows=10_000) as (cluster, admin):
        with pytest.raises(BadReplyError, match=expected):
            await admin.describe_client_quotas()
        assert trio.current_time() == cluster.began
    assert len(cluster.requests(DESCRIBE)) == 1


async def test_a_long_reply_before_the_broker_serves_the_client(autojump_clock: MockClock) -> None:
    async with open_cluster({VERSIONS: lambda _: head(2_000_000)}) as (_, admin):
        with pytest.raises(BadReplyError, match="the limit is 1048576"):
            await admin.describe_client_quotas()


async def test_a_reply_byte_by_byte_has_a_deadline(autojump_clock: MockClock) -> None:
    """A server that sends a byte now and then cannot hold a call for longer than one that sends nothing."""
    whole = head(1000) + bytes(996)
    client, server = trio.testing.memory_stream_pair()

    async def drip() -> None:
        request = await server.receive_some()
        assert request
        with contextlib.suppress(trio.BrokenResourceError):  # the client closes the connection at its deadline
            for each in whole:
                await server.send_all(bytes([each]))
                await trio.sleep(1)

    async def connect(_: Any) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return client

    began = trio.current_time()
    settings = ClientSettings(bootstrap_servers=(ONE,), request_timeout_ms=20_000)
    async with AdminClient(settings, open_stream=connect) as admin, trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        with pytest.raises(ApiTimeoutError, match="did not answer ApiVersions within 20000 ms"):
            await admin.describe_client_quotas(timeout_ms=20_050)
        assert trio.current_time() - began == pytest.approx(20.05)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("host", "port"), [("", 9092), ("x", 0), ("x", 70_000), ("x", -1)])
async def test_brokers_at_impossible_addresses(host: str, port: int, autojump_clock: MockClock) -> None:
    metadata = {"brokers": [{"node_id": 1, "host": host, "port": port}], "controller_id": 1}
    async with open_cluster({ApiKey.METADATA: lambda _: metadata}) as (_, admin):
        with pytest.raises(BadReplyError, match="reports the broker address"):
            await admin.create_topics([NewTopic(name="a")])


async def test_a_server_that_closes_at_once(autojump_clock: MockClock) -> None:
    """As brokers before 0.10 do when they are asked for ApiVersions."""
    async with open_cluster({VERSIONS: lambda _: Act.CLOSE}) as (_, admin):
        with pytest.raises(ApiTimeoutError, match="ended before the reply to ApiVersions: the broker closed"):
            await admin.describe_client_quotas(timeout_ms=1000)


async def test_bytes_after_a_reply_are_not_the_next_reply(autojump_clock: MockClock) -> None:
    forged = reply(DESCRIBE, 1, 9, entries=[])

    def answer(asked: Asked) -> Answer:
        return reply(DESCRIBE, 1, asked.correlation_id, entries=[]) + forged

    async with open_cluster({DESCRIBE: answer}) as (_, admin):
        assert await admin.describe_client_quotas() == {}
        with pytest.raises(BadReplyError, match="answered request 9 instead of 3"):
            await admin.describe_client_quotas()
