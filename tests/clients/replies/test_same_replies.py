"""Read-only replies through the proxy equal those of the direct way, but for addresses and throttle times.

The same bytes are sent to a broker and to the proxy's port for that broker, in every version that both offer. Where the
proxy has nothing to rewrite, the very bytes of the reply are the same.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.errors import TestbedTimeoutError
from tests.clients.replies.read_only import LEFT_OUT, READ_ONLY, SINCE_4, Differs, SentTo
from tests.clients.replies.scene import Scene, set_up
from tests.clients.wire_connection import WireConnection, read_reply, request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.proxy.wire.messages.codec import Message
    from tests.clients.fronts import Front
    from tests.clients.peers import PeerWatch
    from tests.clients.replies.read_only import ReadOnly

ATTEMPTS = 20
API_VERSIONS = 4
"""The highest version that brokers of 3.9 and 4.3 have."""

ADDRESS = {"host", "port"}
NAMES_BROKERS = {ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER}
SOFTWARE = {"client_software_name": "a", "client_software_version": "1"}


def test_same_reply_in_every_version(front: Front, watch: PeerWatch) -> None:
    scene = set_up(front, watch)
    for api_key, how in READ_ONLY.items():
        if front.version != "3.9.1" or api_key not in SINCE_4:
            compare_every_version(front, scene, watch, api_key, how)


def compare_every_version(front: Front, scene: Scene, watch: PeerWatch, api_key: ApiKey, how: ReadOnly) -> None:
    node_id = node_of(how.sent_to, scene)
    with two_ways(front, node_id, watch) as (direct, through):
        versions = offered(direct)[api_key]
        assert offered(through)[api_key] == versions, api_key.name
        for version in versions:
            asks = [ask for ask in how.asks if ask.since <= version <= ask.until]
            assert asks, f"{api_key.name} v{version}"
            for ask in asks:
                exchange = Exchange(direct, through, api_key, version, ask.about(scene))
                check(front, how, ask.errors, exchange)


@contextlib.contextmanager
def two_ways(front: Front, node_id: int, watch: PeerWatch) -> Iterator[tuple[WireConnection, WireConnection]]:
    """A connection to a broker, and one to the proxy's port for it."""
    broker = front.cluster.broker(node_id)
    with (
        WireConnection((broker.host, broker.port)) as direct,
        WireConnection(("127.0.0.1", front.proxy.broker_port(node_id))) as through,
    ):
        watch.allow(direct.local_port)
        yield direct, through


class Exchange:
    """One request, asked of the broker, of the proxy and of the broker again."""

    def __init__(
        self, direct: WireConnection, through: WireConnection, api_key: ApiKey, version: int, message: Message
    ) -> None:
        self.api_key = api_key
        self.version = version
        self._ways = (direct, through, direct)
        self._request = request_frame(api_key, version, message)

    def ask(self) -> tuple[bytes, bytes, bytes]:
        """The three replies' bytes."""
        before, answer, after = (connection.exchange(self._request) for connection in self._ways)
        return before, answer, after

    def read(self, reply: bytes) -> Message:
        return read_reply(self.api_key, self.version, reply)

    def __str__(self) -> str:
        return f"{self.api_key.name} v{self.version}"


def check(front: Front, how: ReadOnly, errors: frozenset[int], exchange: Exchange) -> None:
    """Ask until both direct replies agree; then the reply through the proxy must be the expected one."""
    for _ in range(ATTEMPTS):
        raw = exchange.ask()
        before, answer, after = map(exchange.read, raw)
        if steady(before, how) == steady(after, how):
            break
    else:
        raise TestbedTimeoutError(f"{exchange}: the broker's answer changes all the time")
    assert {code for code in numbers(answer, "error_code") if code} == errors, f"{exchange}: {answer}"
    expected, places = shown(before, front)
    assert steady(answer, how) == steady(expected, how), str(exchange)
    check_the_rest(front, how, str(exchange), (before, answer, after))
    if exchange.api_key in NAMES_BROKERS:
        assert places > 0, f"{exchange} names no broker: {answer}"
    elif not how.differs:
        assert raw[1] == raw[0], str(exchange)


def check_the_rest(front: Front, how: ReadOnly, where: str, answers: tuple[Message, Message, Message]) -> None:
    """Look at the fields that may differ."""
    for name, differs in (how.differs or {}).items():
        before, found, after = (numbers(answer, name) for answer in answers)
        if differs is Differs.GROWS:
            bounds = zip(before, found, after, strict=True)
            assert all(low <= value <= high for low, value, high in bounds), f"{where}: {name}"
        elif differs is Differs.NAMES_A_BROKER:
            assert set(found) <= {broker.node_id for broker in front.cluster.brokers}, f"{where}: {name}"


def steady(message: Message, how: ReadOnly) -> Message:
    """``message`` without what may differ, throttle times among them."""
    names = {"throttle_time_ms", *(how.differs or {})}
    found: Message = _without(message, names)
    return found


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(each, names) for name, each in value.items() if name not in names}
    if isinstance(value, list):
        return [_without(each, names) for each in value]
    return value


def shown(message: Message, front: Front) -> tuple[Message, int]:
    """``message`` with every broker at its place at the proxy, and how many brokers it names."""
    places = 0

    def show(value: Any) -> Any:
        nonlocal places
        if isinstance(value, list):
            return [show(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {name: show(each) for name, each in value.items()}
        node_id = value.get("node_id", value.get("broker_id"))
        if node_id is not None and value.keys() >= ADDRESS:
            places += 1
            found |= {"host": "127.0.0.1", "port": front.proxy.broker_port(node_id)}
        return found

    return show(message), places


def numbers(value: Any, name: str) -> list[int]:
    """The values of all fields of that name, in their order."""
    return list(_numbers(value, name))


def _numbers(value: Any, name: str) -> Iterator[int]:
    for each in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from _numbers(each, name)
    if isinstance(value, dict) and name in value:
        yield value[name]


def offered(connection: WireConnection) -> dict[int, range]:
    """The versions of every API that the other side offers."""
    reply = connection.ask(ApiKey.API_VERSIONS, API_VERSIONS, SOFTWARE)
    return {row["api_key"]: range(row["min_version"], row["max_version"] + 1) for row in reply["api_keys"]}


def node_of(sent_to: SentTo, scene: Scene) -> int:
    """The node id of the broker to ask."""
    return {
        SentTo.ANY: 0,
        SentTo.LEADER: scene.leader,
        SentTo.GROUP_COORDINATOR: scene.group_coordinator,
        SentTo.TRANSACTION_COORDINATOR: scene.transaction_coordinator,
    }[sent_to]


def test_every_api_is_asked_or_left_out_for_a_reason(front: Front) -> None:
    with WireConnection(("127.0.0.1", front.proxy.port)) as connection:
        apis = offered(connection).keys()
    assert not READ_ONLY.keys() & LEFT_OUT.keys()
    assert apis <= READ_ONLY.keys() | LEFT_OUT.keys()
    missing = READ_ONLY.keys() - apis
    assert missing == (SINCE_4 if front.version == "3.9.1" else set())


def test_too_new_an_api_versions_request_is_answered_as_a_broker_does(front: Front, watch: PeerWatch) -> None:
    """KIP-511, which kafka-clients 4.4 rely on with their version 5."""
    request = request_frame(ApiKey.API_VERSIONS, 5, SOFTWARE)
    with two_ways(front, 0, watch) as (direct, through):
        assert through.exchange(request) == direct.exchange(request)
        assert through.ask(ApiKey.API_VERSIONS, 5, SOFTWARE)["error_code"] == 35
