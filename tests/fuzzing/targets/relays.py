"""Targets: a whole connection of the proxy between a client and a broker in memory, on a fake clock."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import trio
from trio.testing import MockClock

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.proxy.wire.apis import APIS, must_rewrite, response_header_version, throttle_offset
from headrace.proxy.wire.heads import request_frame as own_request
from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.topic_lookups import ask_for_topics
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from tests.fuzzing.choices import Choices
from tests.fuzzing.wire_messages import API_KEYS, any_version, message_body, reply_frame, request_frame
from tests.proxy.connection.test_relays_any_split import cut
from tests.proxy.playbook import open_book

if TYPE_CHECKING:
    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from tests.proxy.playbook import Book, Party

USUAL: Final = (
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS, ApiKey.FIND_COORDINATOR, ApiKey.SHARE_FETCH, ApiKey.DESCRIBE_CLUSTER,
)  # fmt: skip
SASL: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.PRODUCE)
MECHANISMS: Final = (b"PLAIN", b"SCRAM-SHA-256", b"GSSAPI", b"OAUTHBEARER", b"X", b"\xff")
LONGEST_MUTE_S: Final = 3e6
"""Longer than any throttle time: 2**31 ms."""
MOST_FRAMES: Final = 40
LONGEST_PART: Final = 16 * 1024
"""Length in bytes that each body and each answer can have; four of them are as long as the longest input."""
_ANYBODY: Final = QuotaEntity(user=None, client_id="t")
_RATES: Final = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)
Quotas: TypeAlias = tuple[tuple[QuotaKey, QuotaEntity, float], ...]
_SETTINGS: Final[tuple[Quotas, ...]] = (
    (),
    tuple((key, _ANYBODY, 1e9) for key in (*_RATES, QuotaKey.CONTROLLER_MUTATION_RATE)),
    tuple((key, _ANYBODY, 5.0) for key in (*_RATES, QuotaKey.CONTROLLER_MUTATION_RATE)),
    ((QuotaKey.PRODUCER_IDS_RATE, QuotaEntity(user="ANONYMOUS"), 1.0),),
)
"""Without quotas; with quotas that are never exceeded; with quotas that are exceeded at once."""


_HOOKS: Final[dict[Quotas, HookCalls]] = {}
"""Hooks with each of these quotas, which are made once."""


@dataclass
class Script:
    """The bytes that the client sends, and how the broker answers the frames that it receives."""

    quotas: Quotas
    client_cuts: list[int]
    broker_cuts: list[int]
    chunks: list[bytes] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    apis: dict[int, tuple[int, int]] = field(default_factory=dict)
    """API keys and versions of the requests that were made from schemas, by correlation id."""


@dataclass
class Outcome:
    """All that the parties received, and the reason for the end."""

    to_broker: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)
    answers: list[bytes] = field(default_factory=list)
    reason: str | None = None


def relays(data: bytes) -> None:
    """Relay requests and replies of any kind."""
    choices = Choices(data)
    _check(_script(choices, USUAL if choices.byte() < 160 else API_KEYS))


def logins(data: bytes) -> None:
    """Relay SASL logins with and without headers, and requests before and after them."""
    choices = Choices(data)
    _check(_script(choices, SASL))


def _script(choices: Choices, api_keys: tuple[int, ...]) -> Script:
    script = Script(choices.pick(_SETTINGS), choices.cuts(), choices.cuts())
    for number in range(1 + choices.byte() % 4):
        decision = choices.byte()
        if decision >= 240:
            script.chunks.append(choices.take(choices.byte()))
        elif decision >= 220:
            token = choices.take(choices.byte() % 32)
            script.chunks.append(struct.pack(">i", len(token)) + token)
        else:
            script.chunks.append(_request(choices, script, api_keys, number))
        script.answers.append(choices.take(choices.number() % LONGEST_PART))
    script.answers += [choices.take(8) for _ in range(4)]
    return script


def _request(choices: Choices, script: Script, api_keys: tuple[int, ...], number: int) -> bytes:
    key = choices.pick(api_keys)
    name = f"{API_NAMES[key]}Request"
    version = any_version(choices, name)
    correlation_id = 1000 + number
    script.apis[correlation_id] = key, version
    if key == ApiKey.SASL_HANDSHAKE and choices.byte() < 200:
        mechanism = choices.pick(MECHANISMS)
        body = struct.pack(">h", len(mechanism)) + mechanism
        return request_frame(choices, key, version, correlation_id, body)
    raw = choices.take(choices.number() % LONGEST_PART)
    return request_frame(choices, key, version, correlation_id, message_body(Choices(raw), name, version))


def _answer(recipe: Choices, frame: bytes) -> bytes:
    """Return the broker's answer to a frame: a reply of its API with any body, or any bytes; or nothing."""
    decision = recipe.byte()
    if decision >= 240 or len(frame) < 12:
        content = recipe.rest()
        return struct.pack(">i", len(content)) + content if decision < 250 else content
    if decision >= 230:
        return b""
    key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
    if key not in APIS or not APIS[key].knows(version):
        return reply_frame(key, version, correlation_id, recipe.rest())
    return reply_frame(key, version, correlation_id, message_body(recipe, f"{API_NAMES[key]}Response", version))


def _play(script: Script, client_cuts: list[int], broker_cuts: list[int]) -> Outcome:
    outcome = Outcome()

    async def run() -> None:
        known = _HOOKS.get(script.quotas)
        plugins = {"sasl_identity": SaslIdentity()}
        async with open_book(quotas=() if known else script.quotas, plugins=plugins, hooks=known) as book:
            _HOOKS[script.quotas] = book.shared.hooks
            cut(book, client_cuts, broker_cuts)
            answered = 0
            for chunk in script.chunks:
                await book.client.sends(chunk)
                answered = await _converse(book, script, outcome, answered)
            book.client.socket.shut_down_writing()
            await _converse(book, script, outcome, answered)
            outcome.reason = book.connection.reason

    trio.run(run, clock=MockClock(autojump_threshold=0))
    return outcome


async def _converse(book: Book, script: Script, outcome: Outcome, answered: int) -> int:
    """Let the broker answer until nothing happens any more; return the number of answered frames."""
    while True:
        await trio.sleep(LONGEST_MUTE_S)
        outcome.to_client += _arrived(book.client)
        frames = []
        for broker in book.upstream.brokers:
            before = len(outcome.to_broker)
            outcome.to_broker += _arrived(broker)
            frames += [(broker, frame) for frame in _frames(bytes(outcome.to_broker[before:]))]
        if not frames or answered > MOST_FRAMES:
            return answered
        for broker, frame in frames:
            recipe = script.answers[answered] if answered < len(script.answers) else b""
            answer = _answer(Choices(recipe), frame)
            outcome.answers.append(answer)
            await broker.sends(answer)
            answered += 1


def _arrived(party: Party) -> bytes:
    found = bytearray()
    chunk = bytearray(65536)
    while count := party.socket.receive_into(memoryview(chunk)):
        found += chunk[:count]
    return bytes(found)


def _frames(data: bytes) -> list[bytes]:
    found, at = [], 0
    while len(data) - at >= 4:
        size = 4 + max(0, int.from_bytes(data[at : at + 4], "big", signed=True))
        found.append(data[at : at + size])
        at += size
    return found


def _check(script: Script) -> None:
    whole = _play(script, [], [])
    split = _play(script, script.client_cuts, script.broker_cuts)
    for outcome in (whole, split):
        assert not (outcome.reason or "").startswith("proxy:"), outcome.reason
    for one, other in ((whole.to_broker, split.to_broker), (whole.to_client, split.to_client)):
        if whole.reason is None and split.reason is None:
            assert one == other
        else:  # a fault ends the connection, after more frames or fewer, depending on the split
            assert one.startswith(other) or other.startswith(one)
    if not script.quotas:
        _check_forwarding(script, whole)


def _check_forwarding(script: Script, outcome: Outcome) -> None:
    """Check that what is forwarded is what came, except for declared edits, without quotas."""
    stream, at = b"".join(script.chunks), 0
    for frame in _frames(bytes(outcome.to_broker)):
        if _is_lookup(frame) or frame[4:6] == struct.pack(">h", ApiKey.SHARE_FETCH):
            continue
        found = stream.find(frame, at)
        assert found >= 0, f"the broker received {frame!r}, which the client did not send"
        at = found + len(frame)
    answers = {_without_throttle(script, answer) for answer in outcome.answers}
    for frame in _frames(bytes(outcome.to_client)):
        key, _ = script.apis.get(int.from_bytes(frame[4:8], "big"), (ApiKey.API_VERSIONS, 0))
        if not must_rewrite(key, 1 << 14) and key != ApiKey.FETCH:
            assert _without_throttle(script, frame) in answers, f"the broker did not send {frame!r}"


def _without_throttle(script: Script, frame: bytes) -> bytes:
    """Return a reply without its throttle time, which the proxy sets to 0 if it is negative."""
    key, version = script.apis.get(int.from_bytes(frame[4:8], "big"), (ApiKey.API_VERSIONS, 0))
    offset = throttle_offset(key, version)
    if offset is None:
        return frame
    at = 8 + response_header_version(key, version) + offset
    return frame[:at] + frame[at + 4 :]


def _is_lookup(frame: bytes) -> bool:
    """Return whether a frame is the proxy's own question whether the broker serves the client."""
    version, body = finish(ask_for_topics(()))
    return frame.endswith(own_request(ApiKey.METADATA, version, 0, "", body)[-len(body) :]) and frame[4:6] == b"\0\x03"
