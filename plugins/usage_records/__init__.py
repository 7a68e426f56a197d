"""Usage records: who used what, second by second, for the pipeline.

    options         the plugin's options, checked
    rows            the sums of each second, on the loop: bounded, and never blocking
    encoding        from rows to numbered lines
    files           rotated files, complete as soon as they have their name
    kafka_topic     a Kafka topic
    pending_losses  losses that are not in the stream yet, summed up
    writer_thread   takes finished seconds off the loop, hands them to a sink, and counts what could not be written
    plugin          the hooks

Data flows down that list. What a record holds is `headrace.quota_callbacks.records.usage_records`;
docs/usage-records.md is for who runs it.
"""

from headrace.plugins.usage_records.plugin import UsageRecords

__all__ = ["UsageRecords"]
