"""OpenTelemetry tracing: a trace for every request that is kept, exported off the loop.

    attributes      the names that spans carry, and the version of the conventions that they follow
    options         the plugin's options and the SDK's environment variables, checked
    records         from a completed request to a small immutable record, on the loop
    record_queue    the bounded queue between the loop and the export thread
    spans           from a record to the SDK's spans
    export_thread   drains the queue and exports; slow or absent receivers are its problem alone
    plugin          the hooks

Data flows down that list. Only `spans` and `export_thread` know the OpenTelemetry SDK, and neither is imported before
tracing is switched on.
"""

from headrace.plugins.tracing.plugin import Tracing

__all__ = ["Tracing"]
