"""Requests that are read in full before they are forwarded: refused requests, authentications, requests whose body a
plugin requires, and mutations, whose cost may have to be looked up at the broker first.

One `WholeRequests` per connection, used by its request relay, which collects the frames. A request that needs no
waiting is processed by `WholeRequests.collected`. One that waits for a broker's answer or for the end of a hold becomes
`WholeRequests.pending`, and the relay reads nothing more until `WholeRequests.settle` has returned.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.connection.broker_questions import ask_broker
from headrace.proxy.connection.client_quota_requests import (
    MAX_ALTER_BYTES,
    answer_client_quotas,
    is_answered_here,
    may_be_large,
)
from headrace.proxy.connection.enforcement import (
    abandon,
    enforce_after_hold,
    enforce_on_batches,
    enforce_on_reply,
    enforce_on_request,
)
from headrace.proxy.connection.mutation_lookup import look_up_auto_creation, look_up_mutations
from headrace.proxy.connection.refusals import answer, answer_unsupported_version, note_refusal, refuse
from headrace.proxy.connection.reply_edits import edit_reply
from headrace.proxy.connection.state.authentication import HANDSHAKE_APIS, Authentication
from headrace.proxy.connection.state.reply_actions import (
    Observe,
    PassToken,
    SettleMutations,
)
from headrace.proxy.connection.state.thread_time import Stopwatch
from headrace.proxy.errors import UpstreamFault
from headrace.proxy.wire.apis import APIS, response_header_version
from headrace.proxy.wire.errors import MalformedFrame, PeerFault
from headrace.proxy.wire.headerless_tokens import handshake_mechanism
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.messages.codec import decode
from headrace.proxy.wire.messages.row_limit import check_rows
from headrace.proxy.wire.mutations import read_mutation
from headrace.proxy.wire.refusals import response_frame
from headrace.proxy.wire.walks.produce import ProduceWalk
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.wire.heads import RequestHead
    from headrace.quota_callbacks.verdicts import Refuse

    Forward = Callable[[Exchange, bytes, float], None]

SLICE_BYTES: Final = 16 * 1024
"""Between the steps of the work for a longer request, other tasks may run."""

_AUTHENTICATIONS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class Pending:
    """A request that cannot be forwarded yet."""

    __slots__ = ("enforced", "exchange", "frame", "head")

    def __init__(self, exchange: Exchange, head: RequestHead, frame: bytes, *, enforced: bool) -> None:
        self.exchange = exchange
        self.head = head
        self.frame = frame
        self.enforced = enforced
        """Whether the callbacks were called, so that only the hold, or the proxy's own answer, is waited for."""


class WholeRequests:
    """The requests of one connection that are read in full. ``forward`` sends a frame to the broker."""

    __slots__ = ("_forward", "_large", "_refusals", "_shared", "_state", "pending")

    def __init__(self, state: ConnectionState, forward: Forward) -> None:
        self._state = state
        self._shared = state.shared
        self._forward = forward
        self._refusals: dict[Exchange, Refuse] = {}
        """The refusal of the request that is being collected, if any."""
        self._large: Exchange | None = None
        """The latest request to change quotas, if it may be large."""
        self.pending: Pending | None = None

    def must_collect(self, exchange: Exchange) -> bool:
        """Return whether the request must be read in full before callbacks are called for it."""
        api_key = exchange.api_key
        api = APIS[api_key]
        if api.must_know and exchange.api_version > api.max_version:
            return True
        if api_key in _AUTHENTICATIONS:
            self._state.authenticates = True
            self.check_handshake(api.name, exchange.request_bytes)
            return api_key != ApiKey.SASL_AUTHENTICATE or self._state.authentication is not None
        if is_answered_here(self._state, exchange):
            self._large = exchange if may_be_large(self._state, exchange) else None
            return True
        hooks = self._shared.hooks
        return api_key in hooks.bodies or (api_key in hooks.mutations and self._has_mutation_quota(exchange))

    def check_handshake(self, what: str, size: int) -> None:
        """Raise `MalformedFrame` if ``what``, which brokers serve before authentication, has too many bytes."""
        limit = self._state.limits.max_handshake_bytes
        if size > limit:
            raise MalformedFrame(f"{what} of {size} bytes is longer than limits.max_handshake_bytes = {limit}")

    def refused(self, exchange: Exchange, refusal: Refuse) -> None:
        """Note that ``exchange`` was refused by its head; the answer requires its body."""
        self._refusals[exchange] = refusal

    def longest(self) -> tuple[int, str]:
        """Return how many bytes of the request that is being read may be collected, and the setting that says so."""
        limits, exchange = self._state.limits, self._state.current
        if exchange is None or exchange.is_token or exchange.api_key in HANDSHAKE_APIS:
            return LENGTH_BYTES + limits.max_handshake_bytes, "limits.max_handshake_bytes"
        if exchange in self._refusals:  # a plugin may refuse any request, however long
            return limits.max_collected_bytes, "limits.max_collected_bytes"
        if exchange is self._large:
            return MAX_ALTER_BYTES, "the bound for requests to change quotas"
        return limits.max_whole_request_bytes, "limits.max_whole_request_bytes"

    def close(self) -> None:
        """Free the memory of requests that are not forwarded any more."""
        self._refusals.clear()
        self._large = None
        if self.pending is not None:
            self.pending.frame = b""
        self._state.collected_head = None

    def collected(self, frame: bytes) -> None:
        """Process a request that was read in full."""
        state = self._state
        exchange, head = state.current, state.collected_head
        if exchange is not None and exchange.is_token:
            self._token_collected(exchange, frame)
            return
        if exchange is None or head is None:
            raise AssertionError("a frame was collected without a head")
        state.collected_head = None
        now_s = self._shared.clock()
        api = APIS[exchange.api_key]
        if api.must_know and exchange.api_version > api.max_version:
            answer_unsupported_version(state, exchange)
            enforce_on_request(state, exchange, now_s)
            enforce_on_reply(state, exchange, now_s)
            abandon(state, exchange)
            return
        if exchange is self._large:  # its rows are counted as they are read
            state.in_flight.hold(exchange, len(frame))
        elif api.knows(exchange.api_version):
            body = memoryview(frame)[head.body_at :]
            check_rows(f"{api.name}Request", exchange.api_version, body, state.limits.max_request_rows)
        refusal = self._refusals.pop(exchange, None)
        if refusal is not None:
            self._finish(exchange, head, frame, refusal)
            return
        exchange.arrived = True
        if exchange.api_key in self._shared.hooks.mutations and self._has_mutation_quota(exchange):
            self.pending = Pending(exchange, head, frame, enforced=False)
        else:
            refusal = self._enforce(exchange, memoryview(frame)[head.body_at :], now_s)
            if refusal is None and (exchange.hold_ms or is_answered_here(self._state, exchange)):
                self.pending = Pending(exchange, head, frame, enforced=True)
            else:
                self._finish(exchange, head, frame, refusal)

    async def settle(self) -> None:
        """Wait for what the pending request needs, and forward or answer it. Raises `UpstreamFault`, `PeerFault`."""
        pending, state = self.pending, self._state
        if pending is None:
            return
        exchange, head, refusal = pending.exchange, pending.head, None
        known_reply: bytes | None = None
        watch = Stopwatch(self._shared.thread_time)
        if not pending.enforced:
            body = memoryview(pending.frame)[head.body_at :]
            exchange.reply = SettleMutations()
            known_reply = await self._look_up(exchange, body, watch)
            await self._let_others_run(len(body), watch)
            refusal = self._enforce(exchange, body, self._shared.clock())
            await self._let_others_run(len(body), watch)
        held = refusal is None and exchange.hold_ms > 0
        while held:
            state.requesting = False  # a drain need not wait for a request that is held
            watch.pause()
            await state.wait_for_turn()
            watch.resume()
            state.requesting = True
            held, refusal = enforce_after_hold(state, exchange, self._shared.clock())
        self.pending = None
        self._note_thread_time(watch)  # before a refusal, which charges it
        if refusal is None and is_answered_here(state, exchange):
            await answer_client_quotas(state, exchange, memoryview(pending.frame)[head.body_at :], watch)
        elif exchange.api_key == ApiKey.METADATA:
            self._finish_metadata(exchange, pending, refusal, known_reply)
        else:
            self._finish(exchange, head, pending.frame, refusal)
        self._note_thread_time(watch)
        await self._let_others_run(len(pending.frame), watch)  # before the answer, if it is the proxy's own

    async def _let_others_run(self, size: int, watch: Stopwatch) -> None:
        """Between two steps of the work for a request of ``size`` bytes, which may take tens of milliseconds each."""
        if size > SLICE_BYTES:
            watch.pause()
            await trio.lowlevel.checkpoint()
            watch.resume()

    def _note_thread_time(self, watch: Stopwatch) -> None:
        info = self._state.info
        if info.measure_thread_time:
            info.thread_ns += watch.take_ns()

    # --- deciding ---

    def _has_mutation_quota(self, exchange: Exchange) -> bool:
        shared = self._shared
        if not APIS[exchange.api_key].knows(exchange.api_version):
            return False
        if not shared.enforcement.applies(exchange.connection.user, exchange.client_id):
            return False
        return shared.hooks.mutation_budget(exchange, self._now_ms()) is not None

    def _enforce(self, exchange: Exchange, body: memoryview, now_s: float) -> Refuse | None:
        if exchange.api_key in _AUTHENTICATIONS:
            return self._enforce_on_authentication(exchange, body, now_s)
        api = APIS[exchange.api_key]
        if exchange.api_key in self._shared.hooks.bodies and api.knows(exchange.api_version):
            exchange.body = decode(f"{api.name}Request", exchange.api_version, body)
        return enforce_on_request(self._state, exchange, now_s)

    def _finish(self, exchange: Exchange, head: RequestHead, frame: bytes, refusal: Refuse | None) -> None:
        now_s = self._shared.clock()
        if refusal is None:
            self._forward_and_pause(exchange, frame, now_s)
            self._note_creations(exchange, (), now_s)
            if exchange.read_batches:
                self._walk_batches(exchange, memoryview(frame)[head.body_at :], now_s)
            return
        forwarded = refuse(self._state, exchange, refusal, frame[: head.body_at], memoryview(frame)[head.body_at :])
        if forwarded is not None:
            self._forward_and_pause(exchange, forwarded, now_s)
            self._note_creations(exchange, refusal.topics or (), now_s)

    def _note_creations(self, exchange: Exchange, refused: Container[str | bytes], now_s: float) -> None:
        """Remember the topics of a CreateTopics that were forwarded; those refused cost others nothing."""
        if exchange.api_key == ApiKey.CREATE_TOPICS and exchange.mutations:
            forwarded = [each for each in exchange.mutations if each.topic not in refused]
            self._shared.created_topics.ask_for(forwarded, now_s)

    def _forward_and_pause(self, exchange: Exchange, frame: bytes, now_s: float) -> None:
        """Forward the frame, and in two cases nothing more before its reply.

        After a mutation that was charged, because an old client is muted only when it is answered, as at a broker.
        After a SaslHandshake v0, because tokens without headers follow only if the broker agrees.
        """
        if exchange.mutations or (exchange.api_key == ApiKey.SASL_HANDSHAKE and exchange.api_version == 0):
            exchange.alone = True
        self._forward(exchange, frame, now_s)

    def _walk_batches(self, exchange: Exchange, body: memoryview, now_s: float) -> None:
        walk = ProduceWalk(exchange.api_version, len(body), self._state.limits.max_request_rows)
        walk.walk(body, 0, len(body))
        exchange.batches, exchange.batches_left_out = walk.batches, walk.left_out
        self._state.in_flight.hold_batches(exchange)
        enforce_on_batches(self._state, exchange, now_s)

    # --- mutations ---

    async def _look_up(self, exchange: Exchange, body: memoryview, watch: Stopwatch) -> bytes | None:
        ask = partial(ask_broker, self._state, exchange.correlation_id, exchange.client_id, watch)
        created, now_s = self._shared.created_topics, self._shared.clock()
        if exchange.api_key == ApiKey.METADATA:
            return await look_up_auto_creation(exchange, body, ask, created, now_s)
        budget = self._shared.hooks.mutation_budget(exchange, self._now_ms())
        asked_for = read_mutation(exchange.api_key, exchange.api_version, body)
        await self._let_others_run(len(body), watch)
        tokens = math.inf if budget is None else budget
        await look_up_mutations(exchange, asked_for, body, ask, created, now_s, tokens)
        return None

    def _now_ms(self) -> int:
        return int(self._shared.clock() * 1000)

    def _finish_metadata(
        self, exchange: Exchange, pending: Pending, refusal: Refuse | None, known_reply: bytes | None
    ) -> None:
        """Forward a Metadata request if the topics that it would create are admitted; otherwise answer it with
        ``known_reply``, the reply to the same request with auto-creation turned off."""
        now_s = self._shared.clock()
        if refusal is not None and refusal.topics is not None:
            note_refusal(self._state, exchange, refusal)
        elif refusal is not None:
            self._finish(exchange, pending.head, pending.frame, refusal)
            return
        elif exchange.mutations:
            names = [each.topic for each in exchange.mutations if isinstance(each.topic, str)]
            self._shared.created_topics.add(names, now_s)
            known_reply = None
        if known_reply is None:
            self._forward_and_pause(exchange, pending.frame, now_s)
            return
        self._answer_with(exchange, known_reply, now_s)

    def _answer_with(self, exchange: Exchange, body: bytes, now_s: float) -> None:
        """Answer a request with the body of a reply that the broker has sent to the proxy."""
        state, api_key, version = self._state, exchange.api_key, exchange.api_version
        frame = response_frame(api_key, version, exchange.correlation_id, body)
        exchange.forwarded_s, exchange.reply_s = exchange.received_s, now_s
        exchange.response_bytes = len(frame) - LENGTH_BYTES
        exchange.response_header_bytes = 4 if response_header_version(api_key, version) == 0 else 5
        exchange.topic_errors = {}
        enforce_on_reply(state, exchange, now_s)
        try:
            edited = edit_reply(state, exchange, frame, None)
        except PeerFault as fault:
            raise UpstreamFault(str(fault)) from fault
        answer(state, exchange, lambda: edited)

    # --- authentication ---

    def _enforce_on_authentication(self, exchange: Exchange, body: memoryview, now_s: float) -> Refuse | None:
        """Call the callbacks for a SaslHandshake or SaslAuthenticate, and observe it and its reply."""
        state, version = self._state, exchange.api_version
        authentication = state.authentication
        if authentication is None:
            authentication = Authentication(
                state.info,
                self._shared.hooks,
                state.note_sasl,
                state.note_refused_login,
                state.limits.max_handshake_bytes,
            )
            state.authentication = authentication
        if exchange.api_key == ApiKey.SASL_AUTHENTICATE:
            refusal = enforce_on_request(state, exchange, now_s)
            if refusal is None and (watch := authentication.authenticate(body, version)) is not None:
                exchange.reply = Observe(watch)
                state.in_flight.hold(exchange, len(body))
            return refusal
        anybody = state.accepted and not authentication.accepted
        watch = authentication.handshake(handshake_mechanism(body), version, now_s, serves_anybody=anybody)
        exchange.reply = Observe(watch)
        refusal = enforce_on_request(state, exchange, now_s)
        if refusal is not None:
            authentication.withdraw()
        return refusal

    def _token_collected(self, token: Exchange, frame: bytes) -> None:
        state = self._state
        if state.authentication is not None:
            token.reply = PassToken(state.authentication.token(frame[LENGTH_BYTES:]))
            state.in_flight.hold(token, len(frame))
        self._forward(token, frame, self._shared.clock())
