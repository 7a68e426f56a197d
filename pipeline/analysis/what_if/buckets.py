"""The buckets that usage is charged to, and its senders, by number.

Which bucket a sender's usage is charged to is asked of the quota callback once for each sender, not for each event.
Numbers are smaller than names and faster to compare, and those of senders are in the order of their names. Pure: the
names come from `headrace.pipeline.analysis.what_if.answers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.records.replay import KEYS, Op, Replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.pipeline.analysis.what_if.quotas import Quotas
    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.entities import QuotaKey

OPS: Final = (Op.PRODUCE, Op.FETCH, Op.REQUEST, Op.CONTROLLER_MUTATION, Op.NEW_PRODUCER_IDS)
"""The operations of usage records; each has a quota key of its own."""

RATES: Final = (Op.PRODUCE, Op.FETCH, Op.REQUEST)
"""The operations whose quotas are rates; those of the others are token buckets."""

Sender = tuple[str, str]
"""User and client id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket that has a limit."""

    op: Op
    """The operation that is charged to it."""
    user: str
    """The user in the bucket's metric tags; empty if all users share the bucket."""
    client_id: str
    """The client id in the bucket's metric tags; empty if all client ids share the bucket."""
    entity: str
    """The entity that has the quota."""
    limit: float
    window: Window


@dataclass(frozen=True, slots=True)
class Buckets:
    """The senders and buckets by number."""

    senders: list[Sender] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)
    by_op: dict[Op, list[int | None]] = field(default_factory=dict)
    """For each operation with limits, the number of each sender's bucket."""


def find_buckets(senders: Iterable[Sender], quotas: Quotas) -> Buckets:
    """Return the buckets of ``senders`` under quotas that never change."""
    found = Buckets(senders=sorted(senders))
    replay = replay_of(quotas)
    numbers: dict[tuple[Op, str, str], int] = {}
    for op in OPS:
        column = [_number(replay, op, sender, quotas.windows, found.buckets, numbers) for sender in found.senders]
        if any(number is not None for number in column):
            found.by_op[op] = column
    return found


def replay_of(quotas: Quotas) -> Replay:
    """Return a replay with the quotas that apply from the beginning."""
    replay = Replay(quotas.windows, began_ms=quotas.began_ms)
    for order, change in quotas.changes:
        if order == 0:
            replay.alter(change)
    return replay


def _number(
    replay: Replay,
    op: Op,
    sender: Sender,
    windows: Mapping[QuotaKey, Window],
    buckets: list[Bucket],
    numbers: dict[tuple[Op, str, str], int],
) -> int | None:
    """Return the number of a sender's bucket, which is added to ``buckets`` if it is new; ``None`` without a limit."""
    tags = replay.tags(op, *sender)
    if tags is None:
        return None
    name = (op, tags["user"], tags["client-id"])
    number = numbers.get(name)
    if number is not None:
        return number
    limit = replay.limit(op, tags)
    if limit is None:
        return None
    numbers[name] = number = len(buckets)
    _, user, client_id = name
    buckets.append(
        Bucket(
            op=op,
            user=user,
            client_id=client_id,
            entity=limit.entity,
            limit=float(limit),
            window=windows[KEYS[op]],
        )
    )
    return number
