"""The Prometheus page: reads the counters when it is asked for, so that counting costs nothing on the path of a
byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from proxy.wire.apis import API_NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from proxy.client_connection import ClientConnection
    from proxy.house import House

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """All metrics of the process in Prometheus' text format."""

    def __init__(self, house: House, connections: Collection[ClientConnection]) -> None:
        self._house = house
        self._connections = connections
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self) -> bytes:
        """The page as it is now."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client for each page."""
        yield from self._connection_metrics()
        yield from self._byte_metrics()
        yield from self._quota_metrics()
        yield from self._plugin_metrics()

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
        yield _gauge("enforcement_enabled", "1 while quotas are enforced.", int(self._house.enforcement.enabled))
        yield _gauge("brokers", "Brokers that the proxy knows.", len(topology.metadata.brokers))
        yield _gauge("brokers_out_of_range", "Brokers whose id is outside listen.node_ids.", len(topology.out_of_range))

    def _plugin_metrics(self) -> Iterator[Metric]:
        hooks = self._house.hooks
        yield _labelled("plugin_errors", "Errors that plugins raised, by plugin.", "plugin", hooks.failures)
        families: dict[str, Metric] = {}
        for sample in hooks.collect_metrics():
            metric = families.get(sample.name)
            if metric is None:
                family = CounterMetricFamily if sample.total else GaugeMetricFamily
                metric = families[sample.name] = family(f"headrace_{sample.name}", sample.help)
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
