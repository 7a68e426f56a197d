"""Recent quota decisions and their reasons: counted, logged at most once a minute per cause, and kept for operators.

Connections record every throttle and refusal here; the admin server (``/decisions``) and ``headrace why`` show them.
Each decision names the quota, its entity, the observed value, the limit and the throttle time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import structlog

from headrace.proxy.repeated_lines import RepeatedLines
from headrace.quota_callbacks.api_keys import API_NAMES
from headrace.quota_callbacks.entities import bounded_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.proxy.counters import Counters
    from headrace.quota_callbacks.authorization import Action
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Reason

log = structlog.get_logger("headrace.quotas")

KEPT_DECISIONS: Final = 1000
"""Number of decisions that are kept, about 300 KiB."""

LONG_HOLD_MS: Final = 30_000
"""Kafka's default ``request.timeout.ms``: clients give up on a request that is held for longer."""


def quota_of(reason: Reason | None) -> str:
    """Return the name of the quota to count a decision under; ``unnamed`` if the plugin gave no reason."""
    return "unnamed" if reason is None else reason.quota


def entity_of(reason: Reason | None) -> str:
    """Return the entity that has the quota; "" if the plugin gave no reason."""
    return "" if reason is None else reason.entity


class Kind(StrEnum):
    """Kinds of decisions."""

    THROTTLED = "throttled"
    HELD = "held"
    """The request itself was held: until its place in the timeline (paced enforcement), or, on a new connection, until
    the end of the time for which its entity has to wait."""
    REFUSED = "refused"
    OBSERVED = "observed"
    """A quota in shadow mode would have throttled or refused the request."""
    DENIED = "denied"
    """The client may not do what it requested, or a part of it."""


AUTHORIZATION: Final = "authorization"
"""Stands in place of a quota's name for decisions of the kind `Kind.DENIED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision about one request, and its reason."""

    at_s: float
    """Time of the decision, in seconds of the event loop's clock."""
    kind: Kind
    quota: str
    entity: str
    observed: float
    limit: float
    rate: float | None
    """See `headrace.quota_callbacks.verdicts.Reason`."""
    window_s: int
    """The number of seconds that the limit applies to."""
    throttle_ms: int
    request: str
    correlation_id: int
    user: str
    client_id: str
    peer: str
    rule: str | None = None
    """For `Kind.DENIED`, the rule by which it was denied."""


class Decisions:
    """The last `KEPT_DECISIONS` decisions."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._kept: deque[Decision] = deque(maxlen=KEPT_DECISIONS)
        self._repeated = RepeatedLines()

    def __iter__(self) -> Iterator[Decision]:
        """Iterate over the kept decisions, oldest first."""
        return iter(self._kept)

    def page(
        self, now_s: float, *, user: str | None = None, client_id: str | None = None, newest: int = 100
    ) -> list[dict[str, object]]:
        """Return at most ``newest`` decisions about a user and a client id (``None`` is any), newest first, for JSON.

        The field ``age_s`` has the seconds since the decision."""
        found: list[dict[str, object]] = []
        for decision in reversed(self._kept):
            if len(found) >= newest:
                break
            if user in (None, decision.user) and client_id in (None, decision.client_id):
                fields = asdict(decision)
                fields["age_s"] = round(now_s - fields.pop("at_s"), 6)
                found.append(fields)
        return found

    def record(self, request: Request, kind: Kind, throttle_ms: int, reason: Reason | None, now_s: float) -> None:
        """Count, keep and log one decision; ``throttle_ms`` is its throttle time in milliseconds."""
        counters, quota = self._counters, quota_of(reason)
        if kind is Kind.REFUSED:
            counters.refused += 1
        elif kind is Kind.OBSERVED:
            counters.observed[quota] = counters.observed.get(quota, 0) + 1
        else:
            counters.throttled[quota] = counters.throttled.get(quota, 0) + 1
            counters.throttled_ms += throttle_ms
        self._log(request, kind, throttle_ms, reason, now_s)
        if kind is Kind.HELD and throttle_ms > LONG_HOLD_MS:
            self._warn_of_long_hold(throttle_ms, reason)

    def record_denial(self, request: Request, action: Action, rule: str, count: int, now_s: float) -> None:
        """Count, keep and log that ``count`` actions of one operation on one type of resource were denied.

        ``action`` is the first of them, and ``rule`` what denied it.
        """
        api = API_NAMES.get(request.api_key, str(request.api_key))
        labels = (str(action.operation), str(action.resource_type), api)
        self._counters.denied[labels] = self._counters.denied.get(labels, 0) + 1
        connection = request.connection
        resource = bounded_name(str(action))
        self._kept.append(
            Decision(
                at_s=now_s,
                kind=Kind.DENIED,
                quota=AUTHORIZATION,
                entity=resource,
                observed=count,
                limit=0.0,
                rate=None,
                window_s=1,
                throttle_ms=0,
                request=f"{api} v{request.api_version}",
                correlation_id=request.correlation_id,
                user=connection.user,
                client_id=request.client_id,
                peer=str(connection.peer),
                rule=rule,
            )
        )
        left_out = self._repeated.due(Kind.DENIED, connection.user, *labels)
        if left_out is not None:
            log.info(
                "request denied",
                action=resource,
                rule=rule,
                others=count - 1 or None,
                request=f"{api} v{request.api_version}",
                user=connection.user,
                client_id=request.client_id,
                peer=str(connection.peer),
                left_out=left_out or None,
            )

    def _log(self, request: Request, kind: Kind, throttle_ms: int, reason: Reason | None, now_s: float) -> None:
        connection = request.connection
        decision = Decision(
            at_s=now_s,
            kind=kind,
            quota=quota_of(reason),
            entity=reason.entity if reason is not None else "",
            observed=reason.observed if reason is not None else 0.0,
            limit=reason.limit if reason is not None else 0.0,
            rate=reason.rate if reason is not None else None,
            window_s=reason.window_s if reason is not None else 1,
            throttle_ms=throttle_ms,
            request=f"{API_NAMES.get(request.api_key, request.api_key)} v{request.api_version}",
            correlation_id=request.correlation_id,
            user=connection.user,
            client_id=request.client_id,
            peer=str(connection.peer),
        )
        self._kept.append(decision)
        left_out = self._repeated.due(kind, decision.quota, decision.entity, decision.user, decision.client_id)
        if left_out is not None:
            log.info(
                f"request {kind}",
                quota=decision.quota,
                entity=decision.entity,
                observed=round(decision.observed, 3),
                limit=decision.limit,
                throttle_ms=throttle_ms,
                request=decision.request,
                user=decision.user,
                client_id=decision.client_id,
                peer=decision.peer,
                left_out=left_out or None,
            )

    def _warn_of_long_hold(self, hold_ms: int, reason: Reason | None) -> None:
        entity = reason.entity if reason is not None else ""
        if (left_out := self._repeated.due("turn", entity)) is not None:
            log.warning(
                "a paced request is held for longer than clients usually wait",
                quota=quota_of(reason),
                entity=entity,
                held_s=round(hold_ms / 1000, 1),
                warned_above_s=LONG_HOLD_MS / 1000,
                advice="the wait is connections x request size / limit: raise the limit, or have fewer connections or"
                " smaller requests",
                left_out=left_out or None,
            )
