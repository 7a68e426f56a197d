"""The threads of the native data plane: an extension module in Rust (``engine/``), if it was built.

An `Engine` relays connections of clients to a broker in threads of its own, without the interpreter's lock, for as long
as nothing has to be decided. Only `headrace.proxy.data_plane` and `headrace.proxy.connection.native.relay` use it.

All times are of the monotonic clock: ``_ns`` in nanoseconds, ``_ms`` in milliseconds. No method waits, except for
`Engine.take_back`, `Engine.stop`, and the locks that a thread holds for a moment. An engine must be used by one thread
only.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, final

__all__ = ["Engine", "Progress", "Rest", "SeenIds", "TlsConfig", "TlsSession", "TlsSessions", "__version__"]

_Authority: TypeAlias = tuple[bytes, int, int, int | None, tuple[bool, bool]]
"""A trusted certificate in DER form; the first and the last second (since 1970) at which it is valid; how many
authorities may be between it and the certificate of a peer, ``None`` if it is no authority; and whether it may be that
of a server, and that of a client."""

_Identity: TypeAlias = tuple[list[bytes], bytes]
"""A certificate with its chain, and its private key (PKCS#8), in DER form."""

_ApiRow: TypeAlias = tuple[int, int, int, int, bool, int, float, float]
"""An API in one version: API key, version, kind, version of the request's header, whether the reply's header has tagged
fields, offset of the throttle time in the reply's body (below 0 without one), and the estimated time of the broker's
threads in milliseconds: of each request, and of each KiB of request and reply.

The kind is 0 for messages that pass unread, 1 for Produce, 2 for Fetch, 3 for Fetch with hints about new leaders."""

ExchangeRow: TypeAlias = tuple[int, int, int, int, int, int, int, bool, bool]
"""A request in flight: API key, version, correlation id, the field acks (0 if it is not a Produce), bytes of the
request, time of its first byte and of its forwarding in nanoseconds, whether it has arrived and was charged, and
whether no other request is forwarded before its reply."""

ReplyRow: TypeAlias = tuple[int, int, int, int]
"""The head of a reply: time of its first byte in nanoseconds, bytes of the reply, bytes of its header, thread time of
the request in nanoseconds."""

_SumsRow: TypeAlias = tuple[int, int, int, int, int, int, int, list[int]]
"""Sums of the requests that were completed in one second: API key, second since 1970, number of requests, their bytes,
bytes of the replies, thread time in nanoseconds, time between forwarding and reply in nanoseconds, and number of
requests by that time: up to each of the bounds, and above the last one."""

_SampleRow: TypeAlias = tuple[float, ExchangeRow, ReplyRow, int]
"""A completed request of the sample: the random number that has decided about it, the request, its reply, and the time
at which the client had accepted the last byte of the reply, in nanoseconds."""

Collected: TypeAlias = tuple[list[_SumsRow], list[_SampleRow]]
"""Requests of one connection that were completed, each reported once: in the sums, and in the sample."""

__version__: str
"""The version of the crate."""

@final
class Engine:
    """Threads that relay connections, and the meters that they charge."""

    def __new__(
        cls,
        threads: int,
        apis: Sequence[_ApiRow],
        *,
        latency_bounds_ns: Sequence[int] | None,
        sample_ratio: float,
    ) -> Engine:
        """Start the threads.

        They keep sums of completed requests, with numbers of requests by time up to each of ``latency_bounds_ns``,
        unless that is ``None``; and report a part of the requests, from 0 to 1, by themselves.
        A request whose API and version has no row in ``apis`` ends the native relay of its connection. Raises
        ``ValueError`` for an unknown kind, and for no threads; ``OSError`` without descriptors or threads.
        """

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are connections for `returned`. The engine owns it."""

    def relay(
        self,
        client: int,
        broker: int,
        *,
        client_id: bytes,
        in_flight: Sequence[ExchangeRow],
        request_tail: bytes,
        produced: int | None,
        fetched: int | None,
        request_time: int | None,
        producer_ids: SeenIds | None,
        measures_time: bool,
        fetch_bytes: int,
        fetches_alone: bool,
        most_in_flight: int,
        longest_frame: int,
        most_rows: int,
        until_ns: int | None = None,
        client_tls: TlsSession | None = None,
        broker_tls: TlsSession | None = None,
    ) -> Progress:
        """Relay a connection from now on, until it is in `returned` or `take_back` has returned it.

        ``client`` and ``broker`` are non-blocking sockets. They must stay open, and must not be read or written
        elsewhere until then. The connection returns when it has a request that the engine must not process
        (`Rest.reason`); each frame that has begun is completed before, if that is possible.

        Args:
            client: descriptor of the socket to the client
            broker: descriptor of the socket to the broker
            client_id: the client id; a request with another one ends the native relay
            in_flight: the requests in flight, the oldest first
            request_tail: bytes that were read from the client and not processed; they begin a frame
            produced: the meter that Produce requests are charged to, by their bytes
            fetched: the meter that Fetch replies are charged to, by their bytes
            request_time: the meter that the time of requests is charged to, in nanoseconds
            producer_ids: the producer ids that cost nothing; without it, batches are not read
            measures_time: whether the thread's time is measured even if it is not charged to ``request_time``
            fetch_bytes: the most bytes that a Fetch may ask for; a larger limit is lowered in the request
            fetches_alone: whether no request is forwarded between a Fetch and its reply
            most_in_flight: the most requests in flight; the next one is not read before there are fewer
            longest_frame: the most bytes of a frame; a longer one ends the native relay
            most_rows: the most topics, partitions and tagged fields of a Produce request whose batches are read
            until_ns: the time of the monotonic clock from which on a request ends the native relay, since a login has
                to be repeated before it; ``None`` for no such time
            client_tls: the state of TLS with the client, after the handshake; ``None`` for plaintext. It must not be
                used elsewhere until the connection has returned
            broker_tls: the state of TLS with the broker, under the same conditions; ``None`` for plaintext

        Raises:
            ValueError: for a descriptor below 0, for a tail that is longer than the engine's buffer, and for one meter
                as both ``fetched`` and ``request_time``
            KeyError: for a meter that does not exist
        """

    def recall(self, connection: int) -> None:
        """Let a connection return between the next two frames of each direction. Ignores one that has returned."""

    def take_back(self, connection: int) -> Rest | None:
        """End the native relay of a connection at once, in the middle of frames, and return what is left of it.

        Waits for at most one turn of the connection's thread. Returns ``None`` for a connection that `returned` has
        returned already.
        """

    def returned(self) -> list[Rest]:
        """Return what is left of the connections that have returned since the last call."""

    def collect(self) -> int:
        """Ask the threads for the completed requests. They are in `completed` as soon as `collections` has reached the
        returned number. `fileno` is readable when a thread has answered."""

    def collections(self) -> int:
        """Return the number of answers of threads to `collect`."""

    def completed(self) -> list[tuple[int, Collected]]:
        """Return what was completed and handed over since the last call, by the number of the connection; none of the
        connections has been in `returned`, or was taken back."""

    def create_meter(self) -> int:
        """Create a meter without credit, and return its number."""

    def remove_meter(self, meter: int) -> None:
        """Delete a meter. Connections that are charged to it keep the credit that it has."""

    def charged(self) -> list[int]:
        """Return the meters that were charged since the last call, once each."""

    def take_charges(self, meter: int) -> list[tuple[int, int]]:
        """Return the charges of a meter since the last call of this method or of `withdraw`; [] if it does not exist.

        A charge is a time in milliseconds and an amount, in the order of time. Further charges are made within the
        credit that is left.
        """

    def withdraw(self, meter: int) -> list[tuple[int, int]]:
        """Return the charges as `take_charges` does, and let all charges wait for `grant`."""

    def grant(self, meter: int, credit: int) -> None:
        """Set the credit of a meter to ``credit`` without what was charged since `take_charges` or `withdraw`.

        A charge beyond the credit, which may be 0 or less, ends the native relay. Ignores a meter that does not exist.
        """

    def requests(self) -> list[int]:
        """Return the number of requests that were relayed since the start, by API key."""

    def held(self) -> int:
        """Return how many bytes all connections hold: the sum of `Progress.held`."""

    def limit_pipes(self, most: int) -> None:
        """Let all threads together have at most ``most`` pipes open, which move large frames. Without a pipe, frames
        are copied."""

    def beats(self) -> list[int | None]:
        """Wake the threads that have connections, and return how often each thread has executed commands until now.

        Unless a thread hangs, a later call returns a larger number for it. ``None`` stands for a thread without
        connections.
        """

    def stop(self) -> None:
        """End the threads, and wait for them. Connections that have not returned are left as they are."""

@final
class Progress:
    """What is known of a connection while it is relayed, and afterwards. Reading it does not wait for the thread."""

    @property
    def id(self) -> int:
        """The number of the connection in its engine: `Rest.id`."""

    @property
    def bytes(self) -> tuple[int, int, int, int, int]:
        """Bytes received from the client and sent to it, received from the broker and sent to it; and how many of those
        that were received were moved by splice."""

    @property
    def active_ns(self) -> int:
        """Time of the last byte that was received; 0 before the first one."""

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""

    @property
    def requests(self) -> int:
        """Number of requests that have begun to arrive."""

    @property
    def is_arriving(self) -> bool:
        """Whether a request has arrived in part."""

    @property
    def held(self) -> int:
        """Number of bytes in memory."""

    @property
    def is_blocked(self) -> bool:
        """Whether the broker has not accepted bytes of a request, and no reply waits for the client."""

    @property
    def hints(self) -> int:
        """Number of replies in which hints about new leaders were hidden."""

@final
class Rest:
    """What is left of a connection that has returned."""

    @property
    def id(self) -> int:
        """The number of the connection in its engine: `Progress.id`."""

    @property
    def reason(self) -> Literal["request", "reply", "credit", "end", "recalled"]:
        """Why the connection has returned: a request or a reply that the control plane has to process, a charge beyond
        the credit of its meter, the client or the broker has closed, or `Engine.recall` and `Engine.take_back`. Without
        a meaning if there is a `fault`."""

    @property
    def fault(self) -> tuple[Literal["client", "rows", "upstream", "proxy"], int] | None:
        """The side that has failed, and the error number of the system; 0 if it has sent fields that violate their
        schema, ``EPROTO`` for a failure of TLS (`TlsSession.failure`). ``rows`` is the client, which has sent a Produce
        with more than ``most_rows``; ``proxy`` is a failure of the data plane. ``None`` without a failure."""

    @property
    def request_tail(self) -> bytes:
        """Bytes that were read from the client and not processed."""

    @property
    def reply_tail(self) -> bytes:
        """Bytes that were read from the broker and not processed."""

    @property
    def request_left(self) -> int:
        """Bytes of a request that were not read, after which the next frame begins. Above 0 only if the request was
        cut off: by `Engine.take_back`, or since a side has closed or failed."""

    @property
    def reply_left(self) -> int:
        """Bytes of a reply that were not read, as `request_left`."""

    @property
    def reply_lost(self) -> bool:
        """Whether bytes of replies were read that the client has not accepted, and that are lost: after
        `Engine.take_back`, after a failure, or because the client has closed."""

    @property
    def in_flight(self) -> list[ExchangeRow]:
        """The requests in flight, the oldest first."""

    @property
    def begun_reply(self) -> ReplyRow | None:
        """The head of the reply to the first of them that was forwarded in part; ``None`` without one."""

    @property
    def completed(self) -> Collected:
        """What was completed and has not been in `Engine.completed`."""

    @property
    def asks_arrival(self) -> bool:
        """Whether the last request in flight has arrived, and is not charged for that yet."""

    @property
    def producer_ids(self) -> list[int]:
        """New producer ids of that request, which are not charged yet."""

    @property
    def leaves_out(self) -> bool:
        """Whether that request has more batches than were read."""

    @property
    def thread_ns(self) -> int:
        """Time of the thread that is not charged yet."""

@final
class SeenIds:
    """Producer ids that cost nothing for some time. Connections may share it."""

    def __new__(cls) -> SeenIds:
        """Create an empty set."""

    def add(self, producer_id: int, until_ms: int) -> None:
        """Add an id, which costs nothing until ``until_ms``. The set keeps some thousands, and begins anew beyond."""

    def close(self) -> None:
        """Let each connection that uses this set return with its next Produce request."""

@final
class TlsConfig:
    """What a listener or an upstream permits and shows. Handshakes that have begun keep theirs."""

    @staticmethod
    def server(
        identity: _Identity,
        *,
        suites: Sequence[str],
        tls12: bool,
        authorities: Sequence[_Authority] | None,
        is_required: bool,
        accepts_name: Callable[[str], bool],
    ) -> TlsConfig:
        """Create the configuration of a server.

        Args:
            identity: the certificate of the server
            suites: the cipher suites, by IANA's names and in the order of preference
            tls12: whether TLS 1.2 is permitted besides 1.3
            authorities: the certificates that clients' certificates are verified by; ``None`` requests none
            is_required: whether clients must show a certificate
            accepts_name: returns whether a host name that a client asks for is one of the server; else the handshake
                ends with the alert unrecognized_name

        Raises:
            ValueError: if rustls does not support a suite, the key, or an authority
        """

    @staticmethod
    def client(
        identity: _Identity | None,
        *,
        suites: Sequence[str],
        tls12: bool,
        authorities: Sequence[_Authority],
        verify_names: bool,
    ) -> TlsConfig:
        """Create the configuration of clients, as `server`. ``verify_names``: whether the server's certificate must be
        for its host name."""

    def accept(self) -> TlsSession:
        """Begin a handshake as a server."""

    def connect(self, host: str, sessions: TlsSessions) -> TlsSession:
        """Begin a handshake as a client. Raises ``ValueError`` for a name that cannot be one of a host."""

@final
class TlsSessions:
    """The last sessions with one server, which connections resume and add to."""

    def __new__(cls) -> TlsSessions:
        """Create an empty store."""

@final
class TlsSession:
    """The state of TLS of one connection. It does no system calls."""

    def decrypt(self, received: bytes | bytearray | memoryview, most: int) -> bytes:
        """Process bytes of the peer, and return at most ``most`` bytes of data. The rest is kept; call it without bytes
        while `has_unread`. In the handshake there are no data. After a failure nothing is processed."""

    def encrypt(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return the bytes to send, of which the last are ``data``. After a failure ``data`` is lost."""

    def end(self) -> None:
        """Add the end of this side's stream (``close_notify``) to the bytes to send, once."""

    def take_outgoing(self) -> bytes:
        """Return the bytes to send, and forget them: of the handshake, alerts, answers, and `end`."""

    @property
    def is_handshaking(self) -> bool:
        """Whether the handshake is not complete."""

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake has resumed a session."""

    @property
    def has_ended(self) -> bool:
        """Whether the peer has ended its stream, and everything before was read."""

    @property
    def has_unread(self) -> bool:
        """Whether `decrypt` may return something, the end or a failure without more bytes."""

    @property
    def held(self) -> int:
        """Number of bytes that were received and not returned."""

    @property
    def asked_name(self) -> str | None:
        """The host name that the client asks for."""

    @property
    def protocol(self) -> tuple[str, str] | None:
        """The version and the cipher suite, after the handshake."""

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the peer has shown, and that was verified, in DER form."""

    @property
    def failure(self) -> tuple[Literal["reason", "certificate", "limit"], str] | None:
        """Why the connection has failed: a reason, by OpenSSL's name if it has one; why the certificate is not
        accepted; or the limit that the peer has exceeded: ``empty``, ``answers`` or ``unread``."""
