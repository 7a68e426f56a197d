"""Requests that are read whole before they are handed on: refused ones, authentications, those whose body a plugin
asked for, and mutations, whose cost may have to be asked of the broker first.

One per connection, used by its request relay, which collects the frames. What can be decided at once is decided in
`collected`; what has to wait (a broker's answer, a paced request's turn) stays `pending`, and the relay reads nothing
more until `settle` is done.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import trio

from headrace.proxy.connection.authentication import LARGEST_TOKEN_BYTES, Authentication
from headrace.proxy.connection.enforcement import end_hold, give_up, judge_batches, judge_reply, judge_request
from headrace.proxy.connection.in_flight import Exchange
from headrace.proxy.connection.mutation_lookup import look_up_auto_creation, look_up_mutations
from headrace.proxy.connection.refusals import answer, answer_unsupported_version, note_refusal, refuse
from headrace.proxy.connection.reply_actions import KeepForProxy, Observe, PassToken, SettleMutations, reply_layout
from headrace.proxy.connection.reply_edits import edit_reply
from headrace.proxy.errors import UpstreamFault
from headrace.proxy.wire.apis import APIS, response_header_version
from headrace.proxy.wire.errors import PeerFault
from headrace.proxy.wire.headerless_tokens import handshake_mechanism
from headrace.proxy.wire.heads import LENGTH_BYTES, request_frame
from headrace.proxy.wire.messages.codec import decode
from headrace.proxy.wire.refusals import response_frame
from headrace.proxy.wire.topic_lookups import ask_for_topics
from headrace.proxy.wire.walks.produce import ProduceWalk
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.connection.reply_actions import Watcher
    from headrace.proxy.connection.state import ConnectionState
    from headrace.proxy.wire.heads import RequestHead
    from headrace.quota_callbacks.verdicts import Refuse

    Forward = Callable[[Exchange, bytes, float], None]

_AUTHENTICATIONS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)

HANDSHAKE_APIS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS})
"""What a broker answers to a client that has not authenticated (``SaslServerAuthenticator``)."""


class Pending:
    """A request that cannot be handed on yet."""

    __slots__ = ("exchange", "frame", "head", "judged")

    def __init__(self, exchange: Exchange, head: RequestHead, frame: bytes, *, judged: bool) -> None:
        self.exchange = exchange
        self.head = head
        self.frame = frame
        self.judged = judged
        """Whether the callbacks were asked: then it only waits for its turn."""


class WholeRequests:
    """The requests of one connection that are read whole. ``forward`` hands a frame on to the broker."""

    __slots__ = ("_forward", "_refusals", "_shared", "_state", "pending")

    def __init__(self, state: ConnectionState, forward: Forward) -> None:
        self._state = state
        self._shared = state.shared
        self._forward = forward
        self._refusals: dict[Exchange, Refuse] = {}
        """Of the request that is being collected, if any."""
        self.pending: Pending | None = None

    def wants(self, exchange: Exchange) -> bool:
        """Whether the request has to be read whole before anybody is asked about it."""
        api_key = exchange.api_key
        api = APIS[api_key]
        if api.must_know and exchange.api_version > api.max_version:
            return True
        if api_key in _AUTHENTICATIONS:
            self._state.authenticates = True
            return api_key != ApiKey.SASL_AUTHENTICATE or not self._passes_unseen(exchange)
        hooks = self._shared.hooks
        return api_key in hooks.bodies or (api_key in hooks.mutations and self._is_held_to_mutations(exchange))

    def refused(self, exchange: Exchange, refusal: Refuse) -> None:
        """``exchange`` was refused by its head; the answer takes its body."""
        self._refusals[exchange] = refusal

    def can_observe(self, size: int) -> bool:
        """Whether a token may be collected; a longer one passes unseen."""
        return size <= LARGEST_TOKEN_BYTES and size + LENGTH_BYTES <= self._state.limits.max_collected_bytes

    def collected(self, frame: bytes) -> None:
        """A request that had to be read whole is here."""
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
            judge_request(state, exchange, now_s)
            give_up(state, exchange)
            return
        refusal = self._refusals.pop(exchange, None)
        if refusal is not None:
            self._finish(exchange, head, frame, refusal)
            return
        exchange.arrived = True
        if exchange.api_key in self._shared.hooks.mutations and self._is_held_to_mutations(exchange):
            self.pending = Pending(exchange, head, frame, judged=False)
        else:
            refusal = self._judge(exchange, memoryview(frame)[head.body_at :], now_s)
            if refusal is None and exchange.hold_ms:
                self.pending = Pending(exchange, head, frame, judged=True)
            else:
                self._finish(exchange, head, frame, refusal)

    async def settle(self) -> None:
        """Do what the pending request waits for, and hand it on. Raises `UpstreamFault`, `PeerFault`."""
        pending, state = self.pending, self._state
        if pending is None:
            return
        exchange, head, refusal = pending.exchange, pending.head, None
        known_reply: bytes | None = None
        if not pending.judged:
            body = memoryview(pending.frame)[head.body_at :]
            exchange.reply = SettleMutations()
            known_reply = await self._look_up(exchange, body)
            refusal = self._judge(exchange, body, self._shared.clock())
        if refusal is None and exchange.hold_ms:
            state.requesting = False  # a drain need not wait for a request that waits for its turn
            await state.wait_for_turn()
            state.requesting = True
            end_hold(state, exchange)
        self.pending = None
        if exchange.api_key == ApiKey.METADATA:
            self._finish_metadata(exchange, pending, refusal, known_reply)
        else:
            self._finish(exchange, head, pending.frame, refusal)

    # --- deciding ---

    def _is_held_to_mutations(self, exchange: Exchange) -> bool:
        shared = self._shared
        if not APIS[exchange.api_key].knows(exchange.api_version):
            return False
        if not shared.enforcement.applies(exchange.connection.user, exchange.client_id):
            return False
        return shared.hooks.mutation_budget(exchange, self._now_ms()) is not None

    def _judge(self, exchange: Exchange, body: memoryview, now_s: float) -> Refuse | None:
        if exchange.api_key in _AUTHENTICATIONS:
            return self._judge_authentication(exchange, body, now_s)
        api = APIS[exchange.api_key]
        if exchange.api_key in self._shared.hooks.bodies and api.knows(exchange.api_version):
            exchange.body = decode(f"{api.name}Request", exchange.api_version, body)
        return judge_request(self._state, exchange, now_s)

    def _finish(self, exchange: Exchange, head: RequestHead, frame: bytes, refusal: Refuse | None) -> None:
        now_s = self._shared.clock()
        if refusal is None:
            self._forward_alone(exchange, frame, now_s)
            if exchange.read_batches:
                self._walk_batches(exchange, memoryview(frame)[head.body_at :], now_s)
            return
        forwarded = refuse(self._state, exchange, refusal, frame[: head.body_at], memoryview(frame)[head.body_at :])
        if forwarded is not None:
            self._forward_alone(exchange, forwarded, now_s)

    def _forward_alone(self, exchange: Exchange, frame: bytes, now_s: float) -> None:
        """Hand it on; nothing more is read before its reply behind a mutation that was charged, as at a broker, since
        an old client is muted for it only then, and behind a SaslHandshake v0, since only a broker that agreed reads
        what follows as SASL tokens without headers."""
        self._forward(exchange, frame, now_s)
        if exchange.mutations or (exchange.api_key == ApiKey.SASL_HANDSHAKE and exchange.api_version == 0):
            self._state.in_flight.nothing_behind(exchange)

    def _walk_batches(self, exchange: Exchange, body: memoryview, now_s: float) -> None:
        walk = ProduceWalk(exchange.api_version, len(body))
        walk.walk(body, 0, len(body))
        exchange.batches, exchange.batches_left_out = walk.batches, walk.left_out
        judge_batches(self._state, exchange, now_s)

    # --- mutations ---

    async def _look_up(self, exchange: Exchange, body: memoryview) -> bytes | None:
        ask = partial(ask_broker, self._state, exchange.correlation_id, exchange.client_id)
        created, now_s = self._shared.created_topics, self._shared.clock()
        if exchange.api_key == ApiKey.METADATA:
            return await look_up_auto_creation(exchange, body, ask, created, now_s)
        budget = self._shared.hooks.mutation_budget(exchange, self._now_ms())
        await look_up_mutations(exchange, body, ask, created, now_s, math.inf if budget is None else budget)
        return None

    def _now_ms(self) -> int:
        return int(self._shared.clock() * 1000)

    def _finish_metadata(
        self, exchange: Exchange, pending: Pending, refusal: Refuse | None, known_reply: bytes | None
    ) -> None:
        """Forward it where it may create what it would; otherwise the client has the answer to the same question with
        the flag off."""
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
            self._forward_alone(exchange, pending.frame, now_s)
            return
        self._answer_with(exchange, known_reply, now_s)

    def _answer_with(self, exchange: Exchange, body: bytes, now_s: float) -> None:
        """Answer with a reply that the broker gave to the proxy."""
        state, api_key, version = self._state, exchange.api_key, exchange.api_version
        frame = response_frame(api_key, version, exchange.correlation_id, body)
        exchange.forwarded_s, exchange.reply_s = exchange.received_s, now_s
        exchange.response_bytes = len(frame) - LENGTH_BYTES
        exchange.response_header_bytes = 4 if response_header_version(api_key, version) == 0 else 5
        exchange.topic_errors = {}
        judge_reply(state, exchange, now_s)
        try:
            edited = edit_reply(state, exchange, frame, None)
        except PeerFault as fault:
            raise UpstreamFault(str(fault)) from fault
        answer(state, exchange, lambda: edited)

    # --- authentication ---

    def _passes_unseen(self, exchange: Exchange) -> bool:
        """Whether nobody is to see the SaslAuthenticate, or nobody can."""
        authentication = self._state.authentication
        if authentication is None:
            return True
        if self.can_observe(exchange.request_bytes):
            return False
        _observe(exchange, authentication.unseen(exchange.api_version))
        return True

    def _judge_authentication(self, exchange: Exchange, body: memoryview, now_s: float) -> Refuse | None:
        """A SaslHandshake or SaslAuthenticate: who the client is follows from it and its reply."""
        state, version = self._state, exchange.api_version
        authentication = state.authentication
        if authentication is None:
            authentication = Authentication(state.info, self._shared.hooks, state.note_sasl, state.note_refused_login)
            state.authentication = authentication
        if exchange.api_key == ApiKey.SASL_AUTHENTICATE:
            refusal = judge_request(state, exchange, now_s)
            if refusal is None:
                _observe(exchange, authentication.authenticate(body, version))
            return refusal
        _observe(exchange, authentication.handshake(handshake_mechanism(body), version))
        refusal = judge_request(state, exchange, now_s)
        if refusal is not None:
            authentication.withdraw()
        return refusal

    def _token_collected(self, token: Exchange, frame: bytes) -> None:
        state = self._state
        if state.authentication is not None:
            token.reply = PassToken(state.authentication.token(frame[LENGTH_BYTES:]))
        self._forward(token, frame, self._shared.clock())


def _observe(exchange: Exchange, watch: Watcher | None) -> None:
    if watch is not None:
        exchange.reply = Observe(watch)


async def ask_for_acceptance(state: ConnectionState, head: RequestHead) -> None:
    """Ask the broker, before the first request that a name would be charged for, for something that it tells only those
    whom it serves: Metadata of no topics. A broker that does not serve this client closes the connection instead.

    Raises `UpstreamFault` when the broker cannot be reached.
    """
    version, body = ask_for_topics(())
    await ask_broker(state, head.correlation_id, head.client_id, ApiKey.METADATA, version, body)
    state.note_accepted()


async def ask_broker(
    state: ConnectionState, correlation_id: int, client_id: str, api_key: int, version: int, body: bytes
) -> bytes:
    """Send a request of the proxy's own, in turn with the client's and under its client id; its reply's body.

    Raises `UpstreamFault` when the broker cannot be reached. Ends with the connection.
    """
    upstream = state.upstream or await state.dial()
    replied = trio.Event()
    found: list[bytes] = []

    def take(reply: bytes) -> None:
        found.append(reply)
        replied.set()

    now_s = state.shared.clock()
    frame = request_frame(api_key, version, correlation_id, client_id, body)
    layout = reply_layout(api_key, version)
    size = len(frame) - LENGTH_BYTES
    lookup = Exchange(state.info, api_key, version, correlation_id, client_id, size, now_s, layout)
    lookup.reply = KeepForProxy(take)
    lookup.forwarded_s = now_s
    state.in_flight.add(lookup)
    state.shared.counters.lookups += 1
    await upstream.send([frame])
    await replied.wait()
    return found[0]
