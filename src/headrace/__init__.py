"""Headrace: a quota-enforcing proxy for Apache Kafka.

    proxy            the proxy itself and the command ``headrace``
    quota_callbacks  the interfaces that a quota plugin imports, and the built-in quota callbacks
    config           the typed configuration
    plugins          plugins that come with Headrace: authorization, SASL with clients and brokers, quotas of teams and
                     of topics, metrics, tracing, usage records
    pipeline         Spark jobs over usage records
    _engine          the native data plane, where it was built (``engine/``)

In the repository, each package is a symbolic link to the folder of that name at its top.
"""
