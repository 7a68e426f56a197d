"""Combining the verdicts of several callbacks on one request, and checking each verdict before it can reach the wire.

The result has the longest throttle, the longest hold, the refusal, and the longest throttle of quotas in shadow mode.
Created by `headrace.proxy.hooks.calls` and carried out by `headrace.proxy.connection.enforcement`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS, Reason, Refuse, Throttle

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Verdict

INT16_MIN: Final = -(2**15)
INT16_MAX: Final = 2**15 - 1
BY_TOPIC: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS.value,
        ApiKey.DELETE_TOPICS.value,
        ApiKey.CREATE_PARTITIONS.value,
        ApiKey.METADATA.value,
    }
)
"""APIs of which single topics can be refused."""
DECIDING: Final = "request_received"
"""The only hook that is called before a request is forwarded, so that it can refuse or hold it."""


class CombinedVerdict:
    """The verdicts of all callbacks on one request; each part has its own reason. Times are INT32 milliseconds."""

    __slots__ = (
        "ask_again",
        "hold_ms",
        "hold_reason",
        "observed_ms",
        "observed_reason",
        "refusal",
        "throttle_ms",
        "throttle_reason",
    )

    def __init__(self) -> None:
        self.throttle_ms = 0
        self.throttle_reason: Reason | None = None
        self.hold_ms = 0
        self.hold_reason: Reason | None = None
        self.observed_ms = 0
        """The longest throttle time of quotas in shadow mode; at least 1 if one would have throttled or refused."""
        self.observed_reason: Reason | None = None
        self.refusal: Refuse | None = None
        self.ask_again: tuple[tuple[str, Callable[..., Any]], ...] = ()
        """The callbacks to call again when the hold is over."""

    def add(self, verdict: Verdict) -> None:
        """Add the verdict of one more callback, which `check_verdict` has accepted."""
        throttle_ms = min(verdict.throttle_ms, MAX_THROTTLE_MS)
        if verdict.observe:
            if max(throttle_ms, 1) > self.observed_ms:
                self.observed_ms, self.observed_reason = max(throttle_ms, 1), verdict.reason
            return
        if isinstance(verdict, Throttle) and verdict.hold:
            if throttle_ms > self.hold_ms:
                self.hold_ms, self.hold_reason = throttle_ms, verdict.reason
            return
        if throttle_ms > self.throttle_ms:
            self.throttle_ms, self.throttle_reason = throttle_ms, verdict.reason
        if isinstance(verdict, Refuse):
            self.refusal = verdict if self.refusal is None else merge_refusals(self.refusal, verdict)


def check_verdict(verdict: object, request: Request, hook: str) -> None:
    """Raise ``TypeError`` or ``ValueError`` if a plugin's verdict from ``hook`` is not valid for ``request``."""
    if not isinstance(verdict, Throttle | Refuse):
        raise TypeError(f"verdict is {verdict!r}; it must be a Throttle, a Refuse or None")
    if type(verdict.throttle_ms) is not int or verdict.throttle_ms < 0:
        raise ValueError(f"throttle_ms is {verdict.throttle_ms!r}; it must be whole milliseconds, 0 or more")
    if verdict.reason is not None and not isinstance(verdict.reason, Reason):
        raise TypeError(f"reason is {verdict.reason!r}; it must be a Reason or None")
    if isinstance(verdict, Refuse):
        if hook != DECIDING:
            raise ValueError(f"{hook} has returned a Refuse; only {DECIDING} can refuse a request")
        _check_refusal(verdict, request)
    elif verdict.hold and hook != DECIDING:
        raise ValueError(f"hold is true in the verdict of {hook}; only {DECIDING} can hold a request")
    elif verdict.ask_again and not verdict.hold:
        raise ValueError("ask_again is true; it requires hold")


def _check_refusal(refusal: Refuse, request: Request) -> None:
    for code in (refusal.error_code, *(refusal.topics or {}).values()):
        if type(code) is not int or not INT16_MIN <= code <= INT16_MAX or code == 0:
            raise ValueError(f"error code is {code!r}; it must be an error code of Kafka, an INT16 that is not 0")
    read = request.body is not None or request.mutations is not None
    if refusal.topics is not None and (request.api_key not in BY_TOPIC or not read):
        name = API_NAMES.get(request.api_key, str(request.api_key))
        raise ValueError(
            f"single topics of {name} cannot be refused; they can only in CreateTopics, DeleteTopics,"
            " CreatePartitions, and Metadata that creates topics, with Detail.BODY or Detail.MUTATIONS requested"
        )


def merge_refusals(first: Refuse, second: Refuse) -> Refuse:
    """Return one refusal for two: refusing the whole request precedes refusing topics; refused topics are united."""
    if first.topics is None or second.topics is None:
        return first if first.topics is None else second
    longer = first if first.throttle_ms >= second.throttle_ms else second
    return Refuse(
        error_code=longer.error_code,
        message=longer.message,
        throttle_ms=longer.throttle_ms,
        topics={**second.topics, **first.topics},
        reason=longer.reason,
    )
