"""The proxy on trio: everything between a client's socket and a broker's.

Each package owns one thing, and imports from those below it only.

    cli             the command ``headrace``
    replay          what quotas would have done to recorded traffic
    workers         several server processes, as one proxy
    server          start, serve, reload, drain, stop
    admin           the admin server and what operators ask of it
    connection      one client's connection: relays, whole requests, replies, authentication
    hooks           finding, loading and calling plugins; combining their verdicts
    network         sockets, listeners, upstream, topology
    wire            the Kafka protocol, sans-IO
    counters        what the proxy counts
    errors          why a connection or a start ends, split by whose fault it is
    logs            how the proxy logs
    repeated_lines  log lines that one cause could repeat without end
    long_work       long work beside a busy loop
"""
