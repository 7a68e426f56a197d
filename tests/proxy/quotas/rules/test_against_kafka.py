"""The client-quota APIs as the proxy's functions answer them, and as a broker does: the same bytes.

The order of entries, and of the values of one entity, is that of Kafka's hash maps, and is not compared.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.proxy.wire.apis import request_header_version, response_header_version
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.entities import ANONYMOUS
from testbed.kafka.cluster import KafkaCluster
from tests.clients.wire_connection import CORRELATION_ID, WireConnection
from tests.proxy.quotas.rules.quota_model import QuotaModel
from tests.proxy.quotas.rules.quota_requests import (
    CONNECTIONS,
    EXACT,
    MUTATIONS,
    NAMES,
    PERCENT,
    PRODUCE,
    Request,
    alter,
    client_cases,
    describe,
    entity_cases,
    filter_cases,
    matching_entities,
    operation_cases,
    random_alterations,
    value_cases,
)
from tests.shared_cluster import NOT_FENCED

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

pytestmark = pytest.mark.exhaustive  # brokers of its own; in `make test`, `tests/clients/client_quotas` compares

RANDOM: Final = 150
DEADLINE_S: Final = 30.0
MARKER: Final = "marker"
NO_THROTTLE: Final = bytes(4)
"""The throttle time, which the proxy sets later. A broker enforces the quotas at once, on this client, too."""
CLIENT_ID: Final = "raw"
NOT_THROTTLED: Final = alter(([("user", ANONYMOUS), ("client-id", CLIENT_ID)], [(PERCENT, 1e9)]))
"""The most specific quota, so that no other applies to the client of these tests."""


class Both:
    """A broker, and the model of what the proxy answers, with the same requests so far."""

    def __init__(self, connection: WireConnection) -> None:
        self._connection = connection
        self._model = QuotaModel()
        self._markers = 0

    def ask(self, request: Request) -> tuple[bytes, bytes]:
        """Return the bodies of the broker's reply and of ours."""
        return self.broker(request), self._model.answer(*request)

    def broker(self, request: Request) -> bytes:
        api_key, version, _ = request
        reply = self._connection.exchange(frame(request))
        header = CORRELATION_ID.to_bytes(4, "big") + (b"\0" if response_header_version(api_key, version) else b"")
        assert reply.startswith(header)
        return NO_THROTTLE + reply.removeprefix(header)[len(NO_THROTTLE) :]

    def compare(self, requests: Iterable[Request]) -> int:
        """Ask both, and return the number of requests. A filter is asked when the broker knows what was altered."""
        number, settled = 0, False
        for request in requests:
            if request[0] is ApiKey.DESCRIBE_CLIENT_QUOTAS and not settled:
                self.settle()
            settled = request[0] is ApiKey.DESCRIBE_CLIENT_QUOTAS
            theirs, ours = self.ask(request)
            assert same(request, theirs, ours), mismatch(request, theirs, ours)
            number += 1
        return number

    def settle(self) -> None:
        """Wait until the broker has applied everything that its controller has acknowledged."""
        self._markers += 1
        assert len(set(self.ask(alter(([("user", MARKER)], [(PRODUCE, float(self._markers))]))))) == 1
        request = describe(("user", EXACT, MARKER), strict=True)
        ours = self._model.answer(*request)
        deadline = time.monotonic() + DEADLINE_S
        while self.broker(request) != ours:
            assert time.monotonic() < deadline, "the broker does not apply what its controller has acknowledged"


def frame(request: Request) -> bytes:
    api_key, version, body = request
    header_version = request_header_version(api_key, version)
    fields: dict[str, Any] = {"request_api_key": api_key, "request_api_version": version}
    fields |= {"correlation_id": CORRELATION_ID, "client_id": CLIENT_ID}
    content = encode("RequestHeader", header_version, fields) + body
    return len(content).to_bytes(4, "big") + content


def same(request: Request, theirs: bytes, ours: bytes) -> bool:
    return theirs == ours or in_order(request, theirs) == in_order(request, ours)


def in_order(request: Request, body: bytes) -> bytes:
    """A response whose entries are sorted, and the values of each entry."""
    api_key, version, _ = request
    name = f"{API_NAMES[api_key]}Response"
    message = decode(name, version, body)
    for row in message["entries"] or ():
        row.get("values", []).sort(key=lambda value: value["key"])
    if message["entries"]:
        message["entries"].sort(key=repr)
    return encode(name, version, message)


def mismatch(request: Request, theirs: bytes, ours: bytes) -> str:
    api_key, version, body = request
    name = API_NAMES[api_key]
    replies = "\n".join(str(decode(f"{name}Response", version, reply))[:2000] for reply in (theirs, ours))
    return f"{name} v{version} {str(decode(f'{name}Request', version, body))[:2000]}\n{replies}"


@pytest.fixture(
    scope="module",
    params=["4.3.1", "3.9.1"],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """A cluster of these tests alone: quotas of default entities would throttle other tests."""
    with KafkaCluster(version=request.param, config=NOT_FENCED) as cluster:
        yield cluster


@pytest.fixture
def both(cluster: KafkaCluster) -> Iterator[Both]:
    """A broker without quotas."""
    broker = cluster.broker(0)
    with WireConnection((broker.host, broker.port)) as connection:
        both = Both(connection)
        both.compare([NOT_THROTTLED])
        both.settle()
        rows = decode("DescribeClientQuotasResponse", 1, both.broker(describe()))["entries"]
        removed = [
            (
                [(part["entity_type"], part["entity_name"]) for part in row["entity"]],
                [(value["key"], None) for value in row["values"]],
            )
            for row in rows
        ]
        both.broker(alter(*removed))
        both.broker(NOT_THROTTLED)
        both.settle()
        yield both


def test_alterations(both: Both) -> None:
    assert both.compare(entity_cases()) > 200
    both.compare([describe(), describe(version=0)])


def test_values(both: Both) -> None:
    assert both.compare(value_cases()) > 400
    both.compare([describe()])


def test_operations_and_clients(both: Both) -> None:
    assert both.compare(operation_cases()) > 100
    both.compare(client_cases())
    both.compare([describe()])


def test_random_alterations(both: Both, rng: random.Random) -> None:
    both.compare(random_alterations(rng, RANDOM))
    both.compare([describe()])


def test_filters(both: Both) -> None:
    both.compare([matching_entities(), *(alter(([("user", name)], [(PRODUCE, 1.0)])) for name in NAMES)])
    assert both.compare(filter_cases()) > 1000


def test_names_that_are_not_utf8(both: Both) -> None:
    """Both read replacement characters."""
    for name in (b"\xff\xfeab", b"\xf0\x9f\x98x", b"\xc0\x80ab", b"ab\xf0\x9f", b"\xf4\x90\x80\x80"):
        for version in (0, 1):
            api_key, _, body = alter(([("user", "@@@@")], [(PRODUCE, 5.0)]), version=version)
            both.compare([(api_key, version, body.replace(b"@" * 4, name))])
    both.compare([describe()])


def test_an_encoded_surrogate(both: Both) -> None:
    """Java replaces its three bytes by one character, as Python's decoder replaces each."""
    api_key, version, body = alter(([("user", "@@@@")], [(PRODUCE, 5.0)]))
    (theirs,), (ours,) = (
        decode("AlterClientQuotasResponse", 1, reply)["entries"]
        for reply in both.ask((api_key, version, body.replace(b"@@@", b"\xed\xa0\x80")))
    )
    assert theirs["entity"][0]["entity_name"] == "\ufffd@"
    assert ours["entity"][0]["entity_name"] == "\ufffd\ufffd\ufffd@"


def test_the_first_of_two_equal_entities_is_altered(both: Both) -> None:
    """Although the answer for it is an error."""
    theirs, ours = both.ask(alter(([("user", "a")], [(PRODUCE, 1.0)]), ([("user", "a")], [(PRODUCE, 2.0)])))
    assert theirs == ours
    assert b"Ignoring duplicate entity ClientQuotaEntity(entries={user=a})" in theirs
    both.settle()
    theirs, ours = both.ask(describe(("user", EXACT, "a")))
    assert theirs == ours
    (row,) = decode("DescribeClientQuotasResponse", 1, theirs)["entries"]
    assert row["values"] == [{"key": PRODUCE, "value": 1.0}]
    # Two types of one bucket of Java's hash map are in the order in which they came.
    parts = [("", None), ("client-id", "a")]
    theirs, ours = both.ask(alter((parts, []), (parts[::-1], [])))
    assert theirs == ours


def test_too_many_changes(both: Both) -> None:
    """A request for 10,001 changes is refused."""
    entries = [([("user", f"v{number}")], [(PRODUCE, 1.0), (PERCENT, 1.0)]) for number in range(5000)]
    requests = [alter(*entries, validate_only=True), alter(*entries, ([("ip", None)], [(CONNECTIONS, 1.0)]))]
    for request, code in zip(requests, (0, 44), strict=True):
        theirs, ours = both.ask(request)
        assert same(request, theirs, ours)
        assert {row["error_code"] for row in decode("AlterClientQuotasResponse", 1, ours)["entries"]} == {code}


def test_changes_that_count(both: Both) -> None:
    """10,000 changes are made, 10,001 are refused; what changes nothing does not count."""
    entries = [([("user", f"u{number}")], [(PRODUCE, 1.0)]) for number in range(10_001)]
    more = [([("user", f"v{number}")], [(PRODUCE, 1.0), (PERCENT, 1.0)]) for number in range(5001)]
    both.compare([alter(*entries[:10_000]), alter(*entries), alter(*more), alter(*more, validate_only=True)])
    removals = [(entity, [(PRODUCE, None)]) for entity, _ in entries]
    both.compare([alter(*removals), alter(*removals[:5000]), alter(*removals[5000:])])


DIFFERENCES: Final = [
    # a value that is no limit: NaN for every key, infinity for keys without a largest value
    *(
        (alter(([("user", "d")], [(key, math.nan)])), f"Quota {key} must be a finite number")
        for key in (PRODUCE, PERCENT)
    ),
    (alter(([("ip", "::9")], [(CONNECTIONS, math.nan)])), f"Quota {CONNECTIONS} must be a finite number"),
    (alter(([("user", "d")], [(MUTATIONS, math.inf)])), f"Quota {MUTATIONS} must be a finite number"),
    # what InetAddress.getByName takes besides the usual forms of an address; it may ask a name server
    *(
        (alter(([("ip", name)], [(CONNECTIONS, 7.0)])), f"{name} is not a valid IP or resolvable host.")
        for name in ("localhost", "127.1", "2130706433", "010.0.0.1", "[::1]", "fe80::1%1")
    ),
]


def test_what_a_broker_accepts_and_the_proxy_refuses(both: Both) -> None:
    for request, message in DIFFERENCES:
        (theirs,), (ours,) = (decode("AlterClientQuotasResponse", 1, reply)["entries"] for reply in both.ask(request))
        assert (theirs["error_code"], theirs["error_message"]) == (0, None), message
        assert (ours["error_code"], ours["error_message"]) == (42, message)
        assert ours["entity"] == theirs["entity"]


def test_what_the_proxy_accepts_and_a_broker_refuses(both: Both) -> None:
    """``producer_ids_rate`` (KIP-936): for users only, with the error that brokers have for a key of other entities."""
    key = "producer_ids_rate"
    (theirs,), (ours,) = (
        decode("AlterClientQuotasResponse", 1, reply)["entries"]
        for reply in both.ask(alter(([("user", "ids")], [(key, 5.0)])))
    )
    assert (theirs["error_code"], ours["error_code"]) == (42, 0)
    both.compare(
        [
            alter(([("client-id", "ids")], [(key, 5.0)])),
            alter(([("user", "ids"), ("client-id", "ids")], [(key, 5.0)])),
            alter(([("ip", "::1")], [(key, 5.0)])),
        ]
    )


def test_messages_that_are_too_long(both: Both) -> None:
    """A broker fails to write the message, and answers UNKNOWN_SERVER_ERROR for all entries; ours is shortened."""
    key = "k" * 32_760
    theirs, ours = (
        decode("AlterClientQuotasResponse", 1, reply)["entries"]
        for reply in both.ask(alter(([("user", "a")], [(key, 1.0)]), ([("user", "b")], [(PRODUCE, 1.0)])))
    )
    assert [row["error_code"] for row in theirs] == [-1, -1]
    assert [row["error_code"] for row in ours] == [42, 0]
    assert ours[0]["error_message"] == f"Invalid configuration key {key}"[:32_767]
