"""Every message in every version is compared with Kafka's generated code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.composites import message_codec
from tests.proxy.wire.oracle import judge_of, through_java
from tests.proxy.wire.samples import EVERY, LONG, sample

if TYPE_CHECKING:
    from random import Random

MESSAGES = "org.apache.kafka.common.message"


def check(rng: Random, name: str, version: int) -> None:
    """Check that a random message is encoded as Kafka encodes it, and decoded to the same values."""
    message = sample(rng, name, version)
    body = encode(name, version, message)
    assert through_java(name, version, body) == body, (name, version, message)
    assert decode(name, version, body) == message, (name, version)
    assert message_codec(name, version).skip(body, 0) == len(body), (name, version, message)


def test_every_message_is_encoded_as_by_kafka(rng: Random) -> None:
    for name, version in EVERY:
        for _ in range(3):
            check(rng, name, version)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "version"), EVERY)
@LONG
@given(rng=st.randoms(use_true_random=False))
def test_every_message_is_encoded_as_by_kafka_at_length(name: str, version: int, rng: Random) -> None:
    check(rng, name, version)


def test_missing_fields_have_kafkas_defaults() -> None:
    for name, version in EVERY:
        kafka = judge_of(name, version)
        java = kafka.encode(kafka.cls(f"{MESSAGES}.{name}Data")(), version)
        assert encode(name, version, {}) == java, (name, version)
