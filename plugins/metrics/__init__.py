"""Metrics of every entity by Kafka's names, through OpenTelemetry: on the Prometheus page, and pushed by OTLP.

    options      the plugin's options and the SDK's environment variables, checked
    names        Kafka's names, and what they are called here; the labels of a bucket
    snapshot     reads the buckets, on the loop and in slices: which get series of their own, which are summed
    instruments  from a snapshot to the SDK's data, by observable gauges
    page         from the SDK's data to the series of the Prometheus page
    push_thread  asks the loop for a snapshot now and then, and exports it
    plugin       the hooks

Data flows down that list. Buckets are read on the loop alone; what the SDK does is done in threads.
"""

from headrace.plugins.metrics.plugin import Metrics

__all__ = ["Metrics"]
