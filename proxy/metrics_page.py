"""The Prometheus page: reads the counters when it is asked for, so that counting costs nothing on the path of a
byte. It is written in a thread that pauses, so that a long page costs the loop little (`proxy.yielding`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from proxy.wire.apis import API_NAMES
from proxy.yielding import PacedList, collector_off

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from proxy.client_connection import ClientConnection
    from proxy.house import House
    from quota_callbacks.hookspecs import Metric as Series


class MetricsPage:
    """All metrics of the process in Prometheus' text format."""

    def __init__(self, house: House, connections: Collection[ClientConnection]) -> None:
        self._house = house
        self._connections = connections
        self._one_at_a_time = trio.Lock()
        self._ours: list[Metric] = []
        self._plugins: list[Series] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    async def render(self) -> bytes:
        """The page as it is now: read on the loop, written in a thread, since it may be a megabyte."""
        async with self._one_at_a_time:
            with collector_off():
                hooks = self._house.hooks
                await hooks.prepare_metrics()
                self._plugins = list(hooks.collect_metrics())
                self._ours = [
                    *self._connection_metrics(),
                    *self._byte_metrics(),
                    *self._quota_metrics(),
                    _labelled("plugin_errors", "Errors that plugins raised, by plugin.", "plugin", hooks.failures),
                ]
                try:
                    return await trio.to_thread.run_sync(generate_latest, self._registry)
                finally:
                    self._ours, self._plugins = [], []

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client for each page, in the thread."""
        yield from self._ours
        yield from _families(self._plugins)

    def _connection_metrics(self) -> Iterator[Metric]:
        counters, now_s = self._house.counters, trio.current_time()
        in_flight = sum(len(connection.in_flight) for connection in self._connections)
        muted = sum(connection.mute.until_s > now_s for connection in self._connections)
        yield _gauge("connections", "Client connections that are open.", counters.connections)
        yield _gauge(
            "upstream_connections", "Connections to brokers on behalf of clients.", counters.upstream_connections
        )
        yield _gauge("muted_connections", "Clients that are not read because of a quota (Kafka: queue-size).", muted)
        yield _gauge("requests_in_flight", "Requests whose reply has not been sent.", in_flight)
        yield _counter("connections_accepted", "Client connections accepted.", counters.connections_accepted)
        yield _labelled(
            "connections_refused", "Connections closed at once, by limit.", "limit", counters.connections_refused
        )
        yield _labelled("errors", "Connections that ended with an error, by whose fault.", "fault", counters.errors)
        requests = {API_NAMES.get(key, str(key)): count for key, count in counters.requests.items()}
        yield _labelled("requests", "Requests read from clients, by API.", "api", requests)

    def _byte_metrics(self) -> Iterator[Metric]:
        counters = self._house.counters
        totals = {
            ("client", "in"): counters.bytes_from_clients,
            ("client", "out"): counters.bytes_to_clients,
            ("upstream", "in"): counters.bytes_from_upstream,
            ("upstream", "out"): counters.bytes_to_upstream,
        }
        for connection in self._connections:
            for side, channel in (("client", connection.client), ("upstream", connection.upstream)):
                if channel is not None:
                    totals[side, "in"] += channel.bytes_received
                    totals[side, "out"] += channel.bytes_sent
        metric = CounterMetricFamily(
            "headrace_bytes", "Bytes read (in) and written (out).", labels=("side", "direction")
        )
        for labels, value in totals.items():
            metric.add_metric(labels, value)
        yield metric
        yield _counter("spliced_bytes", "Those of them that never entered user space.", counters.bytes_spliced)
        yield _counter("leader_hints_hidden", "Fetch replies whose leader hint was made inert.", counters.hints_hidden)

    def _quota_metrics(self) -> Iterator[Metric]:
        counters, topology = self._house.counters, self._house.topology
        yield _labelled("throttled_requests", "Requests that a quota throttled, by quota.", "quota", counters.throttled)
        yield _counter("throttle_time_seconds", "Sum of all throttle times.", counters.throttled_ms / 1000)
        yield _counter("refused_requests", "Requests that a quota refused.", counters.refused)
        text = "Requests that a quota in shadow mode would have throttled or refused, by quota."
        yield _labelled("observed_requests", text, "quota", counters.observed)
        yield _counter("lookups", "Requests of the proxy's own, to know what a mutation costs.", counters.lookups)
        yield _gauge("enforcement_enabled", "1 while quotas are enforced.", int(self._house.enforcement.enabled))
        yield _gauge("brokers", "Brokers that the proxy knows.", len(topology.metadata.brokers))
        yield _gauge("brokers_out_of_range", "Brokers whose id is outside listen.node_ids.", len(topology.out_of_range))


def _families(series: Iterable[Series]) -> Iterator[Metric]:
    """What plugins told, by name, in lists that leave the interpreter to the loop now and then."""
    families: dict[str, Metric] = {}
    for sample in PacedList(series):
        metric = families.get(sample.name)
        if metric is None:
            family = CounterMetricFamily if sample.total else GaugeMetricFamily
            metric = families[sample.name] = family(f"headrace_{sample.name}", sample.help)
            metric.samples = PacedList()
        suffix = "_total" if sample.total else ""
        metric.add_sample(f"headrace_{sample.name}{suffix}", dict(sample.labels), sample.value)
    yield from families.values()


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"headrace_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"headrace_{name}", text, value=value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    metric = CounterMetricFamily(f"headrace_{name}", text, labels=(label,))
    for key, value in values.items():
        metric.add_metric((key,), value)
    return metric
