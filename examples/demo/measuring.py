"""Bytes over time: written to the brokers, by their end offsets, and received by the consumer.

Producers are measured at the brokers, so that the result does not depend on their own reports. Times are seconds of the
monotonic clock.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from testbed.errors import TestbedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from examples.demo.scenario import Topic

ASK_TIMEOUT_S: Final = 20.0
"""A broker answers within 0.1 s here; it takes longer on a machine under load."""
STEP_S: Final = 0.1
"""Time step of averages."""


class Series:
    """A total that only grows, sampled at irregular times."""

    __slots__ = ("_times", "_totals")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._totals: list[int] = []

    def add(self, at_s: float, total: int) -> None:
        """Add a sample; its time must be later than those before."""
        self._times.append(at_s)
        self._totals.append(total)

    @property
    def total(self) -> int:
        """The latest total."""
        return self._totals[-1] if self._totals else 0

    def total_at(self, at_s: float) -> float:
        """Return the total at a time, linearly interpolated; 0 before the first sample, the latest after the last."""
        after = bisect.bisect_right(self._times, at_s)
        if after == 0:
            return 0.0
        if after == len(self._times):
            return float(self._totals[-1])
        begin_s, end_s = self._times[after - 1], self._times[after]
        share = (at_s - begin_s) / (end_s - begin_s)
        return self._totals[after - 1] + share * (self._totals[after] - self._totals[after - 1])

    def rate(self, now_s: float, span_s: float) -> float:
        """Return the bytes per second over the last `span_s` seconds; the rate before the first sample counts as 0."""
        return (self.total_at(now_s) - self.total_at(now_s - span_s)) / span_s

    def smoothed(self, now_s: float, window_s: float, smoothing_s: float) -> float:
        """Return the rate over `window_s` seconds, averaged over the last `smoothing_s` seconds."""
        steps = round(smoothing_s / STEP_S)
        return statistics.fmean(self.rate(now_s - step * STEP_S, window_s) for step in range(steps))

    def per_second(self, now_s: float, seconds: int) -> list[float]:
        """Return the bytes of each of the last `seconds` seconds, the latest last."""
        edges = [self.total_at(now_s - back) for back in range(seconds, -1, -1)]
        return [after - before for before, after in itertools.pairwise(edges)]


class Brokers:
    """The demo's own connection to the cluster, without the proxy: creates topics and reads end offsets."""

    def __init__(self, bootstrap_servers: str, partitions: int) -> None:
        # No logs, since at the end of the demo the brokers end before this connection is closed.
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "client.id": "demo", "log_level": 0})
        self._partitions = partitions

    def create(self, topics: Sequence[Topic]) -> None:
        """Create topics with a partition on every broker. Raises TestbedError."""
        wanted = [
            NewTopic(
                topic.name,
                num_partitions=self._partitions,
                replication_factor=1,
                config=dict(topic.config),
            )
            for topic in topics
        ]
        futures = self._admin.create_topics(wanted, request_timeout=ASK_TIMEOUT_S)
        for name, future in futures.items():
            try:
                future.result(ASK_TIMEOUT_S)
            except Exception as error:
                raise TestbedError(f"topic {name} cannot be created: {error}") from error

    def bytes_written(self, topics: Sequence[Topic]) -> tuple[float, Mapping[str, int]]:
        """Return the time, and the bytes of record values written to each topic so far. Raises TestbedError."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        specs = {TopicPartition(topic.name, number): latest for topic in topics for number in range(self._partitions)}
        record_bytes = {topic.name: topic.record_bytes for topic in topics}
        totals = dict.fromkeys(record_bytes, 0)
        asked_s = time.monotonic()
        try:
            for partition, future in self._admin.list_offsets(specs, request_timeout=ASK_TIMEOUT_S).items():
                totals[partition.topic] += future.result(ASK_TIMEOUT_S).offset * record_bytes[partition.topic]
        except Exception as error:
            raise TestbedError(f"the brokers' end offsets cannot be read: {error}") from error
        return (asked_s + time.monotonic()) / 2, totals
