"""The answers of the client-quota APIs over a dict, computed by the pure functions of the proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.quotas.rules.filters import compile_filter, described_parts
from headrace.proxy.quotas.rules.refusals import Refusal
from headrace.proxy.wire.client_quotas import (
    DescribeResponse,
    describe_error,
    filter_in_steps,
)
from headrace.proxy.wire.messages.stepwise import finish
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, QuotaSchema
from tests.proxy.quotas.in_one_step import alter_response, read_alterations, validate_request

if TYPE_CHECKING:
    from headrace.quota_callbacks.entities import QuotaEntity


class QuotaModel:
    """The quotas that were set, and the bodies of replies."""

    def __init__(self, schema: QuotaSchema = BUILTIN_SCHEMA) -> None:
        self.schema = schema
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}

    def answer(self, api_key: ApiKey, version: int, body: bytes) -> bytes:
        """Return the body of the reply."""
        if api_key is ApiKey.DESCRIBE_CLIENT_QUOTAS:
            return self._describe(version, body)
        validated = validate_request(
            read_alterations(version, body), self.schema, lambda entity: self.quotas.get(entity, {})
        )
        for alteration in validated.alterations:
            values = self.quotas.setdefault(alteration.entity, {})
            for key, value in alteration.values.items():
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
            if not values:
                del self.quotas[alteration.entity]
        return alter_response(version, validated.results)

    def _describe(self, version: int, body: bytes) -> bytes:
        matches = compile_filter(finish(filter_in_steps(version, body)), self.schema)
        if isinstance(matches, Refusal):
            return describe_error(version, matches.error_code, matches.error_message)
        response = DescribeResponse(version)
        for entity, values in self.quotas.items():
            if matches(entity):
                response.add(described_parts(entity), values)
        return response.body()
