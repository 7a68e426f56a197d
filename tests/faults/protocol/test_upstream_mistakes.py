"""What a broker can do wrong: the client that asked loses its connection, with one log line, and no other client does.

A fake broker lies here, since a real one cannot be made to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.fake_broker import FakeBroker, FullBacklog, reply
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, line_of, lines_of
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.faults.fake_broker import Asked, Conversation

MAX_FRAME_BYTES = 1 << 20
UPSTREAM_ERRORS = 'headrace_errors_total{fault="upstream"}'
LARGE = bytes(900_000)
"""Enough to be moved by splice, and more than sockets buffer at once."""

REFUSING, HANGING = 1, 2
"""Node ids of brokers that cannot be connected to."""

CONFIG = f"""
[upstream]
connect_timeout = "2s"

[limits]
max_frame_bytes = {MAX_FRAME_BYTES}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request, and how the log calls it."""

    api_key: int
    version: int
    body: bytes
    request: str


HEARTBEAT = Question(api_key=messages.HEARTBEAT, version=1, body=messages.heartbeat_body(), request="Heartbeat v1 #1")
"""Its reply passes as it is, but for the throttle time."""
METADATA = Question(api_key=messages.METADATA, version=2, body=messages.NO_TOPICS, request="Metadata v2 #1")
"""Its reply is read whole and rewritten."""
FETCH_16 = Question(
    api_key=messages.FETCH,
    version=16,
    body=b"\x00" + struct.pack(">iiibii", 0, 0, 1 << 20, 0, 0, -1) + b"\x01\x01\x01\x00",
    request="Fetch v16 #1",
)
"""Its reply is walked, for leader hints behind the records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """The broker's action instead of a reply, and the expected log line."""

    behaviour: Callable[[Conversation, Asked], None]
    reason: str
    question: Question = HEARTBEAT


def sends(data: Callable[[Asked], bytes]) -> Callable[[Conversation, Asked], None]:
    """Send bytes, then wait for the proxy to close."""

    def behaviour(conversation: Conversation, asked: Asked) -> None:
        conversation.send(data(asked))
        conversation.wait_for_end()

    return behaviour


def breaks_off(data: Callable[[Asked], bytes]) -> Callable[[Conversation, Asked], None]:
    """Send bytes, then close."""

    def behaviour(conversation: Conversation, asked: Asked) -> None:
        conversation.send(data(asked))

    return behaviour


def resets(conversation: Conversation, _asked: Asked) -> None:
    conversation.reset()


def resets_in_a_large_reply(conversation: Conversation, asked: Asked) -> None:
    conversation.send(reply(asked, LARGE)[:500_000])
    conversation.reset()


def answers_twice(asked: Asked) -> bytes:
    return reply(asked, struct.pack(">ih", 0, 0)) * 2


def answers_another(asked: Asked) -> bytes:
    return messages.frame(struct.pack(">iih", asked.correlation_id + 1, 0, 0))


def announces(size: int) -> Callable[[Asked], bytes]:
    return lambda asked: struct.pack(">ii", size, asked.correlation_id)


def answers(body: bytes) -> Callable[[Asked], bytes]:
    return lambda asked: reply(asked, body)


BROKE_OFF = "upstream: the broker closed; requests in flight: 1"

MISTAKES = {
    "garbage": Mistake(behaviour=sends(lambda _: b"\xde\xad\xbe\xef" * 16), reason="a frame of -559038737 bytes"),
    "not Kafka": Mistake(
        behaviour=sends(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        reason="speaks HTTP instead of Kafka's protocol; check upstream.bootstrap_servers",
    ),
    "TLS": Mistake(
        behaviour=sends(lambda _: bytes.fromhex("15030300020250")),
        reason="speaks TLS, but the proxy connects in plaintext; set upstream.tls.enabled = true",
    ),
    "size 0": Mistake(behaviour=sends(announces(0)), reason="a frame of 0 bytes is shorter"),
    "size -1": Mistake(behaviour=sends(announces(-1)), reason="a frame of -1 bytes is shorter"),
    "size max + 1": Mistake(
        behaviour=sends(announces(MAX_FRAME_BYTES + 1)),
        reason=f"longer than limits.max_frame_bytes = {MAX_FRAME_BYTES}",
    ),
    "wrong correlation id": Mistake(
        behaviour=sends(answers_another), reason="the broker answered request 2 instead of request 1"
    ),
    "a reply too many": Mistake(behaviour=sends(answers_twice), reason="the broker sent a reply without a request"),
    "closes": Mistake(behaviour=breaks_off(lambda _: b""), reason=BROKE_OFF),
    "resets": Mistake(behaviour=resets, reason="upstream: connection reset"),
    "closes in a head": Mistake(behaviour=breaks_off(lambda asked: reply(asked, b"")[:6]), reason=BROKE_OFF),
    "closes in a small reply": Mistake(
        behaviour=breaks_off(lambda asked: reply(asked, bytes(1000))[:500]), reason="bytes missing"
    ),
    "closes in a large reply": Mistake(
        behaviour=breaks_off(lambda asked: reply(asked, LARGE)[:-1000]), reason="1000 bytes missing"
    ),
    "resets in a large reply": Mistake(behaviour=resets_in_a_large_reply, reason="upstream: connection reset"),
    "closes in a reply that is read whole": Mistake(
        behaviour=breaks_off(lambda asked: reply(asked, bytes(1000))[:500]), reason="bytes missing", question=METADATA
    ),
    "closes in a reply that is walked": Mistake(
        behaviour=breaks_off(lambda asked: reply(asked, bytes(1000))[:20]), reason="bytes missing", question=FETCH_16
    ),
    "a reply without its throttle time": Mistake(
        behaviour=sends(answers(b"\0")), reason="a Heartbeat reply ends before its throttle time"
    ),
    "Metadata that is none": Mistake(
        behaviour=sends(answers(b"\x7f" * 100)), reason="MetadataResponse v2", question=METADATA
    ),
    "Metadata that is cut short": Mistake(
        behaviour=sends(answers(b"\0\0")), reason="MetadataResponse v2", question=METADATA
    ),
    "Fetch that is none": Mistake(behaviour=sends(answers(b"\0" + b"\xff" * 99)), reason="", question=FETCH_16),
}


def does_not_answer(conversation: Conversation, _asked: Asked) -> None:
    conversation.wait_for_end()


def answers_and_closes(conversation: Conversation, asked: Asked) -> None:
    conversation.reply(asked, conversation.broker.usual_reply(asked))


def answers_drop_by_drop(conversation: Conversation, asked: Asked) -> None:
    """Three more requests follow the first; each byte of a reply is a packet of its own."""
    for turn in range(4):
        for byte in reply(asked, conversation.broker.usual_reply(asked)):
            conversation.send(bytes([byte]))
        if turn < 3:
            asked = conversation.next()
    conversation.wait_for_end()


BEHAVIOURS = {
    **{name: mistake.behaviour for name, mistake in MISTAKES.items()},
    "silent": does_not_answer,
    "tired": answers_and_closes,
    "dripping": answers_drop_by_drop,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with (
        reserve_ports(1) as closed,
        FullBacklog() as hanging,
        FakeBroker(BEHAVIOURS, others={REFUSING: closed.first, HANGING: hanging.port}) as fake,
    ):
        yield fake


@pytest.fixture(scope="module")
def proxy(broker: FakeBroker) -> Iterator[ProxyProcess]:
    """Run with debug logs, which include clients that close their connections."""
    with ProxyProcess(broker.address, config=CONFIG, arguments=(*JSON_LOG, "--log-level", "debug")) as process:
        process.wait_for_log("brokers changed")
        yield process
        assert_no_traceback(process)


@pytest.fixture(scope="module")
def bystander(proxy: ProxyProcess) -> Iterator[Bystander]:
    with Bystander(proxy.port) as watcher:
        yield watcher


@pytest.mark.parametrize("name", MISTAKES)
def test_a_brokers_mistake_ends_the_connection_of_the_client_that_asked(
    proxy: ProxyProcess, broker: FakeBroker, bystander: Bystander, name: str
) -> None:
    mistake = MISTAKES[name]
    question = mistake.question
    errors = series(proxy, UPSTREAM_ERRORS)
    with bystander.watching(), RawClient(proxy.port, client_id=name) as client:
        client.request(question.api_key, question.version, question.body)
        client.rest()
    line = line_of(proxy, client.name)
    assert line["event"] == "connection closed"
    assert line["reason"].startswith("upstream: ")
    assert mistake.reason in line["reason"]
    assert line["request"] == question.request
    assert line["client_id"] == name
    assert line["upstream"] == broker.address
    assert series(proxy, UPSTREAM_ERRORS) == errors + 1


@pytest.mark.parametrize(
    ("node_id", "reason"),
    [(REFUSING, "connection refused"), (HANGING, "no answer within upstream.connect_timeout = 2 s")],
    ids=["refusing", "hanging"],
)
def test_a_broker_that_cannot_be_connected_to_ends_the_connection_of_its_client(
    proxy: ProxyProcess, bystander: Bystander, node_id: int, reason: str
) -> None:
    errors = series(proxy, UPSTREAM_ERRORS)
    with bystander.watching(), RawClient(proxy.broker_port(node_id)) as client:
        client.request(messages.API_VERSIONS, 0)
        assert client.rest() == b""
    line = line_of(proxy, client.name)
    assert line["reason"].startswith("upstream: cannot connect to 127.0.0.1:")
    assert reason in line["reason"]
    assert line["request"] == "ApiVersions v0 #1"
    assert series(proxy, UPSTREAM_ERRORS) == errors + 1


def test_a_broker_that_never_answers_holds_up_its_client_alone(proxy: ProxyProcess, bystander: Bystander) -> None:
    """The proxy has no time-out for replies either: how long to wait is the client's decision."""
    upstream = "headrace_upstream_connections"
    wait_until(lambda: series(proxy, upstream) == 1, "only that of the bystander is left")
    with bystander.watching(), RawClient(proxy.port, client_id="silent") as client:
        client.request(HEARTBEAT.api_key, HEARTBEAT.version, HEARTBEAT.body)
        wait_until(lambda: series(proxy, upstream) == 2, "the broker was dialled")
        bystander.wait_for_answers()
        assert lines_of(proxy, client.name) == []
    line = line_of(proxy, client.name)
    assert line["request"] == HEARTBEAT.request
    wait_until(lambda: series(proxy, upstream) == 1, "the upstream connection is closed")


def test_a_broker_that_closes_between_requests_ends_its_client_in_order(
    proxy: ProxyProcess, bystander: Bystander
) -> None:
    """Brokers close idle connections; this is not an error, so nothing is logged."""
    with bystander.watching(), RawClient(proxy.port, client_id="tired") as client:
        client.call(HEARTBEAT.api_key, HEARTBEAT.version, HEARTBEAT.body)
        assert client.rest() == b""
    assert lines_of(proxy, client.name) == []


def test_replies_byte_by_byte_are_as_good_as_any(proxy: ProxyProcess, bystander: Bystander) -> None:
    """Of all three kinds: passed on, read whole, and read whole without a throttle time."""
    with bystander.watching(), RawClient(proxy.port, client_id="dripping") as client:
        assert client.call(messages.HEARTBEAT, 1, messages.heartbeat_body()) == struct.pack(">ih", 0, 0)
        metadata = client.call(messages.METADATA, 2, messages.NO_TOPICS)
        assert struct.unpack_from(">i", metadata) == (3,)
        assert struct.pack(">i", proxy.broker_port(0)) in metadata
        assert client.call(messages.API_VERSIONS, 0)[:2] == b"\0\0"
        assert client.call(messages.HEARTBEAT, 1, messages.heartbeat_body()) == struct.pack(">ih", 0, 0)
    assert lines_of(proxy, client.name) == []


def test_clients_get_an_error_at_once_without_a_broker_and_are_served_when_one_starts() -> None:
    with (
        reserve_ports(1) as later,
        ProxyProcess(f"127.0.0.1:{later.first}", config=CONFIG, arguments=JSON_LOG) as proxy,
    ):
        with RawClient(proxy.port) as early:
            early.request(messages.API_VERSIONS, 0)
            assert early.rest() == b""
        line = line_of(proxy, early.name)
        assert "no bootstrap server can be reached" in line["reason"]
        assert "connection refused" in line["reason"]
        status, body = proxy.get("/readyz")
        assert status == 503
        assert "no bootstrap server answers" in body
        assert proxy.get("/livez")[0] == 200
        with FakeBroker({}, port=later.first):
            with RawClient(proxy.port) as client:
                assert client.call(messages.API_VERSIONS, 0)[:2] == b"\0\0"
            wait_until(lambda: proxy.get("/readyz")[0] == 200, "the proxy is ready")
        assert_no_traceback(proxy)
