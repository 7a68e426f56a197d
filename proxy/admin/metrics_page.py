"""The Prometheus page: reads the counters when it is asked for, so that counting costs nothing on the path of a
byte. It is written in a thread that pauses, so that a long page costs the loop little (`headrace.proxy.long_work`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.proxy.admin.merged_metrics import Family, encode
from headrace.proxy.long_work import PacedList, collector_off
from headrace.quota_callbacks.api_keys import API_NAMES
from headrace.quota_callbacks.hookspecs import AcrossWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from headrace.proxy.connection.shared_state import SharedState
    from headrace.proxy.connection.state import ConnectionState
    from headrace.quota_callbacks.hookspecs import Metric as Series


class MetricsPage:
    """All metrics of the process: as Prometheus' text, or for the supervisor, which tells those of all workers."""

    def __init__(self, shared: SharedState, connections: Collection[ConnectionState]) -> None:
        self._shared = shared
        self._connections = connections
        self._one_at_a_time = trio.Lock()

    async def render(self) -> bytes:
        """The page as it is now: read on the loop, written in a thread, since it may be a megabyte."""
        return await self._made(lambda families: page_of(family.metric for family in families))

    async def encoded(self) -> bytes:
        """The same for `headrace.proxy.admin.merged_metrics`."""
        return await self._made(encode)

    async def _made(self, make: Callable[[Iterable[Family]], bytes]) -> bytes:
        async with self._one_at_a_time:
            with collector_off():
                hooks = self._shared.hooks
                await hooks.prepare_metrics()
                plugins = list(hooks.collect_metrics())
                ours = [
                    *self._connection_metrics(),
                    *self._byte_metrics(),
                    *self._quota_metrics(),
                    _labelled("plugin_errors", "Errors that plugins raised, by plugin.", "plugin", hooks.failures),
                ]
                return await trio.to_thread.run_sync(_made_of, make, ours, plugins)

    def _connection_metrics(self) -> Iterator[Metric]:
        counters, now_s = self._shared.counters, trio.current_time()
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
        counters = self._shared.counters
        totals = {
            ("client", "in"): counters.bytes_from_clients,
            ("client", "out"): counters.bytes_to_clients,
            ("upstream", "in"): counters.bytes_from_upstream,
            ("upstream", "out"): counters.bytes_to_upstream,
        }
        for connection in self._connections:
            for side, sock in (("client", connection.client), ("upstream", connection.upstream)):
                if sock is not None:
                    totals[side, "in"] += sock.bytes_received
                    totals[side, "out"] += sock.bytes_sent
        metric = CounterMetricFamily(
            "headrace_bytes", "Bytes read (in) and written (out).", labels=("side", "direction")
        )
        for labels, value in totals.items():
            metric.add_metric(labels, value)
        yield metric
        yield _counter("spliced_bytes", "Those of them that never entered user space.", counters.bytes_spliced)
        yield _counter("leader_hints_hidden", "Fetch replies whose leader hint was made inert.", counters.hints_hidden)

    def _quota_metrics(self) -> Iterator[Metric]:
        counters, topology = self._shared.counters, self._shared.topology
        yield _labelled("throttled_requests", "Requests that a quota throttled, by quota.", "quota", counters.throttled)
        yield _counter("throttle_time_seconds", "Sum of all throttle times.", counters.throttled_ms / 1000)
        yield _counter("refused_requests", "Requests that a quota refused.", counters.refused)
        text = "Requests that a quota in shadow mode would have throttled or refused, by quota."
        yield _labelled("observed_requests", text, "quota", counters.observed)
        yield _counter("lookups", "Requests of the proxy's own, to know what a mutation costs.", counters.lookups)
        yield _gauge("enforcement_enabled", "1 while quotas are enforced.", int(self._shared.enforcement.enabled))
        yield _gauge("brokers", "Brokers that the proxy knows.", len(topology.metadata.brokers))
        yield _gauge("brokers_out_of_range", "Brokers whose id is outside listen.node_ids.", len(topology.out_of_range))


def page_of(metrics: Iterable[Metric]) -> bytes:
    """Prometheus' text."""
    registry = CollectorRegistry()
    registry.register(_Collected(metrics))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Not known beforehand."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client, once."""
        return self._metrics


def process_families() -> Iterator[Family]:
    """What the system and the interpreter tell of this process."""
    for collector in (ProcessCollector(registry=None), PlatformCollector(registry=None)):
        for metric in collector.collect():
            yield Family(metric=metric, across=_ACROSS.get(metric.name, AcrossWorkers.SUM))


_ACROSS: Final = {
    "headrace_enforcement_enabled": AcrossWorkers.MIN,
    "headrace_brokers": AcrossWorkers.MAX,
    "headrace_brokers_out_of_range": AcrossWorkers.MAX,
    "process_start_time_seconds": AcrossWorkers.MIN,
    "process_max_fds": AcrossWorkers.MIN,
    "python_info": AcrossWorkers.MAX,
}
"""What several workers do not add up, of what is told here."""


def _made_of(make: Callable[[Iterable[Family]], bytes], ours: list[Metric], plugins: list[Series]) -> bytes:
    """In the thread, at the pace of `_families`."""

    def families() -> Iterator[Family]:
        yield from process_families()
        for metric in ours:
            yield Family(metric=metric, across=_ACROSS.get(metric.name, AcrossWorkers.SUM))
        yield from _families(plugins)

    return make(families())


def _families(series: Iterable[Series]) -> Iterator[Family]:
    """What plugins told, by name, in lists that leave the interpreter to the loop now and then."""
    families: dict[str, Family] = {}
    for sample in PacedList(series):
        family = families.get(sample.name)
        if family is None:
            kind = CounterMetricFamily if sample.total else GaugeMetricFamily
            metric = kind(f"headrace_{sample.name}", sample.help)
            metric.samples = PacedList()
            family = families[sample.name] = Family(metric=metric, across=sample.across_workers)
        suffix = "_total" if sample.total else ""
        family.metric.add_sample(f"headrace_{sample.name}{suffix}", dict(sample.labels), sample.value)
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
