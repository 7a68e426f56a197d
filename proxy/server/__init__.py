"""The server: start, serve, reload, drain and stop.

command             what ``headrace run`` does: runs the server, and prints the line "headrace ready"
server              the server: owns the nurseries and the state that connections share
running             starting the event loop, and its clock
parts               creation of the parts of a server from its configuration
listeners           creation of the listeners and their upstreams, with certificates
configured          conversion of configuration values to the proxy's own types
preflight           checks of plugins and quotas that need no open port
reloading           reloading the configuration
quotas              the quotas of the configuration, of the store and of the brokers
owner_lookup        asking brokers for the owners of delegation tokens
bucket_state_file   the file that keeps bucket state across restarts
eviction            closing connections to free memory, or while no further one can be accepted
service_manager     messages to systemd: ready, reloading, stopping, and the watchdog
garbage_collection  freezing of long-lived objects, so that collections do not stall the loop
"""
