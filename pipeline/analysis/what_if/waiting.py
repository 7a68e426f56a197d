"""Usage whose senders wait for their throttle times: by how much it is delayed.

A sender (user and client id) is one connection: what it would send while it is muted is sent in order when the mute
ends. `headrace.pipeline.analysis.what_if.loop` uses this for one bucket at a time, and the charges are those of
`headrace.quota_callbacks.records.replay`. Pure Python. Memory is bounded: the waiting usage of a sender that falls
behind permanently is merged into `QUEUED` entries.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.pipeline.analysis.events import open_second
from headrace.quota_callbacks.records.replay import Usage, charge
from headrace.quota_callbacks.verdicts import Refuse

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.kinds import QuotaBucket
    from headrace.quota_callbacks.verdicts import Throttle

QUEUED: Final = 600
"""Maximum number of entries that wait per sender: ten minutes of seconds. Further usage is added to the last entry."""

KEPT: Final = 10_000
"""Number of senders above which those without waiting usage are removed."""


class WaitingUsage:
    """Waiting usage: its amount, and its intended times, as the mean weighted by amount and as the earliest."""

    __slots__ = ("amount", "first_ms", "hour", "mean_ms", "usage")

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.amount = usage.amount
        self.mean_ms = float(usage.t_ms)
        self.first_ms = usage.t_ms
        self.hour = usage.t_ms // 3_600_000

    def add(self, usage: Usage) -> None:
        """Merge ``usage`` into this entry."""
        amount = self.amount + usage.amount
        self.mean_ms += (usage.t_ms - self.mean_ms) * usage.amount / amount
        self.amount = amount


class HourlyDelay:
    """The delays of usage intended for one hour."""

    __slots__ = ("amount", "amount_ms", "longest_ms", "waited_ms", "waits")

    def __init__(self) -> None:
        self.waits = 0
        self.waited_ms = 0
        self.amount = 0.0
        self.amount_ms = 0.0
        self.longest_ms = 0


class Sender:
    """The waiting usage of one sender, and the time at which its mute ends."""

    __slots__ = ("entries", "free_ms")

    def __init__(self) -> None:
        self.free_ms = 0
        self.entries: deque[WaitingUsage] = deque()


class WaitingSenders:
    """The senders of one bucket."""

    def __init__(self, bucket: QuotaBucket) -> None:
        self._bucket = bucket
        self._senders: dict[tuple[str, str], Sender] = {}
        self._due: list[tuple[int, int, Sender]] = []
        self._turn = 0
        self._most = KEPT
        self.hours: dict[int, HourlyDelay] = {}

    def send(self, usage: Usage) -> None:
        """Send ``usage`` at its time, or queue it behind its sender's waiting usage. Times must not decrease."""
        due = self._due
        while due and due[0][0] <= usage.t_ms:
            self._send_lot()
        sender = self._sender(usage)
        free = not sender.entries and sender.free_ms <= usage.t_ms
        if free and self._charge(sender, usage, usage.t_ms // 3_600_000):
            return
        if len(sender.entries) >= QUEUED:
            sender.entries[-1].add(usage)
            return
        self._wait(sender, usage)

    def throttled(self, usage: Usage, verdict: Throttle | Refuse) -> None:
        """Mute the sender of ``usage``, the last usage, which was charged to the bucket elsewhere."""
        sender = self._sender(usage)
        self._mute(sender, usage.t_ms, usage.t_ms // 3_600_000, verdict)
        if isinstance(verdict, Refuse):
            self._wait(sender, usage)

    def finish(self) -> None:
        """Send the usage that still waits."""
        while self._due:
            self._send_lot()

    def _sender(self, usage: Usage) -> Sender:
        name = (usage.user, usage.client_id)
        sender = self._senders.get(name)
        if sender is None:
            if len(self._senders) >= self._most:
                self._forget(usage.t_ms)
            sender = self._senders[name] = Sender()
        return sender

    def _forget(self, now_ms: int) -> None:
        """Remove the senders that neither wait nor are muted."""
        self._senders = {
            name: sender for name, sender in self._senders.items() if sender.entries or sender.free_ms > now_ms
        }
        self._most = max(KEPT, 2 * len(self._senders))

    def _wait(self, sender: Sender, usage: Usage) -> None:
        sender.entries.append(WaitingUsage(usage))
        if len(sender.entries) == 1:
            self._push(sender)

    def _push(self, sender: Sender) -> None:
        self._turn += 1
        heapq.heappush(self._due, (sender.free_ms, self._turn, sender))

    def _send_lot(self) -> None:
        at_ms, _, sender = heapq.heappop(self._due)
        entry = sender.entries.popleft()
        delay = self._delay_in(entry.hour)
        delay.amount += entry.amount
        delay.amount_ms += entry.amount * (at_ms - entry.mean_ms)
        delay.longest_ms = max(delay.longest_ms, at_ms - entry.first_ms)
        usage = entry.usage
        # Not strict: it might be refused forever while other senders use the bucket.
        usage.t_ms, usage.amount, usage.strict = at_ms, entry.amount, False
        self._charge(sender, usage, entry.hour)
        if sender.entries:
            self._push(sender)

    def _charge(self, sender: Sender, usage: Usage, hour: int) -> bool:
        """Charge ``usage``; return whether it was accepted. Refused usage has to be sent again."""
        open_second(self._bucket, usage.t_ms)
        verdict = charge(self._bucket, usage, empty_fetches=False)
        if verdict is not None:
            self._mute(sender, usage.t_ms, hour, verdict)
        return not isinstance(verdict, Refuse)

    def _mute(self, sender: Sender, now_ms: int, hour: int, verdict: Throttle | Refuse) -> None:
        delay = self._delay_in(hour)
        delay.waits += 1
        delay.waited_ms += verdict.throttle_ms
        sender.free_ms = now_ms + max(verdict.throttle_ms, 1)

    def _delay_in(self, hour: int) -> HourlyDelay:
        delay = self.hours.get(hour)
        if delay is None:
            delay = self.hours[hour] = HourlyDelay()
        return delay
