"""Mutations of topics under the quota ``controller_mutation_rate``: what was refused is sent again (KIP-599).

The rules are those of ``KafkaAdminClient`` (``getCreateTopicsCall``, ``getDeleteTopicsCall``,
``getCreatePartitionsCall``):

- Topics that a reply refuses with THROTTLING_QUOTA_EXCEEDED, and only these, are sent again when the throttle time of
  that reply has passed. Other errors are results at once.
- At the deadline of the call they fail with `ThrottlingQuotaExceeded` and the throttle time that then remains. Topics
  that were not refused before fail with `ApiTimeoutError`.
- Without retries, a refused topic fails at once with the throttle time of the reply.

The wait itself is the broker's throttling of the client in `headrace.proxy.kafka_client.cluster`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from headrace.proxy.kafka_client.calls import Call, Target
from headrace.proxy.kafka_client.errors import (
    ApiTimeoutError,
    BadReplyError,
    KafkaClientError,
    ThrottlingQuotaExceeded,
    broker_error,
)
from headrace.proxy.kafka_client.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.proxy.kafka_client.calls import Caller
    from headrace.proxy.wire.messages.codec import Message
    from headrace.quota_callbacks.api_keys import ApiKey

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation(Generic[V]):
    """A request that changes several topics, each of which has a result of its own."""

    api_key: ApiKey
    names: tuple[str, ...]
    """The topics, in the order in which the results are returned."""
    build: Callable[[int, Sequence[str], int], Message]
    """Builds the request for a version, some of the topics, and a time-out in ms."""
    rows: Callable[[Message], Sequence[Message]]
    """Returns the results by topic in a reply, each with a name, an error code and, in most versions, a message."""
    value: Callable[[Message], V]
    """Returns the value of a row without an error."""

    def call(self, names: Sequence[str]) -> Call:
        """Return the request for some of the topics."""
        return Call(
            api_key=self.api_key,
            target=Target.CONTROLLER,
            build=lambda version, timeout_ms: self.build(version, names, timeout_ms),
            error_codes=lambda reply: (row["error_code"] for row in self.rows(reply)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """The last refusal of a topic: the error, and when it arrived on trio's clock."""

    error: ThrottlingQuotaExceeded
    at: float

    def now(self) -> ThrottlingQuotaExceeded:
        """Return the error with the throttle time that remains."""
        passed_ms = int((trio.current_time() - self.at) * 1000)
        return ThrottlingQuotaExceeded(max(0, self.error.throttle_time_ms - passed_ms), self.error.message)


async def mutate(
    caller: Caller, mutation: Mutation[V], *, retry_on_quota_violation: bool, deadline: float
) -> Results[str, V]:
    """Request the mutation until every topic has a result other than a refusal by the quota, or the deadline passes.

    Every error is the result of the topics that it concerns. A cancelled call may have changed topics.
    """
    outcomes: dict[str, V | KafkaClientError] = {}
    refusals: dict[str, _Refusal] = {}
    pending: Sequence[str] = mutation.names
    while pending:
        try:
            reply = await caller.call(mutation.call(pending), deadline)
        except KafkaClientError as error:
            for name in pending:
                refused = refusals.get(name) if isinstance(error, ApiTimeoutError) else None
                outcomes[name] = error if refused is None else refused.now()
            break
        refusals = _read(mutation, pending, reply, outcomes, retry=retry_on_quota_violation)
        if refusals and not reply.get("throttle_time_ms"):
            with trio.move_on_at(deadline):  # a broker that refuses without a throttle time is not asked in a loop
                await caller.pause()
        pending = [name for name in pending if name in refusals]
    return Results(outcomes={name: outcomes[name] for name in mutation.names})


def _read(
    mutation: Mutation[V],
    asked: Sequence[str],
    reply: Message,
    outcomes: dict[str, V | KafkaClientError],
    *,
    retry: bool,
) -> dict[str, _Refusal]:
    """Add the results of a reply to ``outcomes``, and return the refusals of topics that are to be sent again."""
    refusals: dict[str, _Refusal] = {}
    rows = {row["name"]: row for row in mutation.rows(reply)}
    for name in asked:
        row = rows.get(name)
        if row is None:
            outcomes[name] = BadReplyError(f"the broker's reply has no result for the topic {name!r}")
        elif not row["error_code"]:
            outcomes[name] = mutation.value(row)
        else:
            throttle_ms: int = reply.get("throttle_time_ms", 0)
            error = broker_error(row["error_code"], row.get("error_message"), throttle_time_ms=throttle_ms)
            if retry and isinstance(error, ThrottlingQuotaExceeded):
                refusals[name] = _Refusal(error=error, at=trio.current_time())
            else:
                outcomes[name] = error
    return refusals
