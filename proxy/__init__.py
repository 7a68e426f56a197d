"""The proxy on trio: everything between a client's socket and a broker's.

Bytes flow one way through these modules; each owns one thing.

    cli               the command ``headrace``
    server            start, serve, reload, drain, stop; owns the nurseries and the shared parts (`house`)
    listeners         listening sockets and the accept loop
    client_connection one client: both channels, the mute, the nursery of its two relays
    request_relay     client to broker: scan, ask the callbacks, hand on, mute
    reply_relay       broker to client: match, ask the callbacks, edit, send at once
    whole_requests    requests that are read whole: refused, authenticating, mutations
    mutation_lookup   what a mutation would change, asked of the broker
    authentication    who the client is, read along with its SASL
    judgements        what several callbacks said, put together
    judging           asking the callbacks, and muting for what they say
    decisions         what was decided and why: log, page, ``headrace why``
    reply_plans       what is done with the reply of an API and version
    reply_edits       editing a reply that was collected
    refusing          answering instead of the broker
    in_flight         requests that wait for their replies, in order
    muting            until when a client is not read
    sockets           the one module that touches sockets on the hot path
    upstream          reaching the brokers
    topology          which brokers there are and where they are shown
    plugin_loading    finding and registering plugins
    hook_calls        calling them, and what happens when they raise
    enforcement       the switch, and who is exempt
    usage_file        what was used, kept over a restart
    replay, replay_*  what quotas would have done to recorded traffic
    reloading         quotas from the configuration, and the reload
    preflight         what a valid configuration can still get wrong
    repeated_lines    log lines that one cause could repeat without end
    thread_time       what a wake-up of a relay has cost
    collector         Python's garbage collector, kept from stopping the loop
    yielding          long work beside a busy loop
    admin, admin_http, admin_client, metrics_page, counters, logs    operating it
    wire/             the Kafka protocol, sans-IO
"""
