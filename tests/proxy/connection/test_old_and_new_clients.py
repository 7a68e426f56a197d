"""Every API in every version: a throttled client gets a throttle time if the protocol has it, and is always muted.

Driven by the table of KAFKA_SEMANTICS §3 (`tests.proxy.wire.api_table`), which is first compared with Kafka's own
classes and with the proxy's table. A plugin throttles each request by 5 s, when it is received or when its reply is.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio

from headrace.proxy.wire.apis import (
    APIS,
    back_off_from,
    must_rewrite,
    request_header_version,
    response_header_version,
)
from headrace.proxy.wire.messages.codec import encode
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.verdicts import Refuse, Throttle
from testbed.kafka.jvm import kafka_classes, start_jvm
from tests.proxy.playbook import framed, open_book, read_reply, reply, request
from tests.proxy.wire.api_table import EVERY_API, TABLE, ApiRow

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from trio.testing import MockClock

    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Verdict
    from tests.proxy.playbook import Book

THROTTLE_MS: Final = 5000
POLICY_VIOLATION: Final = 44
FOLLOW_UP: Final = 99
"""The correlation id of the Heartbeat that follows the request under test; it is not throttled."""

AUTHENTICATING: Final = {
    ApiKey.SASL_HANDSHAKE: "SaslHandshake: has no throttle time; quotas do not apply before the login is complete",
    ApiKey.SASL_AUTHENTICATE: "SaslAuthenticate: likewise",
}
"""APIs whose mute is not tested here, and why; that they are forwarded unchanged is tested."""

NOT_FORWARDED: Final = {
    95: "the first key that Kafka 4.4 does not have; a broker closes the connection, too",
    -1: "no key can be negative",
    2**15 - 1: "the last key there can be",
}
"""API keys that end the connection, and why. No callback is called for them."""

UNREFUSABLE: Final = {ApiKey.DESCRIBE_LOG_DIRS: range(3)}
"""Versions, besides the controllers' APIs, whose replies have no field for an error: the connection is closed instead.
DescribeLogDirs has one for each log directory only, and its request lists none."""

NAMES_BROKERS: Final = {
    ApiKey.PRODUCE: "Produce: leader hints (KIP-951)",
    ApiKey.METADATA: "Metadata",
    ApiKey.FIND_COORDINATOR: "FindCoordinator",
    ApiKey.DESCRIBE_CLUSTER: "DescribeCluster",
    ApiKey.SHARE_FETCH: "ShareFetch: leader hints",
    ApiKey.SHARE_ACKNOWLEDGE: "ShareAcknowledge: leader hints",
}
"""APIs in whose replies brokers' addresses are replaced. Only they and the throttle time may change."""

LEFT_OUT: Final = {"FetchResponse": {"node_endpoints"}}
"""Fields that are not filled: Fetch's leader hints are hidden, which the tests of `headrace.proxy.wire.walks.fetch`
cover."""

FILLING: Final = {"bool": True, "bytes": b"b", "float64": 0.5, "records": b"r", "string": "s", "uuid": bytes(range(16))}


class Stage(Enum):
    """The hook in which the plugin throttles."""

    REQUEST = "request"
    REPLY = "reply"


class Throttler:
    """Throttles or refuses every request except the follow-up."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, stage: Stage, verdict: Verdict | None = None) -> None:
        self.stage = stage
        self.verdict = verdict or Throttle(throttle_ms=THROTTLE_MS)
        self.asked: list[tuple[int, int]] = []

    @hookimpl
    def request_received(self, request: Request) -> Verdict | None:
        self.asked.append((request.api_key, request.api_version))
        return self._verdict(request, Stage.REQUEST)

    @hookimpl
    def response_received(self, request: Request) -> Verdict | None:
        return self._verdict(request, Stage.REPLY)

    def _verdict(self, request: Request, stage: Stage) -> Verdict | None:
        return None if request.correlation_id == FOLLOW_UP or stage is not self.stage else self.verdict


def sampled(rows: Sequence[ApiRow], rng: random.Random) -> list[tuple[ApiRow, int]]:
    """Return what to test in ``make test``: the last version of each API, and one of each kind.

    Versions, of any APIs, are of one kind if their requests have the same header, both or neither have a throttle time,
    the client waits by itself in both or neither, and both or neither are refused or rewritten. The tables from which
    this is known are compared with Kafka's classes below. ``make test-all`` tests all.
    """
    kinds: dict[Any, list[tuple[ApiRow, int]]] = {}
    for row in rows:
        for version in row.sent_versions:
            kind = (
                request_header_version(row.key, version),
                row.has_throttle_time(version),
                row.client_waits(version),
                version in UNREFUSABLE.get(row.key, ()),
                must_rewrite(row.key, version),
            )
            kinds.setdefault(kind, []).append((row, version))
    return [*((row, row.sent_versions[-1]) for row in rows), *map(rng.choice, kinds.values())]


def approx(seconds: float) -> Any:
    """Compare times of the fake clock, which are sums of floats."""
    return pytest.approx(seconds, abs=1e-6)


def filled(message: str, version: int) -> dict[str, Any]:
    """Return a message without empty fields: each array has one element, numbers are 1."""
    left_out = LEFT_OUT.get(message, set())
    return {field.name: _filled(field) for field in schema(message, version).fields if field.name not in left_out}


def _filled(field: Field) -> Any:
    is_struct = field.kind == "struct"
    value = {one.name: _filled(one) for one in field.fields} if is_struct else FILLING.get(field.kind, 1)
    return [value] if field.is_array else value


def with_the_proxys_address(value: Any) -> Any:
    """Replace brokers' addresses (all have the id 1) by the address of broker 1 at the proxy."""
    if isinstance(value, list):
        return [with_the_proxys_address(one) for one in value]
    if not isinstance(value, dict):
        return value
    copied = {name: with_the_proxys_address(one) for name, one in value.items()}
    return copied | {"host": "proxy", "port": 9194} if {"host", "port"} <= value.keys() else copied


def reply_of(row: ApiRow, version: int, throttle_ms: int) -> dict[str, Any]:
    """Return the fields of a broker's reply."""
    fields = filled(f"{row.name}Response", version)
    return fields | {"throttle_time_ms": throttle_ms} if "throttle_time_ms" in fields else fields


def asking(row: ApiRow, version: int, body: bytes | None = None) -> bytes:
    """Return a request without empty fields, unless ``body`` is given."""
    header_version = request_header_version(row.key, version)
    header: dict[str, Any] = {"request_api_key": row.key, "request_api_version": version, "correlation_id": 1}
    if header_version > 0:  # ControlledShutdown v0 has no client id
        header["client_id"] = "c"
    if body is None:
        body = encode(f"{row.name}Request", version, filled(f"{row.name}Request", version))
    return framed(encode("RequestHeader", header_version, header) + body)


def from_the_future(row: ApiRow) -> bytes:
    """Return a request of the version after the last, with a body that cannot be parsed."""
    return asking(row, row.versions.stop, b"to come" * 9)


async def follow_up_muted_s(book: Book, begin_s: float) -> float:
    """Send a Heartbeat and have it answered; return how long after ``begin_s`` it reached the broker, in seconds."""
    heartbeat = request(ApiKey.HEARTBEAT, 4, FOLLOW_UP)
    await book.client.sends(heartbeat)
    assert await book.broker.receives() == heartbeat
    muted_s = trio.current_time() - begin_s
    await book.broker.sends(reply(ApiKey.HEARTBEAT, 4, FOLLOW_UP))
    await book.client.receives()
    return muted_s


async def throttled_s(book: Book, row: ApiRow, version: int, *, broker_ms: int, patient: bool = False) -> float:
    """Run a throttled exchange and its follow-up; return the time until the latter reached the broker, in seconds.

    A patient client sends the follow-up after the throttle time of the reply, any other at once. ``broker_ms`` is the
    broker's own throttle time.
    """
    expected_ms = max(THROTTLE_MS, broker_ms)
    fields = reply_of(row, version, broker_ms)
    expected = reply_of(row, version, expected_ms)
    if row.key in NAMES_BROKERS:
        expected = with_the_proxys_address(expected)
    begin_s = trio.current_time()
    answer = await book.round_trip(asking(row, version), reply(row.key, version, 1, **fields))
    assert trio.current_time() == begin_s, "the reply was held back"
    fields = read_reply(row.key, version, answer)
    assert fields.get("throttle_time_ms") == (expected_ms if row.has_throttle_time(version) else None)
    assert answer == reply(row.key, version, 1, **expected)
    if patient:
        await trio.sleep(fields["throttle_time_ms"] / 1000)
    return await follow_up_muted_s(book, begin_s)


# --- the table ---


@pytest.mark.parametrize("kafka", ["3.9.1", "4.3.1", "4.4.0"])
def test_the_table_agrees_with_kafkas_classes(kafka: str) -> None:
    """The throttle field follows the response's schema, and the client waits as in `shouldClientThrottle`."""
    compared = 0
    for row, version, has_field, waits in _as_kafka_has_it(kafka):
        expected = row.client_waits(version) if kafka == "4.4.0" else row.client_waited(version)
        assert (has_field, waits) == (row.has_throttle_time(version), expected), (row.name, version)
        compared += 1
    assert compared > 250


def _as_kafka_has_it(version_of_kafka: str) -> Iterator[tuple[ApiRow, int, bool, bool]]:
    """Yield every API and version of Kafka: row, version, whether it has a throttle time, whether its client waits."""
    kafka = kafka_classes(version_of_kafka)
    protocol = "org.apache.kafka.common.protocol"
    parse = kafka.cls("org.apache.kafka.common.requests.AbstractResponse").parseResponse
    keys: Any = kafka.cls(f"{protocol}.ApiKeys")
    wrap = start_jvm().java.nio.ByteBuffer.wrap
    readable = (lambda buffer: buffer) if version_of_kafka == "3.9.1" else kafka.cls(f"{protocol}.ByteBufferAccessor")
    for api in kafka.cls("org.apache.kafka.common.message.ApiMessageType").values():
        key = int(api.apiKey())
        for version, fields in enumerate(api.responseSchemas()):
            if fields is None:  # versions that were dropped
                continue
            body = kafka.encode(api.newResponse(), version)
            response = parse(keys.forId(key), readable(wrap(body)), version)
            has_field = fields.get("throttle_time_ms") is not None
            yield EVERY_API[key], version, has_field, bool(response.shouldClientThrottle(version))


def test_the_table_ends_where_kafka_4_4_does() -> None:
    types = kafka_classes("4.4.0").cls("org.apache.kafka.common.message.ApiMessageType").values()
    unstable = True
    ranges = {
        int(api.apiKey()): range(api.lowestSupportedVersion(), api.highestSupportedVersion(unstable) + 1)
        for api in types
    }
    assert {key: versions for key, versions in ranges.items() if versions} == {
        key: row.versions for key, row in TABLE.items()
    }


def test_the_proxys_table_agrees_with_kafkas_classes() -> None:
    assert APIS.keys() == EVERY_API.keys()
    for key, row in EVERY_API.items():
        api = APIS[key]
        assert (api.name, api.controller_only, api.throttle_from) == (row.name, row.controller_only, row.throttle_from)
        assert range(api.min_version, api.max_version + 1) == row.sent_versions, row.name
        for version in range(row.versions.stop + 1):
            assert (version >= back_off_from(key)) == row.client_waits(version), (row.name, version)


# --- the proxy ---


async def check_the_throttle(row: ApiRow, version: int, stage: Stage) -> None:
    """The reply differs only in its throttle time and is sent at once; the next request waits for 5 s.

    The longer of the proxy's and the broker's throttle times applies. A client that waits by itself, as Java's does, is
    unmuted when it sends again.
    """
    where = (row.name, version, stage)
    throttler = Throttler(stage)
    async with open_book(plugins={"throttler": throttler}) as book:
        assert await throttled_s(book, row, version, broker_ms=0) == approx(5), where
        assert throttler.asked == [(row.key, version), (ApiKey.HEARTBEAT, 4)], where
        if row.has_throttle_time(version):
            assert await throttled_s(book, row, version, broker_ms=1000) == approx(5), where
            assert await throttled_s(book, row, version, broker_ms=9000) == approx(9), where
        if row.client_waits(version):
            assert await throttled_s(book, row, version, broker_ms=0, patient=True) == approx(5), where


@pytest.mark.parametrize("stage", Stage)
async def test_a_throttled_client_is_muted_and_gets_a_throttle_time_if_the_version_has_one(
    autojump_clock: MockClock, stage: Stage, rng: random.Random
) -> None:
    for row, version in sampled([EVERY_API[key] for key in sorted(EVERY_API.keys() - AUTHENTICATING)], rng):
        await check_the_throttle(row, version, stage)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("key", sorted(EVERY_API.keys() - AUTHENTICATING))
async def test_the_same_in_every_version(autojump_clock: MockClock, key: int, stage: Stage) -> None:
    for version in EVERY_API[key].sent_versions:
        await check_the_throttle(EVERY_API[key], version, stage)


@pytest.mark.parametrize("key", AUTHENTICATING)
async def test_an_authenticating_client_gets_the_brokers_reply(autojump_clock: MockClock, key: int) -> None:
    row = EVERY_API[key]
    assert row.throttle_from is None
    for version in row.sent_versions:
        async with open_book(plugins={"throttler": Throttler(Stage.REQUEST)}) as book:
            begin_s = trio.current_time()
            answer = reply(key, version, 1, **filled(f"{row.name}Response", version))
            assert await book.round_trip(asking(row, version), answer) == answer
            assert trio.current_time() == begin_s


async def test_produce_without_acks_has_no_reply_and_mutes_in_every_version(autojump_clock: MockClock) -> None:
    row = TABLE[ApiKey.PRODUCE]
    for version in row.sent_versions:
        async with open_book(plugins={"throttler": Throttler(Stage.REQUEST)}) as book:
            begin_s = trio.current_time()
            silent = request(row.key, version, 1, **(filled("ProduceRequest", version) | {"acks": 0}))
            await book.client.sends(silent)
            await book.upstream.wait_for_dial(1)
            assert await book.broker.receives() == silent
            assert trio.current_time() == begin_s
            assert await follow_up_muted_s(book, begin_s) == approx(5)
            assert book.client.receives_nothing()


@pytest.mark.parametrize("version", TABLE[ApiKey.API_VERSIONS].sent_versions)
async def test_an_older_brokers_refusal_of_api_versions_mutes(autojump_clock: MockClock, version: int) -> None:
    """UNSUPPORTED_VERSION has the format of version 0 (KIP-511), which has no throttle time."""
    async with open_book(plugins={"throttler": Throttler(Stage.REPLY)}) as book:
        row = {"api_key": ApiKey.API_VERSIONS, "min_version": 0, "max_version": 2}
        body = encode("ApiVersionsResponse", 0, {"error_code": 35, "api_keys": [row]})
        answer = framed((1).to_bytes(4, "big") + body)
        begin_s = trio.current_time()
        assert await book.round_trip(request(ApiKey.API_VERSIONS, version, 1), answer) == answer
        assert await follow_up_muted_s(book, begin_s) == approx(5)


# --- refused requests: the proxy's own replies ---


async def check_the_refusal(row: ApiRow, version: int) -> None:
    """The proxy answers itself, with a throttle time if the version has the field, and mutes."""
    where = (row.name, version)
    refuser = Throttler(Stage.REQUEST, Refuse(error_code=POLICY_VIOLATION, throttle_ms=THROTTLE_MS))
    async with open_book(plugins={"refuser": refuser}) as book:
        begin_s = trio.current_time()
        await book.client.sends(asking(row, version))
        if row.controller_only or version in UNREFUSABLE.get(row.key, ()):
            await book.client.receives_the_end()
            return
        throttle_ms = read_reply(row.key, version, await book.client.receives()).get("throttle_time_ms")
        assert throttle_ms == (THROTTLE_MS if row.has_throttle_time(version) else None), where
        await book.client.sends(request(ApiKey.HEARTBEAT, 4, FOLLOW_UP))
        await book.upstream.wait_for_dial(1)
        assert trio.current_time() - begin_s == approx(5), where


async def test_a_refused_client_is_muted_and_gets_a_throttle_time_if_the_version_has_one(
    autojump_clock: MockClock, rng: random.Random
) -> None:
    for row, version in sampled([TABLE[key] for key in sorted(TABLE.keys() - AUTHENTICATING)], rng):
        await check_the_refusal(row, version)


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", sorted(TABLE.keys() - AUTHENTICATING))
async def test_refusals_in_every_version(autojump_clock: MockClock, key: int) -> None:
    for version in TABLE[key].sent_versions:
        await check_the_refusal(TABLE[key], version)


# --- what the proxy does not know ---


@pytest.mark.exhaustive
@pytest.mark.parametrize("stage", Stage)
async def test_a_version_of_the_future_passes_unread_and_mutes(autojump_clock: MockClock, stage: Stage) -> None:
    """A request that needs no reading or editing. The offset of its throttle time is unknown, so it is not set."""
    rows = [row for key, row in TABLE.items() if not APIS[key].must_know and key not in AUTHENTICATING]
    assert len(rows) > 60
    for row in rows:
        async with open_book(plugins={"throttler": Throttler(stage)}) as book:
            header = encode(
                "ResponseHeader", response_header_version(row.key, row.versions.stop), {"correlation_id": 1}
            )
            answer = framed(header + b"likewise" * 9)
            begin_s = trio.current_time()
            assert await book.round_trip(from_the_future(row), answer) == answer, row.name
            assert await follow_up_muted_s(book, begin_s) == approx(5), row.name


async def test_a_version_of_the_future_that_must_be_read_ends_the_connection(autojump_clock: MockClock) -> None:
    """The version was not offered. ApiVersions is an exception, see below."""
    rows = [row for key, row in TABLE.items() if APIS[key].must_know and key != ApiKey.API_VERSIONS]
    assert len(rows) > 10
    for row in rows:
        throttler = Throttler(Stage.REQUEST)
        async with open_book(plugins={"throttler": throttler}) as book:
            await book.client.sends(from_the_future(row))
            await book.client.receives_the_end()
            assert (book.upstream.dialled, throttler.asked) == ([], []), row.name


async def test_the_proxys_own_answer_to_api_versions_of_the_future_mutes(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"throttler": Throttler(Stage.REQUEST)}) as book:
        begin_s = trio.current_time()
        await book.client.sends(from_the_future(TABLE[ApiKey.API_VERSIONS]))
        assert read_reply(ApiKey.API_VERSIONS, 0, await book.client.receives())["error_code"] == 35
        assert trio.current_time() == begin_s
        await book.client.sends(request(ApiKey.HEARTBEAT, 4, FOLLOW_UP))
        await book.upstream.wait_for_dial(1)
        assert trio.current_time() - begin_s == approx(5)


@pytest.mark.parametrize("key", NOT_FORWARDED)
async def test_a_key_that_kafka_does_not_have_ends_the_connection(autojump_clock: MockClock, key: int) -> None:
    assert key not in EVERY_API
    throttler = Throttler(Stage.REQUEST)
    async with open_book(plugins={"throttler": throttler}) as book:
        await book.client.sends(framed(key.to_bytes(2, "big", signed=True) + bytes(30)))
        await book.client.receives_the_end()
        assert (book.upstream.dialled, throttler.asked) == ([], [])
