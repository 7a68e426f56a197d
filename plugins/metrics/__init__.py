"""Quota metrics of every entity under Kafka's names: on the Prometheus page, and pushed by OTLP with OpenTelemetry.

    options      the plugin's options and the SDK's environment variables, validated
    names        Kafka's metric names, their names here, and the labels of a bucket
    snapshot     reads the buckets on the event loop, in slices: decides which get their own series, sums the rest
    instruments  converts a snapshot to the SDK's data, through observable gauges
    page         converts a snapshot to the series of the Prometheus page, without the SDK
    push_thread  takes a snapshot from the event loop at each interval and exports it
    plugin       the hook implementations

Data flows down this list. Buckets are read on the event loop only; the SDK runs in threads.
"""

from headrace.plugins.metrics.plugin import Metrics

__all__ = ["Metrics"]
