"""Every message in every version, against Kafka's generated code."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.wire.composites import message_codec
from proxy.wire.schemas import message_names, versions
from proxy.wire.walker import decode, encode
from tests.proxy.wire.oracle import judge_of, through_java
from tests.proxy.wire.strategies import messages

MESSAGES = "org.apache.kafka.common.message"
EVERY = [(name, version) for name in message_names() for version in versions(name)]

QUICK = settings(deadline=None, max_examples=5, suppress_health_check=list(HealthCheck), database=None)
LONG = settings(QUICK, max_examples=100)


def check(name: str, version: int, data: st.DataObject) -> None:
    message = data.draw(messages(name, version))
    body = encode(name, version, message)
    assert through_java(name, version, body) == body
    assert decode(name, version, body) == message
    assert message_codec(name, version).skip(body, 0) == len(body)


@pytest.mark.parametrize(("name", "version"), EVERY)
@settings(QUICK)
@given(data=st.data())
def test_every_message_is_written_as_kafka_writes_it(name: str, version: int, data: st.DataObject) -> None:
    check(name, version, data)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "version"), EVERY)
@settings(LONG)
@given(data=st.data())
def test_every_message_is_written_as_kafka_writes_it_at_length(name: str, version: int, data: st.DataObject) -> None:
    check(name, version, data)


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_fields_that_are_not_given_have_kafkas_defaults(name: str, version: int) -> None:
    kafka = judge_of(name, version)
    assert encode(name, version, {}) == kafka.encode(kafka.cls(f"{MESSAGES}.{name}Data")(), version)
