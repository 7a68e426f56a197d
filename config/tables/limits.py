"""The table ``[limits]``: how much memory, time and how many connections one client may use."""
# pydantic reads annotations at run time, so they are not postponed here.

from typing import Annotated

from headrace.config.keys import Key, Section
from headrace.config.values import Network, network
from headrace.quota_callbacks.definitions import INT_MAX
from headrace.quota_callbacks.options import list_of, text, whole
from headrace.quota_callbacks.units import duration, size

_FRAME_SIZES = size("1KiB", f"{INT_MAX}B")  # a frame's length is an INT32


class Limits(Section):
    """Limits that protect clients from each other."""

    max_frame_bytes: Annotated[
        int,
        _FRAME_SIZES,
        Key(
            "Maximum size of a request or reply; a larger one closes its connection (Kafka: socket.request.max.bytes).",
            flag="--max-frame-bytes",
        ),
    ] = 100 * 2**20  # Kafka's default
    max_handshake_bytes: Annotated[
        int,
        _FRAME_SIZES,
        Key(
            "Maximum size of a request that brokers serve before authentication: ApiVersions, SaslHandshake, "
            "SaslAuthenticate and SASL tokens (Kafka: sasl.server.max.receive.size)."
        ),
    ] = 512 * 2**10  # Kafka's default
    max_whole_request_bytes: Annotated[
        int,
        _FRAME_SIZES,
        Key(
            "Maximum size of a request that is read into memory for a quota or a plugin (CreateTopics, "
            "DeleteTopics, CreatePartitions, Metadata); a larger one closes its connection. An AlterClientQuotas of a "
            "client that may change quotas may have 8 MiB."
        ),
    ] = 2**20
    max_request_rows: Annotated[
        int,
        whole(1, INT_MAX),
        Key(
            "Maximum number of topics, partitions and other rows of a request that the proxy reads in full or walks "
            "through; a request with more closes its connection. An AlterClientQuotas of a client that may change "
            "quotas may have 40,000."
        ),
    ] = 10_000
    max_collected_bytes: Annotated[
        int,
        _FRAME_SIZES,
        Key(
            "Maximum size of a reply that is read into memory to be rewritten (Metadata, CreateTopics, ...), and of a "
            "request that a plugin refuses."
        ),
    ] = 64 * 2**20  # Metadata of a million partitions: 42 bytes each with three replicas
    max_held_bytes: Annotated[
        int,
        _FRAME_SIZES,
        Key(
            "Maximum number of bytes that all connections hold together: messages that are read into memory, and bytes "
            "that a peer does not accept. Above it, connections of the user or address that holds most are closed."
        ),
    ] = 128 * 2**20  # 2,000 muted clients, each with a read of 64 KiB
    max_memory: Annotated[
        int | None,
        size("0B", "1024GiB"),
        Key(
            "Maximum resident memory of the proxy (Linux); above it new client connections wait to be accepted; 0B is "
            "unlimited. The default is 80 % of the memory limit of the container or service, if it has one (cgroup v2)."
        ),
    ] = None
    # A connection has two sockets and, while it moves large frames, a pipe in each direction: 10,000 connections stay
    # below the 65,536 open files that service managers commonly allow.
    max_connections: Annotated[
        int, whole(1, INT_MAX), Key("Maximum number of open client connections; further ones are closed immediately.")
    ] = 10_000
    max_connections_per_ip: Annotated[
        int | None,
        whole(0, INT_MAX),
        Key(
            "Maximum number of open client connections per address (Kafka: max.connections.per.ip); 0 is unlimited. "
            "The default is half of max_connections."
        ),
    ] = None
    # After a quiet window ten times a rate may connect at once: by default all of max_connections when clients
    # reconnect after a restart, and a thousand from the host of a large application.
    max_connection_rate: Annotated[
        int,
        whole(0, INT_MAX),
        Key(
            "Maximum rate of new client connections a second, above which accepting is delayed "
            "(Kafka: max.connection.creation.rate); 0 is unlimited."
        ),
    ] = 1000
    max_connection_rate_per_ip: Annotated[
        int,
        whole(0, INT_MAX),
        Key(
            "Maximum rate of new client connections a second per address, above which they are closed after a delay "
            "(Kafka: connection_creation_rate); 0 is unlimited."
        ),
    ] = 100
    per_ip_exempt: Annotated[
        tuple[Annotated[Network, network()], ...],
        list_of('a list of networks, such as ["10.0.0.0/24"]'),
        Key(
            "Networks whose addresses are exempt from max_connections_per_ip and max_connection_rate_per_ip, such as "
            "those of load balancers."
        ),
    ] = ()
    # Unlimited by default: how many connections a user needs depends on its number of clients, and on that of brokers.
    max_connections_per_user: Annotated[
        int,
        whole(0, INT_MAX),
        Key(
            "Maximum number of open client connections per user that has proved who it is; further ones are closed; "
            "0 is unlimited."
        ),
    ] = 0
    max_connection_rate_per_user: Annotated[
        int,
        whole(0, INT_MAX),
        Key(
            "Maximum rate of new client connections a second per user that has proved who it is, above which they are "
            "closed after a delay; 0 is unlimited."
        ),
    ] = 0
    per_user_exempt: Annotated[
        tuple[Annotated[str, text("a user")], ...],
        list_of("a list of users"),
        Key("Users that are exempt from max_connections_per_user and max_connection_rate_per_user."),
    ] = ()
    max_in_flight_requests: Annotated[
        int,
        whole(1, 1_000_000),
        Key("Maximum number of requests in flight per connection; above it the client's socket is not read."),
    ] = 1000
    idle_timeout_s: Annotated[
        float,
        duration("1s", "30d"),
        Key(
            "Idle time after which a client connection is closed (Kafka: connections.max.idle.ms), also in the middle "
            "of a reply that does not move."
        ),
    ] = 600.0  # Kafka's default
    max_connection_age_s: Annotated[
        float,
        duration("0s", "30d"),
        Key(
            "Age after which a client connection is closed when nothing is in flight, so that clients spread over "
            "proxies that were added; it varies by up to 20 % below; 0s is unlimited."
        ),
    ] = 0.0
    login_timeout_s: Annotated[
        float,
        duration("1s", "1h"),
        Key("Time within which a client has to be accepted by the broker, with its login if the brokers require one."),
    ] = 60.0
    max_tls_handshakes: Annotated[
        int,
        whole(1, 100_000),
        Key(
            "Maximum number of TLS handshakes with clients that are under way at a time; at the limit, one "
            "whose client is silent, or of the address with the most, is ended."
        ),
    ] = 256
    tls_handshake_timeout_s: Annotated[
        float, duration("100ms", "10m"), Key("Time within which the TLS handshake with a client has to be complete.")
    ] = 10.0
    request_timeout_s: Annotated[
        float,
        duration("1s", "1h"),
        Key("Time within which a request has to arrive, or the next 64 KiB of a longer one; else it is cut off."),
    ] = 30.0
