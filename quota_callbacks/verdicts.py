"""What a quota callback answers about a request or a reply: forward, throttle or refuse, and why.

``None`` from a hook means forward: nothing to object. Where several callbacks object, the longest throttle wins (never
the sum), and a refusal wins over forwarding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

THROTTLING_QUOTA_EXCEEDED: Final = 89
"""The error code of KIP-599."""
MAX_THROTTLE_MS: Final = 2**31 - 1
"""``throttle_time_ms`` is an INT32. Kafka up to 4.3.1 overflows here; 4.4.0 clamps, and so do we."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Which quota bound, for logs, traces and the command line."""

    quota: str
    """The quota key, such as ``producer_byte_rate``."""
    entity: str
    """The entity whose quota it is, as tools print it: ``user=alice, client-id=<default>``."""
    observed: float
    """What was measured, in the quota's own unit (bytes a second, percent); of a token bucket, the tokens that are
    left, below 0 when it is overdrawn."""
    limit: float
    """What is allowed: bytes a second, percent; of a token bucket, the quota that it is refilled by."""
    rate: float | None = None
    """Of a token bucket, the rate that was measured beside it, in the unit of ``limit``."""
    window_s: int = 1
    """The seconds that ``limit`` is for: 1, or the window of ``producer_ids_rate``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """Forward it, and mute the client's channel for ``throttle_ms`` from now (KIP-219)."""

    throttle_ms: int
    reason: Reason | None = None
    hold: bool = False
    """Paced enforcement: hold the request itself for ``throttle_ms`` and forward it then. Only from
    `request_received`."""
    observe: bool = False
    """Shadow mode: tell about it, and throttle nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Do not forward it: answer with ``error_code`` instead.

    Without ``topics`` the whole request is refused. Otherwise only the named topics are (by name or, where
    DeleteTopics v6 names them so, by the 16 bytes of their id), and the rest is forwarded; that is for CreateTopics,
    CreatePartitions and DeleteTopics, with the request's body asked for by `Detail.BODY`.
    """

    error_code: int = THROTTLING_QUOTA_EXCEEDED
    message: str | None = None
    throttle_ms: int = 0
    topics: Mapping[str | bytes, int] | None = None
    """Topic to error code."""
    reason: Reason | None = None
    observe: bool = False
    """Shadow mode: tell about it, and refuse nobody."""


Verdict: TypeAlias = Throttle | Refuse
