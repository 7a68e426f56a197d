"""One server process: start, serve, reload, drain and stop.

server              the server: owns the nurseries and the state that connections share
running             how the event loop is run, and by which clock
configured          the configuration's values in the proxy's own types
preflight           what a valid configuration can still get wrong
reloading           quotas from the configuration, and the reload
bucket_state_file   the state of buckets, kept over a restart
garbage_collection  Python's garbage collector, kept from stopping the loop
"""
