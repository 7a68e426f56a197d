"""Requests that are read in full before they are forwarded: refused requests, authentications, requests whose body a
plugin requires, and mutations, whose cost may have to be looked up at the broker first.

One `WholeRequests` per connection, used by its request relay, which collects the frames. A request that needs no
waiting is processed by `WholeRequests.collected`. One that waits for a broker's answer or for the end of a hold becomes
`WholeRequests.pending`, and the relay reads nothing more until `WholeRequests.settle` has returned.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.proxy.connection.authorization.denials import Denial, answer_denial
from headrace.proxy.connection.authorization.requests import (
    AT_ONCE_BYTES,
    Answers,
    Question,
    answer_question,
    authorize_in_steps,
    must_authorize,
    takes_long,
)
from headrace.proxy.connection.broker_questions import ask_broker, renew_broker_login
from headrace.proxy.connection.client_quota_requests import (
    MAX_ALTER_BYTES,
    answer_client_quotas,
    is_allowed,
    is_answered_here,
)
from headrace.proxy.connection.enforcement import (
    abandon,
    enforce_after_hold,
    enforce_on_batches,
    enforce_on_reply,
    enforce_on_request,
    fetch_cap,
    refuses_all,
)
from headrace.proxy.connection.mutations.requests import answer_with, look_up, must_forward, note_creations
from headrace.proxy.connection.opening.observed_logins import enforce_on_login, observe_token
from headrace.proxy.connection.opening.sasl_termination import answer_sasl
from headrace.proxy.connection.refusals import answer_unsupported_version, refuse_in_steps
from headrace.proxy.connection.state.authentication import HANDSHAKE_APIS
from headrace.proxy.connection.state.reply_actions import Settle
from headrace.proxy.connection.state.thread_time import Stopwatch
from headrace.proxy.long_work import LONG_STEP_BYTES
from headrace.proxy.wire.apis import APIS, AUTHENTICATION_APIS, TOKEN_APIS
from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.heads import LENGTH_BYTES, cap_fetch
from headrace.proxy.wire.messages.codec import decode
from headrace.proxy.wire.messages.row_limit import check_rows
from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.walks.produce import ProduceWalk
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.connection.authorization.requests import Authorized
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.wire.heads import RequestHead
    from headrace.proxy.wire.messages.codec import Buffer
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.quota_callbacks.verdicts import Refuse

    Forward = Callable[[Exchange, bytes, float], None]


DECODED_BYTES: Final = 12
"""Memory by byte of a large request that changes topics: its topics, what they cost, its validation by the broker, and
what is refused of it. A topic of CreateTopics has 16 bytes or more, and takes up to 200."""


class Pending:
    """A request that cannot be forwarded yet."""

    __slots__ = ("authorized", "enforced", "exchange", "frame", "head", "question", "refusal")

    def __init__(
        self,
        exchange: Exchange,
        head: RequestHead,
        frame: bytes,
        *,
        enforced: bool,
        authorized: bool = True,
        question: Question | None = None,
        refusal: Refuse | None = None,
    ) -> None:
        self.exchange = exchange
        self.head = head
        self.frame = frame
        self.enforced = enforced
        """Whether the callbacks were called, so that only the hold, or the proxy's own answer, is waited for."""
        self.authorized = authorized
        """Whether the request is authorized, or needs no authorization."""
        self.question = question
        """The question to the broker whose answer the authorization of the request needs."""
        self.refusal = refusal
        """The refusal of a request that is large, or held because only some topics are refused; not carried out yet."""


class WholeRequests:
    """The requests of one connection that are read in full. ``forward`` sends a frame to the broker."""

    __slots__ = ("_allowed", "_forward", "_refusals", "_shared", "_state", "pending")

    def __init__(self, state: ConnectionState, forward: Forward) -> None:
        self._state = state
        self._shared = state.shared
        self._forward = forward
        self._refusals: dict[Exchange, Refuse] = {}
        """The refusal of the request that is being collected, if any."""
        self._allowed: Exchange | None = None
        """The latest request to describe or change quotas, if the client may do so."""
        self.pending: Pending | None = None

    def must_collect(self, exchange: Exchange) -> bool:
        """Return whether the request must be read in full before callbacks are called for it."""
        api_key = exchange.api_key
        api = APIS[api_key]
        if api.must_know and exchange.api_version > api.max_version:
            return True
        hooks = self._shared.hooks
        if api_key not in hooks.collects:
            return False
        if api_key in AUTHENTICATION_APIS:
            self.check_handshake(api.name, exchange.request_bytes)
            if self._state.sasl is not None:
                return True
            self._state.note_authenticating()
            return api_key != ApiKey.SASL_AUTHENTICATE or self._state.authentication is not None
        if is_answered_here(self._state, exchange):
            self._allowed = exchange if is_allowed(self._state, exchange) else None
            return True
        if api_key in hooks.bodies or api_key in TOKEN_APIS:
            return True
        return api_key in hooks.mutations and self._has_mutation_quota(exchange)

    def check_handshake(self, what: str, size: int) -> None:
        """Raise `MalformedFrame` if ``what``, which brokers serve before authentication, has too many bytes."""
        limit = self._state.limits.max_handshake_bytes
        if size > limit:
            raise MalformedFrame(f"{what} of {size} bytes is longer than limits.max_handshake_bytes = {limit}")

    def refused(self, exchange: Exchange, refusal: Refuse) -> None:
        """Note that ``exchange`` was refused by its head; the answer requires its body."""
        self._refusals[exchange] = refusal

    @property
    def unanswered(self) -> list[Exchange]:
        """The requests that were refused by their heads, and were not answered yet."""
        return list(self._refusals)

    def longest(self) -> tuple[int, str]:
        """Return how many bytes of the request that is being read may be collected, and the setting that says so."""
        limits, exchange = self._state.limits, self._state.current
        if exchange is None or exchange.is_token or exchange.api_key in HANDSHAKE_APIS:
            return LENGTH_BYTES + limits.max_handshake_bytes, "limits.max_handshake_bytes"
        if exchange in self._refusals or (exchange.api_key == ApiKey.PRODUCE and must_authorize(self._state, exchange)):
            # a plugin may refuse any request, and topics of any Produce be denied, however long they are
            return limits.max_collected_bytes, "limits.max_collected_bytes"
        if self._may_be_large(exchange):
            return MAX_ALTER_BYTES, "the bound for requests to change quotas"
        return limits.max_whole_request_bytes, "limits.max_whole_request_bytes"

    def _may_be_large(self, exchange: Exchange) -> bool:
        """Return whether the request may exceed the bounds for other requests: it changes quotas, and its client may
        change them."""
        return exchange is self._allowed and exchange.api_key == ApiKey.ALTER_CLIENT_QUOTAS

    def close(self) -> None:
        """Free the memory of requests that are not forwarded any more."""
        self._allowed = None
        if self.pending is not None:
            self.pending.frame = b""
        self._state.collected_head = None

    def collected(self, frame: bytes) -> None:
        """Process a request that was read in full."""
        state = self._state
        exchange, head = state.current, state.collected_head
        state.collected_head = None
        if exchange is not None and exchange.is_token and head is None:
            observe_token(state, exchange, frame[LENGTH_BYTES:])
            self._forward(exchange, frame, self._shared.clock())
            return
        if exchange is None or head is None:
            raise AssertionError("a frame was collected without a head")
        if exchange.is_token:
            self.pending = Pending(exchange, head, frame, enforced=True)
            return
        now_s = self._shared.clock()
        api = APIS[exchange.api_key]
        if api.must_know and exchange.api_version > api.max_version:
            answer_unsupported_version(state, exchange)
            enforce_on_request(state, exchange, now_s)
            enforce_on_reply(state, exchange, now_s)
            abandon(state, exchange)
            return
        refusal = self._refusals.pop(exchange, None)
        if refusal is None and must_authorize(state, exchange):
            exchange.arrived = True
            if len(frame) > head.body_at + AT_ONCE_BYTES or takes_long(state, exchange):
                self.pending = Pending(exchange, head, frame, enforced=False, authorized=False)
            else:
                found = finish(authorize_in_steps(state, exchange, head, frame, None))
                self.pending = self._authorized(exchange, head, frame, found)
            return
        self.pending = self._permitted(exchange, head, frame, refusal)

    def _authorized(self, exchange: Exchange, head: RequestHead, frame: bytes, found: Authorized) -> Pending | None:
        """Answer the request if it is denied, or else process it; return it if it has to wait."""
        if isinstance(found, Question):
            return Pending(exchange, head, frame, enforced=False, authorized=False, question=found)
        if isinstance(found, Denial):
            answer_denial(self._state, exchange, found)
            return None
        return self._permitted(exchange, head, found, None)

    def _permitted(self, exchange: Exchange, head: RequestHead, frame: bytes, refusal: Refuse | None) -> Pending | None:
        """Go on with a request that is authorized, or that a callback has refused by its head.

        Return it if something must be waited for.
        """
        state, now_s = self._state, self._shared.clock()
        mutates = exchange.api_key in self._shared.hooks.mutations and refusal is None
        looks_up = mutates and self._has_mutation_quota(exchange)
        if mutates and exchange.api_key == ApiKey.DELETE_TOPICS:  # what it deletes costs others who create it again
            exchange.reply = Settle()
        if self._may_be_large(exchange):  # its rows are counted as they are read
            state.in_flight.hold(exchange, len(frame))
        elif not looks_up and (exchange.api_key == ApiKey.ALTER_CLIENT_QUOTAS or not must_authorize(state, exchange)):
            self._check_rows(exchange, memoryview(frame)[head.body_at :])
        if refusal is not None:
            return self._refused(exchange, head, frame, refusal)
        exchange.arrived = True
        if looks_up:
            return Pending(exchange, head, frame, enforced=False)
        refusal = self._enforce(exchange, memoryview(frame)[head.body_at :], now_s)
        walks = exchange.read_batches and len(frame) > LONG_STEP_BYTES
        if exchange.hold_ms or (refusal is None and (walks or self._is_answered_here(exchange))):
            return Pending(exchange, head, frame, enforced=True, refusal=refusal)
        if refusal is not None:
            return self._refused(exchange, head, frame, refusal)
        self._finish(exchange, head, frame, finish(self._walk(exchange, memoryview(frame)[head.body_at :])))
        return None

    def _refused(self, exchange: Exchange, head: RequestHead, frame: bytes, refusal: Refuse) -> Pending | None:
        """Refuse a request, or some of its topics; return it if that takes long."""
        pending = Pending(exchange, head, frame, enforced=True, refusal=refusal)
        if len(frame) > LONG_STEP_BYTES:
            return pending
        self.pending = pending  # for `unsettled_requests`, if there is no reply that can express the refusal
        finish(self._refuse(exchange, head, frame, refusal))
        return None

    async def settle(self) -> None:
        """Wait for what the pending request needs, and forward or answer it. Raises `UpstreamFault`, `PeerFault`."""
        if self.pending is not None and not self.pending.authorized:
            await self._authorize_pending(self.pending)
        pending, state = self.pending, self._state
        if pending is None:
            return
        exchange, head, refusal = pending.exchange, pending.head, pending.refusal
        known_reply: Buffer | None = None
        watch = Stopwatch(self._shared.thread_time)
        if not pending.enforced:
            body = memoryview(pending.frame)[head.body_at :]
            exchange.reply = Settle()
            await self._let_others_run(len(body), watch)
            self._check_rows(exchange, body)
            if len(body) > LONG_STEP_BYTES and exchange.api_key != ApiKey.METADATA:  # of which only new names are kept
                state.in_flight.hold(exchange, DECODED_BYTES * len(body))
                state.in_flight.count_held()
            await self._let_others_run(len(body), watch)
            known_reply = await look_up(state, exchange, body, watch)
            await self._let_others_run(len(body), watch)
            refusal = self._enforce(exchange, body, self._shared.clock())
            await self._let_others_run(len(body), watch)
        held = exchange.hold_ms > 0 and not refuses_all(refusal)
        while held:
            state.requesting = False  # a drain need not wait for a request that is held
            watch.pause()
            await state.wait_for_turn()
            state.requesting = True
            await renew_broker_login(state, pending.head)
            watch.resume()
            held, refusal = enforce_after_hold(state, exchange, self._shared.clock(), refusal)
        self._note_thread_time(watch)  # before a refusal, which charges it
        body = memoryview(pending.frame)[head.body_at :]
        if refusal is not None and (refusal.topics is None or exchange.api_key != ApiKey.METADATA):
            refusing = self._refuse(exchange, head, pending.frame, refusal)
            await self._shared.long_steps.run(state.counts_for, refusing, watch.paused)
            self.pending = None  # not before: if the connection ends while this waits, what was charged is given back
        elif is_answered_here(state, exchange):
            await answer_client_quotas(state, exchange, body, watch, allowed=exchange is self._allowed)
            self.pending = None
        elif state.sasl is not None and (exchange.is_token or exchange.api_key in AUTHENTICATION_APIS):
            await answer_sasl(state, exchange, body, watch)
            self.pending = None
        else:
            walk = None
            if exchange.read_batches:
                walk = await self._shared.long_steps.run(state.counts_for, self._walk(exchange, body), watch.paused)
            self.pending = None
            if exchange.api_key == ApiKey.METADATA:
                if must_forward(state, exchange, refusal) or known_reply is None:
                    self._forward_and_pause(exchange, pending.frame, self._shared.clock())
                else:
                    answer_with(state, exchange, known_reply)
            else:
                self._finish(exchange, head, pending.frame, walk)
        self._note_thread_time(watch)
        await self._let_others_run(len(pending.frame), watch)  # before the answer, if it is the proxy's own

    async def _authorize_pending(self, pending: Pending) -> None:
        """Authorize the pending request, and go on with it; it may be pending for another reason afterwards."""
        exchange, watch = pending.exchange, Stopwatch(self._shared.thread_time)
        ask = partial(ask_broker, self._state, exchange.correlation_id, exchange.client_id, watch)
        left: Pending | None = pending
        answers: Answers | None = None
        while left is not None and not left.authorized:
            if left.question is not None:
                in_turn = partial(self._shared.long_steps.run, self._state.counts_for, paused=watch.paused)
                answers = await answer_question(self._state, left.question, ask, in_turn)
            steps = authorize_in_steps(self._state, exchange, left.head, left.frame, answers)
            found = await self._shared.long_steps.run(self._state.counts_for, steps, watch.paused)
            await self._let_others_run(len(left.frame), watch)
            self._note_thread_time(watch)  # before a denial, which charges it
            left = self._authorized(exchange, left.head, left.frame, found)
        self.pending = left
        self._note_thread_time(watch)

    def _check_rows(self, exchange: Exchange, body: memoryview, *, numbers: bool = False) -> None:
        api, most = APIS[exchange.api_key], self._state.limits.max_request_rows
        if api.knows(exchange.api_version):
            check_rows(f"{api.name}Request", exchange.api_version, body, most, numbers=numbers)

    async def _let_others_run(self, size: int, watch: Stopwatch) -> None:
        """Wait for this connection's turn before a step of the work for a request of ``size`` bytes, if it is long."""
        if size > LONG_STEP_BYTES:
            with watch.paused():
                await self._shared.long_steps.wait_for_turn(self._state.counts_for)

    def _note_thread_time(self, watch: Stopwatch) -> None:
        info = self._state.info
        if info.measure_thread_time:
            info.thread_ns += watch.take_ns()

    # --- deciding ---

    def _is_answered_here(self, exchange: Exchange) -> bool:
        if exchange.api_key in AUTHENTICATION_APIS:
            return self._state.sasl is not None
        return is_answered_here(self._state, exchange)

    def _has_mutation_quota(self, exchange: Exchange) -> bool:
        shared = self._shared
        if not APIS[exchange.api_key].knows(exchange.api_version):
            return False
        if not shared.enforcement.applies(exchange.connection.user, exchange.client_id):
            return False
        return shared.hooks.mutation_budget(exchange, self._now_ms()) is not None

    def _enforce(self, exchange: Exchange, body: memoryview, now_s: float) -> Refuse | None:
        if exchange.api_key in AUTHENTICATION_APIS and self._state.sasl is None:
            return enforce_on_login(self._state, exchange, body, now_s)
        api, is_login = APIS[exchange.api_key], exchange.api_key in AUTHENTICATION_APIS  # whose tokens are secrets
        if exchange.api_key in self._shared.hooks.bodies and api.knows(exchange.api_version) and not is_login:
            exchange.body = decode(f"{api.name}Request", exchange.api_version, body)
        return enforce_on_request(self._state, exchange, now_s)

    def _finish(self, exchange: Exchange, head: RequestHead, frame: bytes, walk: ProduceWalk | None) -> None:
        """Forward a request that no callback has refused; ``walk`` has read its batches."""
        now_s = self._shared.clock()
        cap = fetch_cap(exchange)
        if cap is not None and head.fetch_limits_at is not None:
            capped = bytearray(frame)
            cap_fetch(capped, head.fetch_limits_at, cap)
            frame = bytes(capped)
        self._forward_and_pause(exchange, frame, now_s)
        note_creations(self._shared, exchange, (), now_s)
        if walk is not None:
            self._state.in_flight.note_batches(exchange, walk)
            enforce_on_batches(self._state, exchange, now_s)

    def _refuse(self, exchange: Exchange, head: RequestHead, frame: bytes, refusal: Refuse) -> Steps[None]:
        """Answer a request that is refused, or forward what is left of it; yield now and then."""
        body = memoryview(frame)[head.body_at :]
        if refusal.topics is None:
            self._check_rows(exchange, body, numbers=True)  # the answer has a row for each
            yield
        forwarded = yield from refuse_in_steps(self._state, exchange, refusal, frame[: head.body_at], body)
        if forwarded is not None:
            now_s = self._shared.clock()
            self._forward_and_pause(exchange, forwarded, now_s)
            note_creations(self._shared, exchange, refusal.topics or (), now_s)

    def _forward_and_pause(self, exchange: Exchange, frame: bytes, now_s: float) -> None:
        """Forward the frame, and in three cases nothing more before its reply.

        After a mutation that was charged, because an old client is muted only when it is answered, as at a broker.
        After a SaslHandshake v0, because tokens without headers follow only if the broker agrees. After a
        SaslAuthenticate, because a broker delays its refusal of another user's re-authentication, and answers what
        follows first: with equal correlation ids, its answer would be taken for that of the token.
        """
        if (
            exchange.mutations
            or exchange.api_key == ApiKey.SASL_AUTHENTICATE
            or (exchange.api_key == ApiKey.SASL_HANDSHAKE and exchange.api_version == 0)
        ):
            exchange.alone = True
        self._forward(exchange, frame, now_s)
        if self._state.in_flight.amendments:
            self._state.in_flight.collect_amended(exchange)

    def _walk(self, exchange: Exchange, body: memoryview) -> Steps[ProduceWalk | None]:
        """Read the batches of a Produce, if a callback requires them; yield now and then."""
        if not exchange.read_batches:
            return None
        walk = ProduceWalk(exchange.api_version, len(body), self._state.limits.max_request_rows)
        at = walk.walk(body, 0, len(body))
        while walk.pauses:
            yield
            at = walk.walk(body, at, len(body))
        return walk

    def _now_ms(self) -> int:
        return int(self._shared.clock() * 1000)
