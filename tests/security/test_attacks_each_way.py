"""The attacks of a client on the limits, over TLS and with each kind of login, on a real proxy and a real broker.

Each test is one of the attacks that other modules of this folder have in detail. Those on the log, the admin server,
plugins and files do not depend on how clients connect.
"""

from __future__ import annotations

import contextlib
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.certificates import Authority
from tests.clients.fronts import Front, unique
from tests.faults import messages
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.security.floods.test_stalling_clients import is_cut_off
from tests.security.quotas.test_unaccepted_clients import (
    BYTES_PER_S,
    PROMISED_BYTES,
    QUOTAS,
    REQUEST_BYTES,
    WINDOW_BYTES,
    create_topics,
    produce,
    was_throttled,
)
from tests.security.quotas.test_uncharged_requests import NO_MARKERS, WRITE_TXN_MARKERS, measured
from tests.security.topics import create_topic
from tests.security.ways import QUICK, WAYS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testbed.proxy_process import ProxyProcess
    from tests.security.ways import Way
    from tests.shared_cluster import FirstBroker

CONFIG: Final = f"""{QUOTAS}
[[quotas]]
entity = {{ client-id = "reconnects" }}
producer_byte_rate = 20000
[limits]
request_timeout = "10s"
"""
ESCAPE: Final = "\x1b[2Jforged\nline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A proxy, how its clients reach it, and a topic."""

    way: Way
    front: Front
    topic: str

    @property
    def proxy(self) -> ProxyProcess:
        return self.front.proxy

    def stranger(self, client_id: str) -> RawClient:
        """A client that has not authenticated by SASL. Where there are certificates, it has one."""
        return RawClient(self.proxy.port, client_id=client_id)

    def client(self, client_id: str) -> RawClient:
        """A client that has authenticated."""
        with contextlib.ExitStack() as stack:
            found = stack.enter_context(self.stranger(client_id))
            self.way.log_in(found)
            stack.pop_all()
        return found


@pytest.fixture(scope="module")
def topic(kafka: FirstBroker) -> str:
    return create_topic(kafka, "attacked")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else (pytest.mark.exhaustive,)) for name in WAYS],
)
def scene(
    request: pytest.FixtureRequest, kafka: FirstBroker, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    way, folder = WAYS[request.param], tmp_path_factory.mktemp("way")
    with way.proxy(kafka, Authority(folder), folder, CONFIG) as proxy:
        yield Scene(way=way, front=Front(cluster=kafka.cluster, proxy=proxy), topic=topic)
        assert "Traceback" not in proxy.log
        assert "[error" not in proxy.log


def assert_unharmed(scene: Scene, victim: str) -> None:
    """A client with the client id ``victim`` is throttled neither for bytes nor for mutations."""
    with scene.client(victim) as client:
        client.send(produce(scene.topic, victim, 1000, 100))
        assert struct.unpack(">i", client.reply()[1][-4:]) == (0,)
        reply = client.call(ApiKey.CREATE_TOPICS.value, 4, create_topics(unique("own"), 1))
        assert struct.unpack_from(">i", reply) == (0,)
    assert not was_throttled(scene.front, victim)


def test_bytes_behind_a_message_are_ignored(scene: Scene) -> None:
    """librdkafka sends some, and brokers ignore them."""
    with scene.client(unique("honest")) as client:
        assert client.call(ApiKey.METADATA.value, 4, struct.pack(">i?", -1, True) + b"\0\0\0")
        assert client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)


def test_requests_are_not_taken_for_tokens(scene: Scene) -> None:
    """They follow a SaslHandshake v0 that is refused."""
    client_id, served = unique("smuggler"), 0
    frames = [produce(scene.topic, client_id, REQUEST_BYTES, number) for number in range(2, 40)]
    begin_s = time.monotonic()
    with scene.stranger(client_id) as client:
        client.sock.settimeout(1.0)
        client.request(messages.SASL_HANDSHAKE, 0, messages.string("MADE-UP"))
        with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
            client.send(b"".join(frames))
        with contextlib.suppress(TimeoutError, ConnectionEndedError):
            assert client.reply()[1][:2] != b"\0\0"
            while True:
                client.reply()
                served += 1
    allowed_bytes = WINDOW_BYTES + BYTES_PER_S * (time.monotonic() - begin_s)
    assert served <= (0 if scene.way.has_login else allowed_bytes / REQUEST_BYTES + 1)


def test_nothing_is_charged_in_the_name_of_another(scene: Scene) -> None:
    """Neither by requests whose rest never comes nor by mutations without a login."""
    victim = unique("victim")
    head = struct.pack(">ihhi", PROMISED_BYTES, messages.PRODUCE, 7, 1) + messages.string(victim)
    head += struct.pack(">hhi", -1, 1, 30_000)
    with contextlib.ExitStack() as stack:
        for connect in (scene.stranger, scene.client):
            stack.enter_context(connect(victim)).send(head)
        if scene.way.has_login:
            attacker = stack.enter_context(scene.stranger(victim))
            attacker.request(ApiKey.CREATE_TOPICS.value, 4, create_topics("made-up", 9000))
            with pytest.raises(ConnectionEndedError):
                attacker.reply()
        assert_unharmed(scene, victim)
    assert_unharmed(scene, victim)


def test_a_long_token_is_refused_by_its_length(scene: Scene) -> None:
    """Nothing of 63 MiB is collected."""
    head = struct.pack(">ihhi", 63 * 2**20, ApiKey.SASL_AUTHENTICATE, 1, 2) + messages.string("long")
    with scene.stranger(unique("long")) as client:
        client.send(head)
        assert client.rest() == b""
    scene.proxy.wait_for_log("limits.max_handshake_bytes")


@pytest.mark.exhaustive
def test_a_slow_head_is_cut_off(scene: Scene, kafka: FirstBroker, tmp_path: Path) -> None:
    """A byte now and then is no progress."""
    frame = messages.request(messages.API_VERSIONS, 0, 1, b"", "slow" * 100)
    limits = '[limits]\nrequest_timeout = "2s"\n'
    with scene.way.proxy(kafka, Authority(tmp_path), tmp_path, limits) as proxy, RawClient(proxy.port) as client:
        client.sock.settimeout(0.2)
        assert is_cut_off(client, frame[:100])
        proxy.wait_for_log("limits.request_timeout")


def test_a_long_request_is_refused_by_its_length(scene: Scene) -> None:
    """Reading it would hold the event loop."""
    client_id = unique("stalling")
    with scene.client(client_id) as client:
        client.send(struct.pack(">ihhi", 8 * 2**20, ApiKey.CREATE_TOPICS, 4, 9) + messages.string(client_id))
        assert client.rest() == b""
    scene.proxy.wait_for_log("limits.max_whole_request_bytes")


def test_a_new_connection_ends_no_throttle_and_delays_no_login(scene: Scene) -> None:
    frame = produce(scene.topic, "reconnects", 900_000, 1)
    with scene.client("reconnects") as client:
        client.send(frame)
        _, reply = client.reply()
        assert struct.unpack(">i", reply[-4:])[0] > 30_000
    with scene.client("reconnects") as client:
        client.send(frame)
        client.sock.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.reply()


def test_control_characters_reach_no_log(scene: Scene) -> None:
    """Neither those of a client id nor those of a mechanism. The log is text, since JSON has escapes of its own."""
    with scene.stranger(ESCAPE) as client, contextlib.suppress(ConnectionEndedError):
        client.call(messages.SASL_HANDSHAKE, 1, messages.string(f"SCRAM{ESCAPE}"))
        client.send(b"\0\0\0\0")
        client.rest()
    with scene.client(ESCAPE) as client:
        client.send(b"\0\0\0\0")
        client.rest()
    scene.proxy.wait_for_log("forged")
    assert "\x1b" not in scene.proxy.log
    assert "\nline" not in scene.proxy.log


def test_what_could_be_exempt_is_charged(scene: Scene) -> None:
    """Handshakes after the login, or without one, and requests between brokers."""
    bodies = {messages.API_VERSIONS: (0, b""), WRITE_TXN_MARKERS: (1, NO_MARKERS)}
    if scene.way.mechanism != "OAUTHBEARER":  # its tokens expire, so that another login may follow
        bodies[messages.SASL_HANDSHAKE] = (1, messages.string("PLAIN"))
    for api_key, (version, body) in bodies.items():
        client_id = unique("exempt")
        with scene.client(client_id) as client:
            client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
            before = measured(scene.proxy, "quota_request_time", client_id)
            for _ in range(20):
                client.request(api_key, version, body)
                client.reply()
            assert measured(scene.proxy, "quota_request_time", client_id) > before, api_key
