"""OpenTelemetry tracing: a trace for every sampled request, exported in a thread.

    attributes      the names of span attributes, and the version of the conventions that they follow
    options         the plugin's options and the SDK's environment variables, validated
    records         converts a completed request to a small immutable record, on the event loop
    record_queue    the bounded queue between the event loop and the export thread
    spans           converts a record to the SDK's spans
    export_thread   drains the queue and exports; a slow or absent receiver blocks this thread only
    plugin          the hook implementations

Data flows down this list. Only `spans` and `export_thread` use the OpenTelemetry SDK, and they are imported only when
tracing is enabled.
"""

from headrace.plugins.tracing.plugin import Tracing

__all__ = ["Tracing"]
