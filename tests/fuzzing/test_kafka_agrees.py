"""Broken messages: the codec reads what Kafka's generated code reads, and refuses what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.proxy.wire.errors import MalformedMessage
from headrace.proxy.wire.messages.codec import decode, encode
from testbed.errors import JvmError
from testbed.kafka.jvm import start_jvm
from tests.fuzzing.choices import Choices
from tests.fuzzing.running import new_input
from tests.fuzzing.wire_messages import ANY, VALID, MessageWriter
from tests.proxy.wire.oracle import judge_of
from tests.proxy.wire.samples import EVERY

if TYPE_CHECKING:
    import random

PER_MESSAGE: Final = 2


DECLARED: Final = ("has a size of", "tagged field", "a length of ", "a varint of more than 32 bits", "_tags at byte")
"""Reasons for which the proxy refuses what Kafka reads: a tagged field whose size is not that of its value, which the
proxy does not forward; a compact length of 2**31 or more, which Kafka reads as null; a varint whose highest bits Kafka
drops; and a number of tagged fields of 2**31 or more, of which Kafka reads none. No client sends any of them."""
OF_OTHER_VERSIONS: Final = "is not valid for version"
"""Why Kafka refuses what the proxy reads: a tagged field of another version, which the proxy forwards as unknown."""


def java_fault(name: str, version: int, body: bytes) -> str | None:
    """Return why Kafka's generated code refuses a message; it ignores what is left behind the message."""
    java: Any = start_jvm().java
    try:
        judge_of(name, version).decode(f"{name}Data", body, version)
    except JvmError:
        return None
    except java.lang.RuntimeException as error:
        return str(error)
    return None


def we_read(name: str, version: int, body: bytes) -> MalformedMessage | None:
    try:
        decode(name, version, body)
    except MalformedMessage as error:
        return error
    return None


def written(rng: random.Random, name: str, version: int, how: int) -> bytes:
    data = new_input(rng, [])
    return MessageWriter(Choices(data), exact=how == VALID).message(name, version)


def check_agreement(rng: random.Random, count: int) -> dict[bool, int]:
    """Compare verdicts about broken messages; return how many were read, and how many refused."""
    verdicts = {True: 0, False: 0}
    for name, version in EVERY:
        for _ in range(count):
            body = written(rng, name, version, ANY)
            fault, kafkas = we_read(name, version, body), java_fault(name, version, body)
            where = f"{name} v{version} {body.hex()}: the proxy: {fault}; Kafka: {kafkas}"
            if kafkas is None and fault is not None:
                assert any(reason in str(fault) for reason in DECLARED), where
            if kafkas is not None and fault is None:
                assert OF_OTHER_VERSIONS in kafkas, where
            verdicts[fault is None] += 1
    return verdicts


def test_the_codec_agrees_with_kafka_about_broken_messages(rng: random.Random) -> None:
    verdicts = check_agreement(rng, PER_MESSAGE)
    assert min(verdicts.values()) > len(EVERY) // 10, "the messages are all valid, or all broken"


@pytest.mark.exhaustive
def test_the_codec_agrees_with_kafka_about_many_broken_messages(rng: random.Random) -> None:
    check_agreement(rng, 100)


@pytest.mark.exhaustive
def test_messages_that_should_be_valid_are(rng: random.Random) -> None:
    for name, version in EVERY:
        body = written(rng, name, version, VALID)
        assert encode(name, version, decode(name, version, body)) is not None
        assert java_fault(name, version, body) is None, (name, version, body.hex())
