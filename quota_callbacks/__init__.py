"""What the author of a quota plugin imports: hook specifications, value types and the built-in callbacks.

Pure and synchronous: no event loop, no sockets, no clock of its own. Time arrives as an argument, in whole
milliseconds of a monotonic clock.

    hookspecs        the hooks, all in one place; `hookimpl` marks an implementation
    requests         what a callback sees: connections, requests and their replies
    verdicts         what a callback answers: forward, throttle, refuse; and why
    entities         quota keys and the entities they are for
    precedence       which quota applies and which bucket is charged (the eight levels)
    sampled_rate     Kafka's Rate over SampledStat, and the throttle time that follows
    client_quotas    the configured quotas and their buckets: one per key
    shared_usage     what several workers tell each other about usage: one row per bucket, one cell per worker
    default_quotas   KIP-257's callbacks as Kafka's DefaultQuotaCallback has them
    byte_rate        producer_byte_rate and consumer_byte_rate
    options          options of plugins as typed tables; all that is wrong with one at once
    cost_files       what a request costs, as the configuration or a file tells it
"""
