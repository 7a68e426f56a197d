"""Targets: the requests of the client-quota APIs, read and answered."""

from __future__ import annotations

from headrace.proxy.quotas.rules.filters import compile_filter, described_parts
from headrace.proxy.quotas.rules.refusals import Refusal
from headrace.proxy.wire.client_quotas import (
    DescribeResponse,
    describe_error,
    filter_in_steps,
)
from headrace.proxy.wire.errors import MalformedFrame, MalformedMessage
from headrace.proxy.wire.messages.codec import decode
from headrace.proxy.wire.messages.stepwise import finish
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from tests.fuzzing.choices import Choices
from tests.fuzzing.wire_messages import any_version, message_body
from tests.proxy.quotas.in_one_step import alter_response, read_alterations, validate_entry, validate_request

ENTITIES = (
    QuotaEntity(user="t"),
    QuotaEntity(user=DEFAULT),
    QuotaEntity(client_id="topic-1"),
    QuotaEntity(user="t", client_id=DEFAULT),
    QuotaEntity(ip="::1"),
    QuotaEntity(ip=DEFAULT),
)


def alterations(data: bytes) -> None:
    """Read and answer alterations: one row for each entity, and what is altered is valid by itself."""
    choices = Choices(data)
    version = any_version(choices, "AlterClientQuotasRequest")
    body = message_body(choices, "AlterClientQuotasRequest", version)
    try:
        request = read_alterations(version, body)
    except (MalformedFrame, MalformedMessage):
        return
    validated = validate_request(request, BUILTIN_SCHEMA, lambda _entity: {})
    answered = decode("AlterClientQuotasResponse", version, alter_response(version, validated.results))["entries"]
    assert len(answered) == len({frozenset(dict(entry.entity).items()) for entry in request.entries})
    valid = [validate_entry(entry, BUILTIN_SCHEMA) for entry in request.entries]
    entities = [outcome.entity for outcome in valid if not isinstance(outcome, Refusal)]
    assert {alteration.entity for alteration in validated.alterations} <= set(entities)
    assert not (request.validate_only and validated.alterations)


def quota_filters(data: bytes) -> None:
    """Read a filter and answer it: a strict filter matches no more than the same filter that is not."""
    choices = Choices(data)
    version = any_version(choices, "DescribeClientQuotasRequest")
    body = message_body(choices, "DescribeClientQuotasRequest", version)
    try:
        wanted = finish(filter_in_steps(version, body))
    except MalformedMessage:
        return
    matches = compile_filter(wanted, BUILTIN_SCHEMA)
    if isinstance(matches, Refusal):
        answer = describe_error(version, matches.error_code, matches.error_message)
        assert decode("DescribeClientQuotasResponse", version, answer)["entries"] is None
        return
    response = DescribeResponse(version)
    found = [entity for entity in ENTITIES if matches(entity)]
    for entity in found:
        assert not wanted.strict or len(entity.parts()) == len(wanted.components)
        response.add(described_parts(entity), {"request_percentage": 1.0})
    rows = decode("DescribeClientQuotasResponse", version, response.body())["entries"]
    assert len(rows) == len(found)
