"""The Prometheus page, made from the proxy's counters and the plugins' metrics when it is requested.

The request path only increments plain attributes. The page is formatted in a thread that pauses regularly, so that a
long page delays the event loop little (`headrace.proxy.long_work`). Called by `headrace.proxy.admin.operations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from prometheus_client import PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headrace.proxy.long_work import PausingList, collector_off
from headrace.proxy.network.held_bytes import held
from headrace.proxy.network.tls.renewal import expiries_s
from headrace.proxy.output_queue import dropped_lines
from headrace.quota_callbacks.api_keys import API_NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.shared_state import SharedState
    from headrace.proxy.counters import AdminCounters
    from headrace.quota_callbacks.hookspecs import Metric as Series


class MetricsPage:
    """All metrics of the proxy, as Prometheus text."""

    def __init__(self, shared: SharedState, connections: Collection[ConnectionState], admin: AdminCounters) -> None:
        self._shared = shared
        self._connections = connections
        self._admin = admin

    async def render(self) -> bytes:
        """Return the page: values are read on the loop, and formatted in a thread, since it may be a megabyte."""
        with collector_off():
            hooks = self._shared.hooks
            await self._shared.deliver_completed()
            await hooks.prepare_metrics()
            plugins = list(hooks.collect_metrics())
            text = "Number of exceptions raised by plugins, by plugin name."
            ours = [
                *self._connection_metrics(),
                *self._tls_metrics(),
                *self._byte_metrics(),
                *self._quota_metrics(),
                _labelled("plugin_errors", text, "plugin", hooks.failures),
                *self._loop_metrics(),
                *self._admin_metrics(),
            ]
            return await trio.to_thread.run_sync(generate_latest, _AllMetrics(ours, plugins))

    def _loop_metrics(self) -> Iterator[Metric]:
        text = "Number of calls of plugins that held the event loop longer than plugins.slow_call, by plugin name."
        yield _labelled("plugin_slow_calls", text, "plugin", self._shared.hooks.slow_calls.counts)
        lag = self._shared.poller.lag
        text = "Time in seconds for which the event loop was busy between two polls for events, if more than 10 ms."
        yield HistogramMetricFamily("headrace_event_loop_lag_seconds", text, lag.cumulative(), lag.sum_s)
        yield _gauge(
            "held_bytes",
            "Number of bytes that all connections hold in memory, up to limits.max_held_bytes.",
            held.count,
        )

    def _owner_lookup_metrics(self) -> Iterator[Metric]:
        """Yield what the lookups of token owners do; nothing if there is none (``upstream.owner_lookup``)."""
        lookups = self._shared.token_owners.values()
        if not lookups:
            return
        text = "Total number of requests to brokers for the owners of delegation tokens, by result: answered or failed."
        results = {result: sum(each.requests[result] for each in lookups) for result in ("answered", "failed")}
        yield _labelled("token_owner_requests", text, "result", results)
        text = "Total duration in seconds of the requests to brokers for the owners of delegation tokens."
        yield _counter("token_owner_request_seconds", text, sum(each.requests_s for each in lookups))
        yield _gauge("token_owners", "Number of delegation tokens whose owner is remembered.", sum(map(len, lookups)))

    def _connection_metrics(self) -> Iterator[Metric]:
        counters, now_s = self._shared.counters, trio.current_time()
        in_flight = sum(connection.requests_in_flight for connection in self._connections)
        muted = sum(connection.mute.until_s > now_s for connection in self._connections)
        yield _gauge("connections", "Number of open client connections.", counters.connections)
        yield _gauge(
            "upstream_connections",
            "Number of open connections to brokers on behalf of clients.",
            counters.upstream_connections,
        )
        yield _gauge(
            "muted_connections",
            "Number of client connections that are muted by a quota of the proxy or a throttle of a broker.",
            muted,
        )
        yield _gauge(
            "requests_in_flight", "Number of requests whose response has not been sent to the client yet.", in_flight
        )
        data_plane = self._shared.data_plane
        if data_plane is not None:
            yield _gauge("native_connections", "Number of connections that are relayed natively now.", len(data_plane))
            yield _labelled(
                "native_returns",
                "Total number of connections that returned from the native data plane, by reason.",
                "reason",
                data_plane.returns,
            )
            text = "Time in seconds for which the slowest thread of the native data plane has not answered."
            yield _gauge("native_silence_seconds", text, data_plane.watch.silent_s)
        yield _counter(
            "connections_accepted", "Total number of accepted client connections.", counters.connections_accepted
        )
        yield _labelled(
            "connections_refused",
            "Total number of client connections that were not served because a limit was reached, by limit.",
            "limit",
            counters.connections_refused,
        )
        yield _counter(
            "accept_delay_seconds",
            "Total time in seconds for which accepting connections was delayed by limits.max_connection_rate.",
            counters.accept_delayed_s,
        )
        yield _labelled(
            "accept_paused_seconds",
            "Total time in seconds for which accepting connections was paused, by shortage: descriptors or memory.",
            "shortage",
            counters.accept_paused_s,
        )
        yield _counter(
            "connections_aged",
            "Total number of client connections that were ended because of limits.max_connection_age.",
            counters.connections_aged,
        )
        yield _labelled(
            "errors",
            "Total number of connections that ended with an error, by the side that caused it.",
            "fault",
            counters.errors,
        )
        yield _by_api("requests", "Total number of requests read from clients, by API.", counters.requests)
        yield _labelled(
            "logins_refused",
            "Total number of SASL logins of clients that the proxy or a broker has refused, by mechanism.",
            "mechanism",
            counters.logins_refused,
        )

    def _tls_metrics(self) -> Iterator[Metric]:
        counters = self._shared.counters
        results = {
            "full": counters.tls_handshakes_full,
            "resumed": counters.tls_handshakes_resumed,
            "failed": counters.tls_handshakes_failed,
        }
        text = "Total number of TLS handshakes with clients, by result: full, resumed or failed."
        yield _labelled("tls_handshakes", text, "result", results)
        tables = {context.setting: expiries_s(context) for context in self._shared.tls_contexts()}
        tables["admin.tls"] = self._admin.expiries_s
        kinds = {
            "certificate": "a chain of the proxy",
            "certificate authority": "the authorities that the proxy trusts",
        }
        for kind, whose in kinds.items():
            name = f"headrace_tls_{kind.replace(' ', '_')}_expiry_timestamp_seconds"
            text = f"Time at which the first certificate of {whose} expires, in seconds since 1970."
            metric = GaugeMetricFamily(name, text, labels=("table",))
            for table, times in tables.items():
                if kind in times:
                    metric.add_metric((table,), times[kind])
            yield metric

    def _byte_metrics(self) -> Iterator[Metric]:
        counters = self._shared.counters
        totals = {
            ("client", "in"): counters.bytes_from_clients,
            ("client", "out"): counters.bytes_to_clients,
            ("upstream", "in"): counters.bytes_from_upstream,
            ("upstream", "out"): counters.bytes_to_upstream,
        }
        bytes_spliced, hints_hidden = counters.bytes_spliced, counters.hints_hidden
        for connection in self._connections:
            for side, sock in (("client", connection.client), ("upstream", connection.upstream)):
                if sock is not None:
                    totals[side, "in"] += sock.bytes_received
                    totals[side, "out"] += sock.bytes_sent
            if connection.native is not None:
                *moved, spliced = connection.native.bytes_moved
                bytes_spliced += spliced
                hints_hidden += connection.native.hints_hidden
                for key, count in zip(totals, moved, strict=True):
                    totals[key] += count
        metric = CounterMetricFamily(
            "headrace_bytes",
            "Total number of bytes read (in) and written (out), by side.",
            labels=("side", "direction"),
        )
        for labels, value in totals.items():
            metric.add_metric(labels, value)
        yield metric
        yield _counter(
            "spliced_bytes",
            "Total number of forwarded bytes that the kernel spliced, without copying them to user space.",
            bytes_spliced,
        )
        yield _counter(
            "leader_hints_hidden",
            "Total number of Fetch responses in which the proxy hid the hint to the current leader.",
            hints_hidden,
        )

    def _quota_metrics(self) -> Iterator[Metric]:
        counters, listeners = self._shared.counters, self._shared.listeners
        text = "Total number of requests that a quota throttled, by quota."
        yield _labelled("throttled_requests", text, "quota", counters.throttled)
        yield _counter("throttle_time_seconds", "Sum of all throttle times in seconds.", counters.throttled_ms / 1000)
        yield _counter("refused_requests", "Total number of requests that a quota refused.", counters.refused)
        text = "Total number of requests that were authorized and of which nothing was denied, by API."
        yield _by_api("authorization_allowed", text, counters.allowed)
        metric = CounterMetricFamily(
            "headrace_authorization_denied",
            "Total number of requests of which something was denied, by operation, type of resource and API.",
            labels=("operation", "resource_type", "api"),
        )
        for labels, count in counters.denied.items():
            metric.add_metric(labels, count)
        yield metric
        text = "Total number of requests that a quota in shadow mode would have throttled or refused, by quota."
        yield _labelled("observed_requests", text, "quota", counters.observed)
        text = "Total number of requests that the proxy itself sent to brokers to determine the cost of a mutation."
        yield _counter("lookups", text, counters.lookups)
        text = "Total number of logins by a delegation token whose owner the proxy could not learn from the brokers."
        yield _counter("token_owners_unknown", text, counters.token_owners_unknown)
        yield from self._owner_lookup_metrics()
        quotas = self._shared.hooks.quotas
        if quotas is not None:
            text = "Total number of buckets dropped after less than an hour without use, since there were many."
            yield _counter("quota_buckets_evicted", text, quotas.table.evicted)
            text = "Total number of charges to buckets that client ids share, since there were too many buckets."
            yield _counter("quota_buckets_overflowed", text, quotas.overflowed)
        text = "1 while quotas are enforced, 0 while they are not."
        yield _gauge("enforcement_enabled", text, int(self._shared.enforcement.enabled))
        yield _gauge(
            "brokers",
            "Number of brokers in the metadata that the proxy has.",
            len(listeners[0].topology.metadata.brokers),
        )
        text = "Number of brokers whose id is outside the range listen.node_ids, of all listeners."
        out_of_range = frozenset().union(*(each.topology.out_of_range for each in listeners))
        yield _gauge("brokers_out_of_range", text, len(out_of_range))

    def _admin_metrics(self) -> Iterator[Metric]:
        counters = self._admin
        yield _gauge("admin_connections", "Number of open connections to the admin server.", counters.connections)
        text = "Total number of requests that the admin server refused and connections that it closed, by reason."
        yield _labelled("admin_refused", text, "reason", counters.refused)


class _AllMetrics(Collector):
    """The metrics of a page, in its order. Read it in a thread: it pauses."""

    def __init__(self, ours: list[Metric], plugins: list[Series]) -> None:
        self._ours = ours
        self._plugins = plugins

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; prometheus_client calls this once."""
        yield from _process_metrics()
        yield from self._ours
        yield from _metrics_of(self._plugins)


def _process_metrics() -> Iterator[Metric]:
    """Yield the metrics of prometheus_client about this process and its interpreter, and that of its log."""
    text = "Total number of log lines that were dropped because they were not written fast enough."
    yield _counter("log_lines_dropped", text, dropped_lines())
    for collector in (ProcessCollector(registry=None), PlatformCollector(registry=None)):
        yield from collector.collect()


def _metrics_of(series: Iterable[Series]) -> Iterator[Metric]:
    """Group the samples of plugins by name, with pauses in which the event loop can take the interpreter's lock."""
    metrics: dict[str, Metric] = {}
    for sample in PausingList(series):
        metric = metrics.get(sample.name)
        if metric is None:
            kind = CounterMetricFamily if sample.total else GaugeMetricFamily
            metric = metrics[sample.name] = kind(f"headrace_{sample.name}", sample.help)
            metric.samples = PausingList()
        suffix = "_total" if sample.total else ""
        metric.add_sample(f"headrace_{sample.name}{suffix}", dict(sample.labels), sample.value)
    yield from metrics.values()


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"headrace_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"headrace_{name}", text, value=value)


def _by_api(name: str, text: str, counts: Mapping[int, int]) -> Metric:
    return _labelled(name, text, "api", {API_NAMES.get(key, str(key)): count for key, count in counts.items()})


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    metric = CounterMetricFamily(f"headrace_{name}", text, labels=(label,))
    for key, value in values.items():
        metric.add_metric((key,), value)
    return metric
