"""Giving a connection to the native data plane, and continuing it when it returns.

A connection is given to it between two requests, with nothing in flight, if no request of it needs a decision for now
(`NativeRelay.try_to_begin`). Meanwhile, the tasks of both Python relays wait, and their sockets are not watched. The
connection returns with what was read and not processed, and both relays continue with that, as if they had read it
themselves.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final

import structlog

from headrace.proxy.connection.enforcement import enforce_on_arrival, enforce_on_batches
from headrace.proxy.connection.native.completions import begin_reply, exchange_of, note_completed
from headrace.proxy.connection.state.timeouts import (
    PROGRESS_BYTES,
    end_abandoned,
    end_stuck,
    end_unanswered,
    is_abandoned,
    is_old,
)
from headrace.proxy.network.held_bytes import held
from headrace.proxy.repeated_lines import place_of
from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.walks.body import too_many_rows
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import INT_MAX
from headrace.quota_callbacks.relay_terms import RelayTerms

if TYPE_CHECKING:
    from headrace._engine import Collected, Progress, Rest
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.data_plane.interface import ContinuedRelay, ContinuedRequests
    from headrace.proxy.data_plane.meters import BucketMeter
    from headrace.proxy.network.sockets import Socket
    from headrace.quota_callbacks.buckets.kinds import ProducerIdBucket, RateBucket

log = structlog.get_logger("headrace.connection")

NS: Final = 1e9

FIRST_AFTER: Final = 2
"""Number of requests after the handshake after which a connection is given to the data plane for the first time."""

MOST_AFTER: Final = 1024
"""Maximum number of requests of a connection that are relayed in Python before it is given to the data plane again."""

WORTHWHILE: Final = 32
"""Number of natively relayed requests from which on giving a connection to the data plane is worth its cost. If fewer
were relayed, the connection is given to it again after twice as many requests as the last time."""

SETTLE_AFTER: Final = 16
"""A connection that always has requests in flight cannot be given to the data plane. After this many further requests,
the next one waits until nothing is in flight."""

QUIET_S: Final = 5.0
"""Time without a byte after which a connection returns, so that the control plane notices what is overdue."""


class NativeRelay:
    """The native relay of one connection, from its first request to its end."""

    __slots__ = (
        "_after",
        "_arriving",
        "_charges_time",
        "_data_plane",
        "_enforced",
        "_held",
        "_meters",
        "_producer_ids",
        "_progress",
        "_replies",
        "_requests",
        "_seen",
        "_state",
        "_terms",
    )

    def __init__(self, state: ConnectionState, requests: ContinuedRequests, replies: ContinuedRelay) -> None:
        data_plane = state.shared.data_plane
        if data_plane is None:
            raise AssertionError("there is no data plane")
        self._state = state
        self._data_plane = data_plane
        self._requests = requests
        self._replies = replies
        self._after = FIRST_AFTER
        self._seen = 0
        """Requests since the connection was last given to the data plane."""
        self._meters: list[BucketMeter] = []
        self._producer_ids: ProducerIdBucket | None = None
        self._held = 0
        self._enforced = False
        """Whether quotas apply to what is relayed natively."""
        self._charges_time = False
        """Whether thread time is charged for it."""
        self._arriving: tuple[int, int, float] | None = None
        """The last progress of a request that arrives: number of requests, number of bytes, and time."""
        self._progress: Progress | None = None
        """The progress while the connection is relayed natively; ``None`` otherwise."""
        self._terms = RelayTerms()
        """The terms on which it is relayed natively."""

    @property
    def is_active(self) -> bool:
        """Whether the connection is relayed natively now."""
        return self._progress is not None

    # --- giving the connection to the data plane ---

    def note_request(self) -> None:
        """Note that the control plane has read a request. If there are always some in flight, let the next one wait
        until there is none, so that the connection can be given to the data plane."""
        self._seen += 1
        state = self._state
        if self._seen == self._after + SETTLE_AFTER and state.accepted and len(state.in_flight):
            state.in_flight.cap = 1

    def try_to_begin(self, now_s: float) -> bool:
        """Give the connection to the data plane if that is possible; return whether it was. Call it when there may be a
        request to read."""
        if self._seen < self._after or len(self._state.in_flight):
            return False
        state, requests, upstream = self._state, self._requests, self._state.upstream
        if state.accepted:
            state.in_flight.cap = state.limits.max_in_flight_requests
        current = state.current
        if current is None or upstream is None or not self._is_possible(now_s):
            return False
        at_rest = requests.is_at_rest and self._replies.is_at_rest
        if not (at_rest and state.client.waits_to_read and upstream.waits_to_read):
            return False
        terms = self._current_terms(current, int(now_s * 1000))
        if terms is None:
            self._put_off()
        else:
            self._begin(terms, current, upstream)
        self._data_plane.meters.grant()  # the credits of the buckets were withdrawn
        return terms is not None

    def _is_possible(self, now_s: float) -> bool:
        state = self._state
        return (
            state.accepted
            and _is_known(state.client)
            and _is_known(state.upstream)
            and not state.draining
            and not state.ends_when_quiet
            and state.asks_from_s > now_s
            and state.mute.until_s <= now_s
            and not state.info.authenticating
            and not state.shared.authorizes
            and not is_old(state, now_s)
            and (state.authentication is None or state.authentication.tokens is None)
            and not state.requesting
            and not state.replying
            and not state.ended
        )

    def _current_terms(self, current: Exchange, now_ms: int) -> RelayTerms | None:
        shared = self._state.shared
        if shared.hooks.completed.has_sums and not shared.hooks.relay.has_linear_costs:
            return None
        self._enforced = shared.enforcement.applies(self._state.info.user, current.client_id)
        if not self._enforced:
            return None if shared.enforcement.enabled else RelayTerms()
        terms = shared.hooks.relay.terms(current, now_ms)
        if terms is None or (terms.request_time is not None and not shared.hooks.relay.has_linear_costs):
            return None
        unused: RateBucket | None = None  # connections that produce fetch only rarely, and the reverse
        if current.api_key == ApiKey.PRODUCE:
            unused = terms.fetched
        elif current.api_key == ApiKey.FETCH:
            unused = terms.produced
        for bucket in (terms.produced, terms.fetched, terms.request_time):
            if bucket is not None and (
                bucket.overflow or (bucket is not unused and not bucket.has_lasting_credit(now_ms))
            ):
                return None
        ids = terms.producer_ids
        return None if ids is not None and ids.overflow else terms

    def _put_off(self) -> None:
        self._after, self._seen = min(2 * self._after, MOST_AFTER), 0

    def _begin(self, terms: RelayTerms, current: Exchange, upstream: Socket) -> None:
        state, data_plane, limits = self._state, self._data_plane, self._state.limits
        self._terms = terms
        until_ns = None if state.asks_from_s == math.inf else int(state.asks_from_s * NS)
        numbers: list[int | None] = []
        for bucket in (terms.produced, terms.fetched, terms.request_time):
            meter = None if bucket is None else data_plane.meters.take(bucket)
            numbers.append(None if meter is None else meter.number)
            if meter is not None:
                self._meters.append(meter)
        self._charges_time = terms.request_time is not None
        seen_ids = None
        if terms.producer_ids is not None:
            self._producer_ids = terms.producer_ids
            seen_ids = data_plane.seen_ids(terms.producer_ids)
        cap = INT_MAX if terms.fetch_max_bytes is None else min(terms.fetch_max_bytes, INT_MAX)
        state.client.suspend()
        upstream.suspend()
        self._progress = data_plane.engine.relay(
            state.client.fileno(),
            upstream.fileno(),
            client_id=current.client_id.encode(),
            in_flight=[],
            request_tail=self._requests.take_tail(),
            produced=numbers[0],
            fetched=numbers[1],
            request_time=numbers[2],
            producer_ids=seen_ids,
            measures_time=state.info.measure_thread_time,
            fetch_bytes=cap,
            fetches_alone=terms.fetch_alone,
            most_in_flight=limits.max_in_flight_requests,
            longest_frame=limits.max_frame_bytes,
            most_rows=limits.max_request_rows,
            until_ns=until_ns,
            client_tls=state.client.rustls,
            broker_tls=upstream.rustls,
        )
        data_plane.add(self, self._progress)

    # --- while it is relayed ---

    @property
    def in_flight(self) -> int:
        """Number of requests in flight in the data plane."""
        return 0 if self._progress is None else self._progress.in_flight

    @property
    def bytes_moved(self) -> tuple[int, int, int, int, int]:
        """Bytes received from the client and sent to it, received from the broker and sent to it, natively; and how
        many of them were spliced."""
        return (0, 0, 0, 0, 0) if self._progress is None else self._progress.bytes

    @property
    def hints_hidden(self) -> int:
        """Number of replies in which hints to other leaders were hidden, natively."""
        return 0 if self._progress is None else self._progress.hints

    def note_completed(self, completed: Collected) -> None:
        """Report requests that were completed natively."""
        note_completed(self._state, completed, enforced=self._enforced, charges_time=self._charges_time)

    def review(self) -> None:
        """Let the connection return if its terms have changed. Its meters refuse all charges until then."""
        state = self._state
        if self._progress is None or state.current is None:
            return
        if self._current_terms(state.current, int(state.shared.clock() * 1000)) != self._terms:
            for meter in self._meters:
                meter.end()
            self.recall()

    def recall(self) -> None:
        """Let the connection return between the next two frames."""
        if self._progress is not None:
            self._data_plane.engine.recall(self._progress.id)

    def check(self, now_s: float) -> None:
        """Let the connection return if nothing happens, so that its timeouts are checked; end it if a request arrives
        too slowly, or the broker does not accept one. Call it every few seconds."""
        state, progress = self._state, self._progress
        if progress is None:
            return
        held.add(self.note_held())
        if state.ended:
            return
        state.last_active_s = max(state.last_active_s, progress.active_ns / NS)
        if self._producer_ids is not None:
            ids = self._producer_ids
            ids.last_used_ms = max(ids.last_used_ms, int(state.last_active_s * 1000))
        if is_old(state, now_s):
            self.recall()
        if progress.is_arriving:
            self._check_arrival(progress, now_s)
        else:
            self._arriving = None
            if is_abandoned(state, now_s, is_blocked=progress.is_blocked):
                end_abandoned(state)
            elif self._is_stuck(progress, now_s):
                end_unanswered(state)
            elif self._has_stuck_reply(progress, now_s):
                end_stuck(state, "client")
            elif now_s - state.last_active_s > self._longest_quiet_s(progress):
                self.recall()

    def note_held(self) -> int:
        """Update the number of bytes that it holds natively; return by how many it has changed, which may be
        negative."""
        if self._progress is None:
            return 0
        added = self._progress.held - self._held
        self._held += added
        self._state.held_bytes += added
        return added

    def _longest_quiet_s(self, progress: Progress) -> float:
        state = self._state
        timeout_s = state.listener.upstream.reply_timeout_s if progress.in_flight else state.limits.idle_timeout_s
        return min(QUIET_S, timeout_s)

    def _is_stuck(self, progress: Progress, now_s: float) -> bool:
        """Return whether the broker has neither accepted the rest of a request nor sent a byte for its
        ``reply_timeout``. Such a connection cannot return."""
        is_quiet = now_s - self._state.last_active_s > self._state.listener.upstream.reply_timeout_s
        return is_quiet and progress.in_flight > 0 and progress.is_blocked

    def _has_stuck_reply(self, progress: Progress, now_s: float) -> bool:
        """Return whether the connection has not returned although nothing has moved for ``limits.idle_timeout``: it
        cannot in the middle of a reply."""
        longest_s = max(self._state.limits.idle_timeout_s, 2 * QUIET_S)
        is_quiet = now_s - self._state.last_active_s > longest_s
        return is_quiet and progress.in_flight > 0 and not progress.is_blocked

    def _check_arrival(self, progress: Progress, now_s: float) -> None:
        limits, arriving = self._state.limits, self._arriving
        requests, received = progress.requests, progress.bytes[0]
        if arriving is None or arriving[0] != requests or received - arriving[1] >= PROGRESS_BYTES:
            self._arriving = requests, received, now_s
        elif now_s - arriving[2] > limits.request_timeout_s:
            reason = f"a request arrives too slowly: limits.request_timeout = {limits.request_timeout_s:g} s"
            self._state.end_for_fault("client", reason, "slow")

    # --- its return ---

    def resume(self, rest: Rest) -> None:
        """Continue the connection with what is left. An error ends it."""
        try:
            self._resume(rest)
        except Exception as error:
            if self._state.shared.repeated.due("internal error", place_of(error)) is not None:
                log.exception("internal error; the connection was closed", peer=str(self._state.info.peer))
            self._state.end_for_fault("proxy", f"{type(error).__name__}: {error}", "resume")

    def _resume(self, rest: Rest) -> None:
        state, upstream = self._state, self._state.upstream
        if upstream is None:
            raise AssertionError("a connection without a broker returned")
        self._restore(rest)
        if rest.fault is not None:
            side, number = rest.fault
            sock = upstream if side == "upstream" else state.client
            sock.resume(_error_of(side, number, sock, state.limits.max_request_rows))
            return
        self._requests.continue_with(rest.request_tail, rest.request_left)
        self._replies.continue_with(rest.reply_tail, rest.reply_left)
        state.client.resume()
        if not rest.reply_lost:  # otherwise the client has closed or failed, which ends the connection
            upstream.resume()

    def take_back(self) -> None:
        """End the native relay at once, before the connection is closed."""
        if self._progress is not None:
            rest = self._data_plane.take_back(self._progress)
            if rest is not None:
                self._restore(rest)

    def _restore(self, rest: Rest) -> None:
        """Account for what was relayed, and put the requests in flight back into the queue."""
        state, progress = self._state, self._progress
        if progress is None:
            raise AssertionError("a connection returned twice")
        self._progress = None
        relayed = progress.requests
        if relayed < WORTHWHILE:
            self._put_off()
        else:
            self._after, self._seen = FIRST_AFTER, 0
        self._account(progress)
        for meter in self._meters:
            self._data_plane.meters.give_back(meter)
        self._meters.clear()
        self._producer_ids = None
        self.note_completed(rest.completed)
        state.info.thread_ns += rest.thread_ns
        now_s = state.shared.clock()
        if relayed:
            state.unacknowledged = False
        for row in rest.in_flight:
            exchange = exchange_of(state, row, enforced=self._enforced)
            state.current = exchange
            state.in_flight.add(exchange)
        state.in_flight.count_held()
        first, last = state.in_flight.first, state.current
        if first is None or last is None or not rest.in_flight:
            return
        if rest.begun_reply is not None:  # it was charged
            begin_reply(first, rest.begun_reply)
        if not last.arrived and not rest.asks_arrival:
            last.missing_bytes = rest.request_left
        if rest.producer_ids:
            last.batches = [("", 0, 0, number) for number in rest.producer_ids]
            last.read_batches = True
            enforce_on_batches(state, last, now_s)
        if rest.asks_arrival:
            enforce_on_arrival(state, last, now_s)

    def _account(self, progress: Progress) -> None:
        state = self._state
        from_client, to_client, from_broker, to_broker, spliced = progress.bytes
        state.client.bytes_received += from_client
        state.client.bytes_sent += to_client
        if state.upstream is not None:
            state.upstream.bytes_received += from_broker
            state.upstream.bytes_sent += to_broker
        state.shared.counters.bytes_spliced += spliced
        state.shared.counters.hints_hidden += progress.hints
        state.last_active_s = max(state.last_active_s, progress.active_ns / NS)
        state.held_bytes -= self._held
        held.add(-self._held)
        self._held = 0


def _is_known(sock: Socket | None) -> bool:
    """Return whether the data plane can read and write a socket: it is plaintext, or rustls computes its TLS."""
    return sock is not None and (sock.can_splice or (sock.rustls is not None and not sock.unsent_bytes))


def _error_of(side: str, number: int, sock: Socket, max_rows: int) -> Exception:
    """Return what to raise for the fault of a side, in which its socket had the error ``number``; 0 for none."""
    if number:
        return sock.fault(OSError(number, os.strerror(number)))
    if side == "proxy":
        return RuntimeError("the native data plane failed; standard error has the reason")
    if side == "rows":
        return too_many_rows("a Produce request", max_rows)
    what = "a Produce request's" if side == "client" else "a Fetch reply's"
    return MalformedFrame(f"{what} fields reach beyond its frame")
