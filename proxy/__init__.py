"""The proxy on trio: everything between a client's socket and a broker's.

A package or module imports only from those that are listed below it.

    cli             the command line interface, ``headrace``
    replay          evaluating quotas against recorded traffic
    quota_tools     ``headrace quotas`` and ``headrace client-quotas``: quotas of the proxy or of a broker
    server          starting, serving, reloading, draining and stopping
    admin           the HTTP server for operators, and its client
    connection      one client's connection: relays, whole requests, replies, authentication
    data_plane      native threads that relay connections for as long as no quota or plugin has to decide
    hooks           loading and calling plugins; combining their verdicts
    network         sockets, listeners, upstream, topology
    kafka_client    an admin client of Kafka brokers: client quotas and topics
    quotas          quota definitions that change while the proxy runs: stores, the client-quota APIs
    wire            the Kafka protocol without I/O
    sasl            the messages of PLAIN and SCRAM without I/O, on either side
    counters        counters of connections, requests, bytes and errors
    errors          exceptions that end a connection or a start
    logs            configuration of logging
    output_queue    standard output and standard error that never block
    repeated_lines  limiting repeated log lines: by cause, and by kind
    long_work       running long computations without blocking the event loop
"""
