"""Usage records: usage per user, client id and API for each second, read by the pipeline.

    options         the plugin's options, validated
    rows            the sums of each second, on the event loop: bounded and non-blocking
    encoding        converts rows to numbered lines
    folder          the names of the files in the folder, and how they become complete
    parquet         converts JSON lines to Parquet
    parquet_thread  the thread that converts complete files to Parquet
    files           the sink that writes files and rotates them; a file gets its final name when it is complete
    kafka_topic     the sink that writes to a Kafka topic
    pending_losses  losses that are not in the output yet, summed by reason
    writer_thread   takes finished seconds from the event loop, writes them to a sink, and counts losses
    plugin          the hook implementations

Data flows down this list. `headrace.quota_callbacks.records.usage_records` defines the fields of a record;
docs/usage-records.md is for operators.
"""

from headrace.plugins.usage_records.plugin import UsageRecords

__all__ = ["UsageRecords"]
