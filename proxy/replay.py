"""``headrace replay``: what these quotas would have done to this traffic.

A trace is charged line by line to the same buckets, by the same precedence, as live traffic is (`ClientQuotas` over
`DefaultQuotaCallback`); only its times come from the trace, and nobody waits. Called by `proxy.replay_files`; knows no
files, sockets or loop. Memory grows with the entities, not with the trace.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Final

from proxy.replay_lines import MAX_LINE_BYTES, BadLineError, Change, Members, Op, Usage, parse, read, read_windows
from proxy.replay_summary import Summary
from quota_callbacks.buckets import MutationBucket, ProducerIdBucket, RateBucket
from quota_callbacks.client_quotas import ClientQuotas
from quota_callbacks.default_quotas import DefaultQuotaCallback
from quota_callbacks.entities import QuotaKey
from quota_callbacks.policies import KAFKAS_WAY
from quota_callbacks.request_percentage import PERCENT_PER_NS
from quota_callbacks.verdicts import Refuse, Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from quota_callbacks.buckets import QuotaBucket
    from quota_callbacks.sampled_rate import Window

SWEEP_MS: Final = 30_000
"""How often idle buckets are looked for (``Metrics``: every 30 s), counted from the first line that has a time."""

MAX_RESOLVED: Final = 10_000
"""Resolved names that are kept: many names can share a bucket, so without a cap they would outgrow the buckets."""

PROGRESS_BYTES: Final = 256 * 1024
"""How much is read between two reports of progress."""

_KEYS: Final = {
    Op.PRODUCE: QuotaKey.PRODUCER_BYTE_RATE,
    Op.FETCH: QuotaKey.CONSUMER_BYTE_RATE,
    Op.REQUEST: QuotaKey.REQUEST_PERCENTAGE,
    Op.CONTROLLER_MUTATION: QuotaKey.CONTROLLER_MUTATION_RATE,
    Op.PRODUCER_ID: QuotaKey.PRODUCER_IDS_RATE,
}


class TraceError(Exception):
    """A trace that cannot be replayed. ``str()`` names the line."""


class Replay:
    """Quotas, and the usage that is charged to them."""

    def __init__(self, windows: Mapping[QuotaKey, Window]) -> None:
        self._callback = DefaultQuotaCallback()
        self.quotas = ClientQuotas(
            windows=windows, metric_tags=self._callback.quota_metric_tags, quota_limit=self._callback.quota_limit
        )
        self._limits_changed = False
        self._resolved: dict[tuple[Op, str, str], QuotaBucket | None] = {}
        self._resolved_at = 0
        self._now_ms = 0
        self._next_sweep_ms: int | None = None
        self.expired = 0
        """Buckets that were dropped since nobody used them for an hour."""

    def alter(self, change: Change) -> None:
        """Set and remove quotas of one entity; debts and histories stay. Raises `BadLineError` if time goes back."""
        self._advance(change.t_ms)
        for key, value in change.values.items():
            self._callback.update_quota(key, change.entity, value, KAFKAS_WAY)
        for key in change.removed:
            self._callback.remove_quota(key, change.entity)
        self._limits_changed = True

    def charge(self, usage: Usage) -> Throttle | Refuse | None:
        """Charge it to its bucket; ``None`` for who is within his quota, or has none.

        Raises `BadLineError` if time goes back.
        """
        self._advance(usage.t_ms)
        if self._limits_changed:  # once for a run of alter lines: nothing sees the limits in between
            self.quotas.quotas_changed()
            self._limits_changed = False
        bucket = self._bucket(usage)
        return None if bucket is None else _charge(bucket, usage)

    def _bucket(self, usage: Usage) -> QuotaBucket | None:
        """Resolve it, or take what was resolved since the table last lost or changed a bucket."""
        quotas, resolved = self.quotas, self._resolved
        if quotas.generation != self._resolved_at or len(resolved) >= MAX_RESOLVED:
            resolved.clear()
            self._resolved_at = quotas.generation
        name = (usage.op, usage.user, usage.client_id)
        if name in resolved:
            bucket = resolved[name]
            if bucket is None or not bucket.dropped:
                return bucket
        bucket = resolved[name] = quotas.bucket(_KEYS[usage.op], usage.user, usage.client_id)
        return bucket

    def _advance(self, now_ms: int) -> None:
        if now_ms < self._now_ms:
            raise BadLineError(f"t is {now_ms}, after a line with {self._now_ms}; expected times that do not go back")
        self._now_ms = now_ms
        if self._next_sweep_ms is None:
            self._next_sweep_ms = now_ms + SWEEP_MS
        if now_ms >= self._next_sweep_ms:
            self._sweep(self._next_sweep_ms)

    def _sweep(self, due_ms: int) -> None:
        """Drop idle buckets, as of the last sweep that was due by now: it finds what those before would have found."""
        last_ms = self._now_ms - (self._now_ms - due_ms) % SWEEP_MS
        self._next_sweep_ms = last_ms + SWEEP_MS
        self.expired += self.quotas.expire(last_ms)


def _charge(bucket: QuotaBucket, usage: Usage) -> Throttle | Refuse | None:
    amount, now_ms = usage.amount, usage.t_ms
    match bucket:
        case RateBucket():
            if usage.op is Op.FETCH:
                return _fetch(bucket, amount, now_ms)
            if usage.op is Op.REQUEST:
                percent = round(amount * 1e6) * PERCENT_PER_NS
                return bucket.charge(percent, now_ms, longest_ms=bucket.window.seconds * 1000)
            return bucket.charge(amount, now_ms)
        case MutationBucket():
            return _mutate(bucket, usage)
        case ProducerIdBucket():
            return bucket.charge(int(amount), now_ms)
        case _:
            raise TypeError(f"replay cannot charge a {type(bucket).__name__}")


def _fetch(bucket: RateBucket, amount: float, now_ms: int) -> Throttle | None:
    """A throttled Fetch is answered empty, so its bytes are un-recorded (``unrecordQuotaSensor``)."""
    verdict = bucket.charge(amount, now_ms)
    if verdict is not None:
        bucket.record(-amount, now_ms)
    return verdict


def _mutate(bucket: MutationBucket, usage: Usage) -> Throttle | Refuse | None:
    """KIP-599: strict admits or refuses; permissive charges in any case, and throttles while overdrawn."""
    now_ms = usage.t_ms
    if not usage.strict:
        bucket.charge(usage.amount, now_ms)
        return bucket.throttle(now_ms)
    denied = bucket.admit(usage.amount, now_ms)
    return None if denied is None else Refuse(throttle_ms=denied.throttle_ms, reason=denied.reason)


def replay(trace: IO[bytes], name: str, out: IO[bytes], progress: Callable[[int], None] = lambda _: None) -> Summary:
    """Replay ``trace``, called ``name`` in errors, and write each usage line with its verdict to ``out``.

    ``progress`` is told, now and then, how many more bytes were read. Raises `TraceError` for the first bad line;
    what was written by then is to be thrown away.
    """
    summary = Summary()
    number = unreported = 0
    replaying: Replay | None = None
    try:
        for number, line in enumerate(_lines(trace), 1):
            summary.lines = number
            unreported += len(line)
            if unreported >= PROGRESS_BYTES:
                progress(unreported)
                unreported = 0
            text = _text(line)
            members = parse(text)
            if replaying is None:
                replaying = Replay(read_windows(members))
                continue
            entry = read(members)
            if isinstance(entry, Change):
                replaying.alter(entry)
                summary.changed(entry.t_ms)
                continue
            verdict = replaying.charge(entry)
            summary.count(entry, verdict)
            out.write(_answer(text, members, verdict))
    except BadLineError as error:
        raise TraceError(f"{name}: line {number}: {error}") from error
    if replaying is None:
        raise TraceError(f"{name}: line 1: nothing, the trace is empty; expected a window line")
    progress(unreported)
    summary.expired, summary.evicted = replaying.expired, replaying.quotas.evicted
    return summary


def _lines(trace: IO[bytes]) -> Iterator[bytes]:
    while line := trace.readline(MAX_LINE_BYTES + 1):
        yield line


def _text(line: bytes) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise BadLineError(f"too long; expected at most {MAX_LINE_BYTES} bytes")
    try:
        return line.decode().strip(" \t\r\n")
    except UnicodeDecodeError as error:
        raise BadLineError(f"not UTF-8 (byte {error.start + 1}); expected one JSON object") from error


def _answer(text: str, members: Members, verdict: Throttle | Refuse | None) -> bytes:
    """The line as it was, to the letter, with what was decided behind it."""
    throttle_ms = 0 if verdict is None else verdict.throttle_ms
    accepted = not isinstance(verdict, Refuse)
    if "throttle_time_ms" in members or "accepted" in members:  # of an earlier replay, or what a broker said
        members |= {"throttle_time_ms": throttle_ms, "accepted": accepted}
        try:
            return (json.dumps(members, allow_nan=False) + "\n").encode()
        except ValueError as error:
            raise BadLineError("holds a number that is too large; expected what a double holds") from error
    said = f'"throttle_time_ms": {throttle_ms}, "accepted": {"true" if accepted else "false"}'
    return f"{text[:-1].rstrip()}, {said}}}\n".encode()
