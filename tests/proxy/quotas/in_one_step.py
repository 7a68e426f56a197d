"""Reading, validating and answering AlterClientQuotas at once, where the product does it in steps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headrace.proxy.quotas.rules.refusals import Refusal
from headrace.proxy.quotas.rules.validation import ValidatedRequest, validation_in_steps
from headrace.proxy.quotas.store import Alteration
from headrace.proxy.wire.client_quotas import AlterRequest, alter_response_in_steps, alterations_in_steps
from headrace.proxy.wire.messages.stepwise import finish
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.proxy.wire.client_quotas import AlterEntry, AlterResult
    from headrace.proxy.wire.messages.codec import Buffer
    from headrace.quota_callbacks.definitions import QuotaSchema


def read_alterations(version: int, body: Buffer) -> AlterRequest:
    return finish(alterations_in_steps(version, body, sys.maxsize))


def validate_request(
    request: AlterRequest,
    schema: QuotaSchema,
    current: Callable[[QuotaEntity], Mapping[str, float]],
    further_check: Callable[[Alteration], Refusal | None] | None = None,
) -> ValidatedRequest:
    return finish(validation_in_steps(request, schema, current, further_check))


def validate_entry(entry: AlterEntry, schema: QuotaSchema) -> Alteration | Refusal:
    """The alteration that one entry makes, or its refusal."""
    request = AlterRequest(entries=(entry,), validate_only=False)
    validated = validate_request(request, schema, lambda _entity: {})
    if validated.alterations:
        return validated.alterations[0]
    (result,) = validated.results
    if result.error_code:
        return Refusal(error_code=result.error_code, error_message=result.error_message or "")
    parts = {entity_type: DEFAULT if name is None else name for entity_type, name in result.entity}
    return Alteration(entity=QuotaEntity.of(parts), values={})


def alter_response(version: int, results: Iterable[AlterResult], throttle_time_ms: int = 0) -> bytes:
    return finish(alter_response_in_steps(version, results, throttle_time_ms))
