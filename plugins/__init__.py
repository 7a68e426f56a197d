"""The plugins that ship with the proxy, loaded through the entry point group ``headrace.plugins`` like all plugins.

tracing           OpenTelemetry traces of requests
metrics           quota metrics of every entity under Kafka's names, on the Prometheus page and over OTLP
usage_records     usage per user, client id and API for each second, read by the pipeline
team_quotas       quotas of teams, whose members are users and client ids
topic_quotas      quotas of topics, by name or pattern
authorization     what clients may do, by rules in the configuration
sasl_identity     user names from SASL exchanges
sasl_users        users of the proxy itself, by PLAIN and SCRAM
sasl_client       authenticates the proxy to brokers, by PLAIN and SCRAM
sasl_oauth        SASL/OAUTHBEARER by the proxy itself: verifies clients' tokens, and obtains tokens for brokers
otel_sdk          resource and exporter errors, shared by the two plugins that use the OpenTelemetry SDK
otel_environment  the environment variables of the OpenTelemetry specification
extras            the packages that optional features need, and the error when one is missing
"""
