"""The API for plugin authors, and the built-in quota callbacks.

Synchronous: this package uses no event loop, opens no sockets and reads no clock. Time is an argument, in whole
milliseconds of a monotonic clock. `files`, `secret_sources` and what reads files by them (`options.read_secret`,
`builtin.cost_files`) block, and `commands` is for commands; everything else is pure.

    hookspecs    the specifications of all hooks; `hookimpl` marks an implementation
    requests     connections, requests and replies, as callbacks see them
    request_sums  sums of completed requests, for plugins that need no call for each
    verdicts     the results of a callback: throttle or refuse, with the reason
    identities   the interface for plugins that read a client's name from its authentication
    authorization  what a request does to which resource, for plugins that decide about it
    sasl         the interface for plugins that authenticate clients, or the proxy to brokers
    entities     quota keys and quota entities
    definitions  which quota keys and entity types there are, and which values and entities are valid
    relay_terms  what the native data plane charges without calling a plugin
    policies     how a quota is enforced
    buckets      rates, token buckets, Bloom filters, and the table of all buckets
    builtin      the built-in callbacks, and the cost model of requests
    records      usage records, traces, and their replay
    api_keys     the numbers and names of Kafka's APIs
    error_codes  the numbers, names and texts of Kafka's errors
    options      typed tables for the options of plugins
    units        durations and sizes: parsing, formatting, and annotations for options
    value_texts  values and their paths as text for messages, with secrets hidden
    secret_sources  where the secrets of the configuration are read from
    files        reading ordinary files, and creating files that others cannot read
    escaping     text that clients or servers chose, as JSON or on a terminal
    commands     commands whose options with one value may be given once, and their errors
    testing      connections, requests and a context for the tests of a plugin
    client_addresses  the addresses of clients, as limits count them
    topic_names  the names of topics by their ids
"""
