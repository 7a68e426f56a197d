"""What the author of a quota plugin imports: hook specifications, value types and the built-in callbacks.

Pure and synchronous: no event loop, no sockets, no clock of its own. Time arrives as an argument, in whole
milliseconds of a monotonic clock.

    hookspecs   the hooks, all in one place; `hookimpl` marks an implementation
    requests    what a callback sees: connections, requests and their replies
    verdicts    what a callback answers: forward, throttle, refuse; and why
    identities  what a source of identities shows of one authentication
    entities    quota keys and the entities they are for
    policies    how a quota is enforced, beside its value
    buckets     the arithmetic: rates, token buckets, Bloom filters, and the table of all buckets
    builtin     the callbacks that ship, and the cost model of requests
    records     usage records, traces, and charging them again
    testing     connections, requests and a context for a plugin's own tests
    topic_names the names of topics by their ids
    api_keys    the number and the name of each of Kafka's APIs
    options     how a plugin declares its options
"""
