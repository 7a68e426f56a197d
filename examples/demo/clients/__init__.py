"""The demo's client programs: ordinary clients of Kafka that know nothing of Headrace, and can be run by hand."""
