"""Headrace: a quota-enforcing proxy for Apache Kafka.

    proxy            the proxy itself and the command ``headrace``
    quota_callbacks  what the author of a quota plugin imports
    config           the typed configuration
    plugins          what ships beside the core: tracing, metrics, usage records, users by SASL, quotas of teams and of
                     topics
    pipeline         Spark jobs over usage records

Each is a symbolic link to the folder of that name at the top of the repository.
"""
