"""Validations of new topics, apart from what `tests.proxy.connection.mutations.test_mutations` shows of them."""

from __future__ import annotations

import pytest

from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.topic_lookups import (
    VALIDATE_TIMEOUT_MS,
    VALIDATE_VERSION,
    ask_to_validate,
    read_validated,
)
from headrace.quota_callbacks.error_codes import ErrorCode


@pytest.mark.parametrize("version", [2, 7])
def test_a_client_cannot_let_its_validation_time_out(version: int) -> None:
    """Its request would create the topic nevertheless, uncharged."""
    topics = [{"name": "t", "num_partitions": -1, "replication_factor": -1}]
    body = encode("CreateTopicsRequest", version, {"topics": topics, "timeout_ms": 1, "validate_only": False})
    raised, changed = finish(ask_to_validate(version, body))
    fields = decode("CreateTopicsRequest", raised, changed)
    assert (fields["timeout_ms"], fields["validate_only"]) == (VALIDATE_TIMEOUT_MS, True)


def test_an_error_after_which_the_request_may_succeed_is_no_refusal() -> None:
    errors = (
        ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_SERVER_ERROR,
    )  # fmt: skip
    rows = [{"name": error.name, "error_code": error.value, "num_partitions": 3} for error in errors]
    body = encode("CreateTopicsResponse", VALIDATE_VERSION, {"topics": rows})
    found = finish(read_validated(VALIDATE_VERSION, body))
    assert list(found.values()) == [3, 0, None, None, None]
