"""Write the seeds of the corpus: ``python -m tests.fuzzing.seeds`` (a minute, and a real broker).

Messages are recorded between real clients (librdkafka, kafka-python) and a broker, the shortest ones of each API,
version and direction. Other targets get typical texts. Lines that begin with ``found`` are kept.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import warnings
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from headrace.config.editing import sample_text
from headrace.proxy.wire.apis import APIS, must_rewrite, request_header_version, response_header_version
from headrace.proxy.wire.endpoints import rewrite_endpoints
from headrace.proxy.wire.heads import read_request_head
from headrace.proxy.wire.walks.produce import LAST_VERSION
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from testbed.kafka.cluster import KafkaCluster
from tests.fuzzing.running import corpus, write_corpus
from tests.fuzzing.targets import TARGETS
from tests.fuzzing.targets.messages import MUTATIONS, NAMES, REWRITTEN
from tests.fuzzing.targets.native import APIS as RELAYED
from tests.fuzzing.typical_inputs import TYPICAL, native_reply, native_request
from tests.fuzzing.wire_messages import API_KEYS, RAW, framed
from tests.proxy.quotas.rules.quota_requests import ANY, CONNECTIONS, CONSUME, DEFAULT, EXACT, PRODUCE, alter, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST: Final = 900
"""Length in bytes of the longest message that becomes a seed."""
DEADLINE_S: Final = 20

Exchange = tuple[int, int, bytes, bytes]
"""API key, version, request and reply; whole frames."""


class Recorder:
    """Forwards connections to a broker, records what passes, and puts its own address into replies."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.broker_port = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            broker = socket.create_connection(("127.0.0.1", self.broker_port))
            waiting: dict[int, tuple[int, int, bytes]] = {}
            threading.Thread(target=self._requests, args=(client, broker, waiting), daemon=True).start()
            threading.Thread(target=self._replies, args=(broker, client, waiting), daemon=True).start()

    def _requests(
        self, source: socket.socket, target: socket.socket, waiting: dict[int, tuple[int, int, bytes]]
    ) -> None:
        for frame in _frames(source):
            key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
            waiting[correlation_id] = key, version, frame
            target.sendall(frame)

    def _replies(
        self, source: socket.socket, target: socket.socket, waiting: dict[int, tuple[int, int, bytes]]
    ) -> None:
        for frame in _frames(source):
            key, version, request = waiting.pop(int.from_bytes(frame[4:8], "big"))
            self.exchanges.append((key, version, request, frame))
            if must_rewrite(key, version) and key != ApiKey.API_VERSIONS:
                body_at = 8 + response_header_version(key, version)
                body = rewrite_endpoints(key, version, frame[body_at:], lambda _node_id: ("127.0.0.1", self.port)).body
                frame = framed(frame[4:body_at] + body)
            target.sendall(frame)


def _frames(source: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError), source.makefile("rb") as stream:
        while len(size := stream.read(4)) == 4:
            yield size + stream.read(int.from_bytes(size, "big"))


def _use_librdkafka(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic("topic-1", 2), NewTopic("topic-2", 1)]).values():
        future.result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "tx-1", "compression.type": "lz4"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce("topic-1", b"value", b"key")
    producer.commit_transaction(DEADLINE_S)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "group-1", "auto.offset.reset": "earliest"})
    consumer.subscribe(["topic-1"])
    for _ in range(20):
        if consumer.poll(1) is not None:
            break
    consumer.commit(asynchronous=False)
    futures = [
        *admin.create_partitions([NewPartitions("topic-2", 3)]).values(),
        *admin.describe_configs([ConfigResource(ResourceType.TOPIC, "topic-1")]).values(),
        admin.describe_cluster(),
        *admin.describe_consumer_groups(["group-1"]).values(),
        *admin.list_offsets({_partition(): OffsetSpec.latest()}).values(),
    ]
    for future in futures:
        future.result(DEADLINE_S)
    consumer.close()
    for future in admin.delete_topics(["topic-2"]).values():
        future.result(DEADLINE_S)


def _partition() -> object:
    from confluent_kafka import TopicPartition

    return TopicPartition("topic-1", 0)


def _use_kafka_python(servers: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaConsumer, KafkaProducer
    producer = KafkaProducer(bootstrap_servers=servers, client_id="python")
    producer.send("topic-1", b"value").get(DEADLINE_S)
    producer.close()
    consumer = KafkaConsumer("topic-1", bootstrap_servers=servers, group_id="group-2", auto_offset_reset="earliest")
    consumer.poll(timeout_ms=5000)
    consumer.close()


def record() -> list[Exchange]:
    """Return the shortest exchange of each API and version that clients have with a broker."""
    recorder = Recorder()
    with KafkaCluster() as cluster:
        recorder.broker_port = cluster.brokers[0].port
        servers = f"127.0.0.1:{recorder.port}"
        _use_librdkafka(servers)
        _use_kafka_python(servers)
    shortest: dict[tuple[int, int], Exchange] = {}
    for exchange in recorder.exchanges:
        known = shortest.get(exchange[:2])
        if (known is None or len(exchange[2] + exchange[3]) < len(known[2] + known[3])) and exchange[0] in APIS:
            shortest[exchange[:2]] = exchange
    return [shortest[name] for name in sorted(shortest)]


def message_seeds(exchanges: list[Exchange]) -> dict[str, dict[str, bytes]]:
    """Return the inputs of the targets that read Kafka's messages, which contain recorded messages."""
    found: dict[str, dict[str, bytes]] = {name: {} for name in TARGETS}
    for key, version, request, reply in exchanges:
        head = read_request_head(bytearray(request), 0, len(request), 2**31 - 1)
        if head is None:
            continue
        name, raw = API_NAMES[key], bytes([RAW])
        label = f"seed {name}-v{version}"
        asked, answered = request[head.body_at :], reply[8 + response_header_version(key, version) :]
        by_key, newest = bytes([API_KEYS.index(key)]), bytes([APIS[key].max_version - version])
        produce = bytes([LAST_VERSION - version]) if key == ApiKey.PRODUCE else b""
        inputs = {
            "frames": bytes(5) + request,
            "request_heads": bytes(6) + b"\1" + request,
            "reply_heads": by_key + newest + bytes(6) + reply,
            "refusals": by_key + newest + b"\0" + raw + asked,
            "relays": _conversation(key, version, head.client_id, asked, answered),
        }
        for kind, body in (("Request", asked), ("Response", answered)):
            place = NAMES.index(f"{name}{kind}")
            number = bytes([place]) if len(NAMES) <= 256 else struct.pack(">H", place)
            found["codec"][f"{label}-{kind}"] = number + newest + b"\xff" + raw + body
        if key in REWRITTEN:
            inputs["rewriting"] = bytes([REWRITTEN.index(key)]) + newest + b"\2\x1f" + raw + answered
        if key == ApiKey.API_VERSIONS:
            inputs["offered_versions"] = newest + b"\1" + raw + answered
        if key == ApiKey.PRODUCE:
            inputs |= {"produce_walk": produce + b"\0" + raw + asked, "produce_reply": produce + raw + answered}
        if key == ApiKey.FETCH:
            inputs["fetched_topics_walk"] = bytes([18 - version, 0, RAW]) + answered
            inputs |= {"fetch_walk": bytes([version - 16, 0, RAW]) + answered} if version >= 16 else {}
        inputs |= _relayed_natively(key, newest, asked, answered)
        if key in MUTATIONS:
            inputs["mutations"] = bytes([MUTATIONS.index(key)]) + newest + b"\1" + raw + asked
        if key == ApiKey.METADATA:
            inputs["lookups"] = b"\1\0" + newest + raw + asked
        for target, content in inputs.items():
            if len(content) <= LONGEST or target == "relays":
                found[target][label] = content
    return found


def _relayed_natively(key: int, newest: bytes, asked: bytes, answered: bytes) -> dict[str, bytes]:
    if key not in RELAYED:
        return {}
    return {
        "native_requests": native_request(key, newest, asked),
        "native_replies": native_reply(key, newest, answered),
    }


def _conversation(key: int, version: int, client_id: str, asked: bytes, answered: bytes) -> bytes:
    """Return an input of ``relays`` with one exchange; long messages are cut off."""
    newest = APIS[key].max_version - version
    asked = asked[:598]
    raw = bytes([RAW]) + asked
    header = bytes([2]) + (b"\0" if request_header_version(key, version) == 2 else b"")
    request = bytes([API_KEYS.index(key), newest]) + struct.pack(">H", len(raw)) + raw + header
    recipe = bytes([0, RAW]) + answered[:597]
    return bytes([200, 0, 0, 0, 0, 0]) + request + struct.pack(">H", len(recipe)) + recipe


ALTERATIONS: Final = (
    *(
        alter(([("user", "alice"), ("client-id", None)], [(PRODUCE, 1024.0), (CONSUME, None)]), version=version)
        for version in (0, 1)
    ),
    alter(([("ip", "::1")], [(CONNECTIONS, 7.0)]), ([("ip", "::1")], [(CONNECTIONS, 7.0)])),
    alter(([("user", "a")], [(PRODUCE, 0.5), (PRODUCE, 1.0)]), validate_only=True),
)
FILTERS: Final = (
    *(describe(("user", EXACT, "t"), ("client-id", ANY, None), version=version, strict=True) for version in (0, 1)),
    describe(("ip", DEFAULT, None)),
    describe(("user", 3, None)),
    describe(),
)

TEXTS: Final[dict[str, dict[str, bytes]]] = {
    "configuration": {"seed sample": b"\1" + sample_text().encode()[:1500]},
    "admin_http": {
        "seed get": b"\0\1GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "seed put": b"\0\1PUT /enforcement HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b'Content-Length: 17\r\n\r\n{"enabled": true}',
        "seed chunked": b"\0\1PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    },
    "cost_file": {"seed costs": b"\1[costs]\n0 = { base_ms = 0.068, per_kib_ms = 0.0015 }\n"},
    "price_sheet": {
        "seed prices": b'\1currency = "EUR"\nper_gib_produced = 0.05\n[teams.payments]\ndiscount_percent = 15\n'
    },
    "budget_file": {
        "seed budgets": b'\1currency = "EUR"\n[teams.payments]\namount = 500\nalert_percent = [50, 80, 100]\n'
    },
    "trace_lines": {
        "seed event": b'\1{"t": 0, "user": "alice", "client_id": "c", "op": "produce", "amount": 100}',
        "seed change": b'\1{"t": 1, "alter": {"entity": {"user": "a"}, "set": {"producer_byte_rate": 5}}}',
        "seed window": b'\1{"window": {"samples": 9, "seconds": 1}, "controller_window": {"samples": 9, "seconds": 1}}',
    },
    "sasl_names": {
        "seed plain": b"\1\0\x0c\0alice\0secret",
        "seed scram": b"\1\0\x0cn,,n=alice,r=abc",
        "seed oauth": b"\1\0\x50n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.\x01\x01",
    },
    "alterations": {
        f"seed AlterClientQuotas-v{version}-{number}": bytes([1 - version, RAW]) + body
        for number, (_, version, body) in enumerate(ALTERATIONS)
    },
    "quota_filters": {
        f"seed DescribeClientQuotas-v{version}-{number}": bytes([1 - version, RAW]) + body
        for number, (_, version, body) in enumerate(FILTERS)
    },
    **TYPICAL,
}


def main() -> None:
    """Write the corpus."""
    found = message_seeds(record())
    for name in TARGETS:
        kept = {label: content for label, content in corpus(name).items() if label.startswith("found ")}
        inputs = kept | found[name] | TEXTS.get(name, {})
        if inputs:
            write_corpus(name, inputs)
            print(f"{name}: {len(inputs)} inputs")  # noqa: T201


if __name__ == "__main__":
    main()
