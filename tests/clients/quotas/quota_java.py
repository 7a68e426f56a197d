"""Java's AdminClient and producers with a client id of their own, and the throttle times that they report."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from testbed.kafka.jvm import start_jvm
from tests.clients.fronts import unique
from tests.clients.java_clients import CLIENTS, COMMON, JavaClients, done

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXCEEDED: Final = f"{COMMON}.errors.ThrottlingQuotaExceededException"


class JavaAdmin:
    """An AdminClient. ``retry`` is ``retryOnQuotaViolation``, which is on by default."""

    def __init__(self, java: JavaClients, admin: Any) -> None:
        self._java = java
        self._admin = admin

    def creates(self, *topics: tuple[str, int], retry: bool = True) -> Any:
        """CreateTopics, as it was answered topic by topic."""
        optional, new = start_jvm().java.util.Optional, self._java.cls(f"{CLIENTS}.admin.NewTopic")
        count = start_jvm().java.lang.Integer
        wanted = [new(topic, optional.of(count(partitions)), optional.empty()) for topic, partitions in topics]
        return self._admin.createTopics(wanted, self._options("CreateTopicsOptions", retry)).values()

    def deletes(self, *topics: str, retry: bool = True) -> Any:
        """DeleteTopics by name."""
        return self._admin.deleteTopics([*topics], self._options("DeleteTopicsOptions", retry)).topicNameValues()

    def deletes_by_id(self, *ids: bytes, retry: bool = True) -> dict[bytes, Any]:
        """DeleteTopics by id."""
        uuid = self._java.cls(f"{COMMON}.Uuid")
        wanted = {each: uuid(*(int.from_bytes(each[at : at + 8], "big", signed=True) for at in (0, 8))) for each in ids}
        collection = self._java.cls(f"{COMMON}.TopicCollection").ofTopicIds([*wanted.values()])
        found = self._admin.deleteTopics(collection, self._options("DeleteTopicsOptions", retry)).topicIdValues()
        return {each: found.get(of) for each, of in wanted.items()}

    def adds(self, *topics: tuple[str, int], retry: bool = True) -> Any:
        """CreatePartitions; how many there are to be in all."""
        new = self._java.cls(f"{CLIENTS}.admin.NewPartitions")
        wanted = start_jvm().java.util.LinkedHashMap()
        for topic, count in topics:
            wanted.put(topic, new.increaseTo(count))
        return self._admin.createPartitions(wanted, self._options("CreatePartitionsOptions", retry)).values()

    def _options(self, name: str, retry: bool) -> Any:
        options = self._java.cls(f"{CLIENTS}.admin.{name}")()
        return options if retry else options.retryOnQuotaViolation(False)


@contextlib.contextmanager
def java_admin(java: JavaClients) -> Iterator[JavaAdmin]:
    """A new AdminClient with a client id of its own."""
    with _admin_of(java, unique("java-admin")) as admin:
        yield JavaAdmin(java, admin)


def refused_for_ms(future: Any) -> int:
    """The throttle time of the ThrottlingQuotaExceededException that a future fails with; fails if it does not."""
    with pytest.raises(start_jvm().java.util.concurrent.ExecutionException) as raised:
        done(future)
    cause = raised.value.getCause()
    assert cause.getClass().getName() == _EXCEEDED, cause
    return int(cause.throttleTimeMs())


def longest_throttle_ms(client: Any, kind: str = "produce") -> float:
    """The client's own ``produce-throttle-time-max`` or ``fetch-throttle-time-max``."""
    for each in client.metrics().entrySet():
        if str(each.getKey().name()) == f"{kind}-throttle-time-max":
            return float(each.getValue().metricValue())
    raise AssertionError(f"no metric {kind}-throttle-time-max")


@contextlib.contextmanager
def _admin_of(java: JavaClients, client_id: str) -> Iterator[Any]:
    client = java.cls(f"{CLIENTS}.admin.Admin").create(java._config({"client_id": client_id}))
    try:
        yield client
    finally:
        client.close(java.seconds(5))
