"""Kafka 4.3.1's own quota managers, in this process and with a clock that the test sets.

``ClientQuotaManager`` for bytes, ``ClientRequestQuotaManager``, ``ControllerMutationQuotaManager``, with the same
methods as `OurQuotas`.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.quota_callbacks.entities import DEFAULT, EntityName, QuotaKey
from headrace.quota_callbacks.requests import PERCENT_PER_NS
from testbed.kafka.jvm import kafka_classes, start_jvm
from tests.quota_callbacks.our_quotas import FREE, KEY_OF, Op, Outcome

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.quota_callbacks.buckets.sampled_rate import Window

VERSION: Final = "4.3.1"
EPOCH_MS: Final = 1_700_000_000_000
"""Kafka's token buckets are empty at time 0, so its clock has to be far from it."""

QUOTAS: Final = "org.apache.kafka.server.quota"
METRICS: Final = "org.apache.kafka.common.metrics"
METRIC_NAMES: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: "Produce",
    QuotaKey.CONSUMER_BYTE_RATE: "Fetch",
    QuotaKey.REQUEST_PERCENTAGE: "Request",
    QuotaKey.CONTROLLER_MUTATION_RATE: "ControllerMutation",
}


@functools.cache
def java(name: str) -> Any:
    """Return a Java class, of the JDK or of Kafka's broker."""
    if "kafka." in name:
        return kafka_classes(VERSION, jars="broker").cls(name)
    return start_jvm().JClass(name)


class Clock:
    """The methods of ``org.apache.kafka.common.utils.Time`` that the quota managers call."""

    def __init__(self) -> None:
        self.now_ms = EPOCH_MS
        self._long = start_jvm().JLong

    def milliseconds(self) -> Any:
        return self._long(self.now_ms)

    def hiResClockMs(self) -> Any:  # noqa: N802 - Java's name
        return self._long(self.now_ms)

    def nanoseconds(self) -> Any:
        return self._long(self.now_ms * 1_000_000)


class KafkaQuotas:
    """Kafka's quota managers. Must be closed, since each has a thread. Times are ms since `EPOCH_MS`."""

    def __init__(self, window: Window) -> None:
        self._clock = Clock()
        time = start_jvm().JProxy(java("org.apache.kafka.common.utils.Time"), inst=self._clock)
        config = java("org.apache.kafka.server.config.ClientQuotaManagerConfig")(window.samples, window.seconds)
        empty = java("java.util.Optional").empty()
        types, manager = java(f"{QUOTAS}.QuotaType"), java(f"{QUOTAS}.ClientQuotaManager")
        self.metrics = metrics = java(f"{METRICS}.Metrics")(time)
        self._managers = {
            QuotaKey.PRODUCER_BYTE_RATE: manager(config, metrics, types.PRODUCE, time, "p"),
            QuotaKey.CONSUMER_BYTE_RATE: manager(config, metrics, types.FETCH, time, "f"),
            QuotaKey.REQUEST_PERCENTAGE: java("kafka.server.ClientRequestQuotaManager")(
                config, metrics, time, "r", empty
            ),
            QuotaKey.CONTROLLER_MUTATION_RATE: java(f"{QUOTAS}.ControllerMutationQuotaManager")(
                config, metrics, time, "m", empty
            ),
        }
        expiry = java(f"{METRICS}.Metrics$ExpireSensorTask").class_.getDeclaredConstructors()[0]
        expiry.setAccessible(True)
        self._expiry = expiry.newInstance(metrics)
        self._sessions: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for manager in self._managers.values():
            manager.shutdown()
        self.metrics.close()

    def set(self, key: QuotaKey, user: EntityName | None, client_id: EntityName | None, value: float | None) -> None:
        some, manager = java("java.util.Optional").ofNullable, java(f"{QUOTAS}.ClientQuotaManager")
        if user is DEFAULT:
            user_entity = manager.DEFAULT_USER_ENTITY
        else:
            user_entity = user and java(f"{QUOTAS}.ClientQuotaManager$UserEntity")(self._session(user).sanitizedUser)
        if client_id is DEFAULT:
            client_entity = manager.DEFAULT_USER_CLIENT_ID
        else:
            client_entity = client_id and java(f"{QUOTAS}.ClientQuotaManager$ClientIdEntity")(client_id)
        quota = None if value is None else java(f"{METRICS}.Quota")(float(value), True)  # an upper bound
        self._managers[key].updateQuota(some(user_entity), some(client_entity), some(quota))

    def use(self, op: Op, user: str, client_id: str, amount: float, now_ms: int) -> Outcome:
        self._clock.now_ms = now = EPOCH_MS + now_ms
        manager, session = self._managers[KEY_OF[op]], self._session(user)
        if op is Op.STRICT:
            return self._strict(manager.newStrictQuotaFor(session, client_id), amount)
        if op is Op.PERMISSIVE:
            quota = manager.newPermissiveQuotaFor(session, client_id)
            quota.record(float(amount))
            return Outcome(int(quota.throttleTime()))
        if op is Op.NETWORK:
            if manager.quotasEnabled():  # as KafkaApis sets the callback only then
                manager.recordNoThrottle(session, client_id, amount * PERCENT_PER_NS)
            return FREE
        value = amount * PERCENT_PER_NS if op is Op.REQUEST else float(amount)
        throttle_ms = int(manager.maybeRecordAndGetThrottleTimeMs(session, client_id, value, now))
        if op is Op.FETCH and throttle_ms > 0:
            manager.unrecordQuotaSensor(session, client_id, value, now)
        return Outcome(throttle_ms)

    def note_throttle(self, op: Op, user: str, client_id: str, throttle_ms: int) -> None:
        """Record a throttle time as ``ClientQuotaManager.throttle`` does, without muting a channel."""
        sensors = self._managers[KEY_OF[op]].getOrCreateQuotaSensors(self._session(user), client_id)
        sensors.throttleTimeSensor().record(float(throttle_ms), self._clock.now_ms)

    def expire(self, now_ms: int) -> None:
        """Remove idle sensors (``Metrics.ExpireSensorTask``)."""
        self._clock.now_ms = EPOCH_MS + now_ms
        self._expiry.run()

    def metric(self, key: QuotaKey, name: str, tags: dict[str, str], now_ms: int) -> float:
        self._clock.now_ms = EPOCH_MS + now_ms
        names = java("java.util.HashMap")()
        for tag, value in tags.items():
            names.put(tag, value)
        metric = self.metrics.metric(self.metrics.metricName(name, METRIC_NAMES[key], "", names))
        return math.nan if metric is None else float(metric.metricValue())

    def _session(self, user: str) -> Any:
        session = self._sessions.get(user)
        if session is None:
            principal = java("org.apache.kafka.common.security.auth.KafkaPrincipal")("User", user)
            address = java("java.net.InetAddress").getLoopbackAddress()
            session = self._sessions[user] = java("org.apache.kafka.network.Session")(principal, address)
        return session

    def _strict(self, quota: Any, amount: float) -> Outcome:
        try:
            quota.record(float(amount))
        except java("org.apache.kafka.common.errors.ThrottlingQuotaExceededException") as error:
            return Outcome(int(error.throttleTimeMs()), accepted=False)
        return FREE
