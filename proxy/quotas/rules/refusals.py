"""The errors with which the client-quota APIs refuse a request or an entry.

Returned by `headrace.proxy.quotas.rules.validation`, `headrace.proxy.quotas.rules.filters` and
`headrace.proxy.quotas.client_quota_apis`.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.quota_callbacks.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error code of Kafka, and a message for the client."""

    error_code: int
    error_message: str


def invalid(message: str) -> Refusal:
    """Return the refusal of an invalid request or entry."""
    return Refusal(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
