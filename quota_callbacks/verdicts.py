"""The verdicts of quota callbacks: throttle or refuse, with the reason.

Returned by the request hooks; ``None`` in place of a verdict forwards the request. Of several throttles the longest is
applied, never the sum, and a refusal takes precedence over forwarding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

THROTTLING_QUOTA_EXCEEDED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED.value
"""The error code of KIP-599."""
MAX_THROTTLE_MS: Final = 2**31 - 1
"""Largest ``throttle_time_ms``, an INT32. Kafka up to 4.3.1 overflows here; 4.4.0 clamps, as Headrace does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """The quota that caused a verdict, for logs, traces and the command line."""

    quota: str
    """The quota key, such as ``producer_byte_rate``."""
    entity: str
    """The entity that has the quota, as Kafka's tools print it: ``user=alice, client-id=<default>``."""
    observed: float
    """The measured value in the quota's unit, such as bytes a second or percent. For a token bucket, the number of
    tokens, which is below 0 while the quota is exceeded."""
    limit: float
    """The limit in the quota's unit. For a token bucket, the rate at which it is refilled."""
    rate: float | None = None
    """For a token bucket, the measured rate in the unit of ``limit``; ``None`` if ``observed`` is the rate, or if it is
    unknown."""
    window_s: int = 1
    """The number of seconds that ``limit`` applies to: 1, or the window of ``producer_ids_rate``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """Forward the request, and mute the client's channel for ``throttle_ms`` from now (KIP-219)."""

    throttle_ms: int
    reason: Reason | None = None
    hold: bool = False
    """Hold the request for ``throttle_ms`` before forwarding it, and do not mute. Only from `request_received`."""
    ask_again: bool = False
    """Only with ``hold``: call `request_received` of this plugin again when the hold is over, also if ``throttle_ms``
    is 0 and another plugin has held the request. It may hold the request for longer, and has to know from
    ``request.notes`` what it has charged or reserved already."""
    observe: bool = False
    """Shadow mode: log, count and trace the throttle, but do not apply it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Do not forward the request; answer with ``error_code``.

    Without ``topics`` the whole request is refused. With ``topics`` only these are refused, by name or (DeleteTopics
    from version 6) by the 16 bytes of the topic id, and the rest is forwarded. This is possible for CreateTopics,
    CreatePartitions, DeleteTopics and Metadata that creates topics, with `Detail.BODY` or `Detail.MUTATIONS`.
    """

    error_code: int = THROTTLING_QUOTA_EXCEEDED
    message: str | None = None
    throttle_ms: int = 0
    topics: Mapping[str | bytes, int] | None = None
    """Error codes by topic."""
    reason: Reason | None = None
    observe: bool = False
    """Shadow mode: log, count and trace the refusal, but forward the request."""


Verdict: TypeAlias = Throttle | Refuse
