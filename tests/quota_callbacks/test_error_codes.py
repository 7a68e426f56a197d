"""The table of error codes, compared with Kafka's."""

from __future__ import annotations

from headrace.proxy.kafka_client.errors import BrokerError, broker_error
from headrace.quota_callbacks.error_codes import ErrorCode
from testbed.kafka.jvm import kafka_classes


def test_kafka_has_the_same_codes() -> None:
    kafka = kafka_classes("4.4.0")
    retriable = kafka.cls("org.apache.kafka.common.errors.RetriableException").class_
    errors = {
        int(each.code()): (str(each.name()), str(each.message() or ""), bool(retriable.isInstance(each.exception())))
        for each in kafka.cls("org.apache.kafka.common.protocol.Errors").values()
    }
    assert {int(each): (each.name, each.text, each.retriable) for each in ErrorCode} == errors


def test_every_code_has_an_error_with_a_text() -> None:
    for code in {*ErrorCode} - {ErrorCode.NONE}:
        error = broker_error(code, None)
        assert (error.code, error.name, error.message) == (code, code.name, code.text)
        assert str(error).startswith(f"{code.name}: {code.text}")
        assert error.retriable == code.retriable


def test_a_code_of_a_newer_kafka() -> None:
    error = BrokerError(30_000, None)
    assert str(error) == "error code 30000: an error that this client does not know"
    assert not error.retriable
