"""What ships beside the core; each is loaded through the entry points ``headrace.plugins``, as any other plugin is.

tracing           OpenTelemetry traces of requests
metrics           metrics of every entity by Kafka's names, on the Prometheus page and by OTLP
usage_records     who used what, second by second, for the pipeline
sasl_identity     users by SASL
otel_sdk          what the two plugins that use the OpenTelemetry SDK have in common
otel_environment  the environment variables of the OpenTelemetry specification
extras            the packages that optional features need, and the error when one is missing
"""
