"""The owners of delegation tokens, by token id: asked of the brokers for all tokens at once, and remembered.

There is one `TokenOwners` for each ``[upstream.owner_lookup]``. Connections ask it for the token by which a client has
authenticated, as soon as the broker has accepted it: a client that could choose the time would delete the token before.
The server runs it, and gives it the function that asks a broker (`headrace.proxy.server.owner_lookup`).

Brokers cannot be asked for one token without knowing its owner, so each answer has all tokens. There is one request at
a time, and at most one every `INTERVAL_S` seconds; all connections that wait when it begins share its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog
import trio

from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from headrace.proxy.kafka_client.delegation_tokens import DelegationToken

AskForTokens: TypeAlias = "Callable[[float], Awaitable[Mapping[str, DelegationToken]]]"
"""Asks a broker for all tokens, for at most so many seconds. Raises `LookupFailed`."""

INTERVAL_S: Final = 2.0
"""The shortest time between two requests, since an answer has all tokens of the cluster."""
PAUSE_RATIO: Final = 4
"""The pause after a request is at least this many times as long as the request took. Reading a long answer takes a
processor (0.8 s for 100,000 tokens), and so do the broker that writes it and the network."""
LONGEST_INTERVAL_S: Final = 15.0
"""The longest pause, after a request of some seconds. The requests of clients wait for it, which they do for 30 seconds
(``request.timeout.ms``)."""
ATTEMPTS: Final = 2
"""Requests after which a token counts as unknown. A broker learns of a token some time after the others do."""
UNKNOWN_S: Final = 10.0
"""Time for which no broker is asked again: for a token that no answer had, and, after a failure, for any token. New
connections do not wait meanwhile."""
SHORTEST_S: Final = 10.0
"""The shortest time for which an owner is remembered, whatever the clocks of the proxy and the brokers show."""
MAX_OWNERS: Final = 100_000
"""Maximum number of tokens that are remembered, each with about 300 bytes. If there are more, those that clients use
replace others."""
MAX_UNKNOWN: Final = 1000
"""Unknown tokens that are remembered. Their clients have authenticated, so there are few."""
MAX_WANTED: Final = 10_000
"""Maximum number of token ids that are noted for one request. Clients whose tokens were not noted wait for the same
answer; if it has more than `MAX_OWNERS` tokens, the owners of their tokens may not be remembered."""
SLICE: Final = 500
"""Number of tokens that are processed between two checkpoints, which takes 1 ms."""

log = structlog.get_logger("headrace.authentication")


class LookupFailed(Exception):  # noqa: N818 -- an outcome, which is logged
    """No owner is known. ``str()`` is the reason, without anything that a client chooses, and without secrets.

    ``kind`` is that of the reason, without numbers and addresses, which differ from time to time.
    """

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.kind = kind


class _Failure(NamedTuple):
    """The arguments of `LookupFailed`. Each connection raises one of its own, since tracebacks grow."""

    reason: str
    kind: str


@dataclass(slots=True)
class _Round:
    """One request to a broker, and the connections that wait for its answer."""

    tokens: set[str] = field(default_factory=set)
    """The ids of the tokens that were wanted before it was sent."""
    wanted: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    failure: _Failure | None = None

    def add(self, token_id: str) -> None:
        if len(self.tokens) < MAX_WANTED:
            self.tokens.add(token_id)
        self.wanted.set()


class TokenOwners:
    """The owners that are known at present.

    ``setting`` is the table of the brokers, and ``timeout_s`` returns its ``connect_timeout``. ``not_visible`` is the
    reason for a token that no answer had. ``refuses_unknown`` is whether clients whose owner is not known are not
    served.
    """

    def __init__(
        self,
        ask: AskForTokens,
        *,
        setting: str,
        timeout_s: Callable[[], float],
        not_visible: str,
        refuses_unknown: bool = False,
        wall_ms: Callable[[], int] = lambda: time_ns() // 1_000_000,
    ) -> None:
        self._ask = ask
        self._setting = setting
        self._timeout_s = timeout_s
        self._missing = _Failure(not_visible, "not visible")
        self.refuses_unknown = refuses_unknown
        self._wall_ms = wall_ms
        self._owners: dict[str, tuple[str, float]] = {}
        """The owner of each token and when it is forgotten, on trio's clock; the token that was used last is last."""
        self._unknown: dict[str, float] = {}
        """The tokens that no answer had, in the order in which they were found missing, and the time before which
        brokers are not asked for each again."""
        self._failed: tuple[_Failure, float] | None = None
        """The reason why the latest request has failed, and the time before which none is sent."""
        self._missed: set[str] = set()
        """The ids of tokens that were looked for in the latest answer, and were not in it."""
        self._sent: _Round | None = None
        """The request that is under way."""
        self._next = _Round()
        self.requests = {"answered": 0, "failed": 0}
        """Requests to brokers, by their result."""
        self.requests_s = 0.0
        """Seconds that these requests took."""

    def __len__(self) -> int:
        return len(self._owners)

    def known(self, token_id: str) -> str | None:
        """Return the owner of a token, without waiting; ``None`` if a broker has to be asked."""
        found = self._owners.pop(token_id, None)
        if found is None or found[1] <= trio.current_time():
            return None
        self._owners[token_id] = found
        return found[0]

    def want(self, token_id: str) -> None:
        """Have a broker asked for the owner of a token, if it is not known; `find` waits for the answer."""
        if self.known(token_id) is None and self._recent_failure(token_id) is None and self._round_of(token_id) is None:
            self._next.add(token_id)

    async def find(self, token_id: str) -> str:
        """Return the owner of a token, for which a broker is asked if it is not known.

        Waits at most for ``connect_timeout`` of the brokers' table, beside the time between two requests. Raises
        `LookupFailed`. May be cancelled at any time; other connections are not affected.
        """
        owner = self.known(token_id)
        if owner is not None:
            return owner
        if (failure := self._recent_failure(token_id)) is not None:
            raise LookupFailed(*failure)
        timeout_s, answers = self._timeout_s(), int(token_id in self._missed)
        with trio.move_on_after(timeout_s + LONGEST_INTERVAL_S):
            while answers < ATTEMPTS:
                this = self._round_of(token_id) or self._next
                this.add(token_id)
                await this.over.wait()
                owner = self.known(token_id)
                if owner is not None:
                    return owner
                if this.failure is not None:
                    raise LookupFailed(*this.failure)
                answers += 1
            self._remember_unknown(token_id)
        if answers:
            raise LookupFailed(*self._missing)
        reason = f"no answer of a broker within {self._setting}.connect_timeout = {timeout_s:g} s"
        raise LookupFailed(reason, "no answer")

    async def run(self) -> None:
        """Ask a broker whenever an owner is wanted, until cancelled."""
        while True:
            await self._next.wanted.wait()
            self._sent, self._next = self._next, _Round()
            began_s = trio.current_time()
            tokens = await self._answer(self._sent)
            took_s = trio.current_time() - began_s
            self.requests["answered" if self._sent.failure is None else "failed"] += 1
            self.requests_s += took_s
            wanted = {each: tokens[each] for each in self._sent.tokens if each in tokens}
            await self._forget_expired()
            await self._remember(wanted, are_wanted=True)
            self._sent.over.set()
            self._sent = None
            await self._remember(tokens, are_wanted=False)
            pause_s = min(max(INTERVAL_S, PAUSE_RATIO * took_s), LONGEST_INTERVAL_S)
            await trio.sleep_until(began_s + took_s + pause_s)

    async def _answer(self, this: _Round) -> Mapping[str, DelegationToken]:
        """Return all tokens; none if the request fails, which is noted. Nothing but a cancellation is raised, since the
        proxy would end."""
        try:
            tokens = await self._ask(self._timeout_s())
        except LookupFailed as failed:
            failure = _Failure(str(failed), failed.kind)
        except Exception as error:
            log.exception("internal error; the owners of delegation tokens are not known", setting=self._setting)
            failure = _Failure(f"internal error: {type(error).__name__}", "internal error")
        else:
            self._failed = None
            self._missed = this.tokens.difference(tokens)
            return tokens
        self._failed = failure, trio.current_time() + UNKNOWN_S
        this.failure = self._next.failure = failure
        self._next.over.set()
        self._next = _Round()
        return {}

    def _round_of(self, token_id: str) -> _Round | None:
        """Return the request that is under way if the token was wanted before it was sent.

        The answer to any other may be older than the token.
        """
        sent = self._sent
        return sent if sent is not None and token_id in sent.tokens else None

    def _recent_failure(self, token_id: str) -> _Failure | None:
        """Return why brokers are not asked for the token now; ``None`` if they may be asked."""
        now_s = trio.current_time()
        if self._unknown.get(token_id, now_s) > now_s:
            return self._missing
        if self._failed is not None and self._failed[1] > now_s:
            return self._failed[0]
        return None

    def _remember_unknown(self, token_id: str) -> None:
        self._missed.discard(token_id)
        self._unknown.pop(token_id, None)
        if len(self._unknown) >= MAX_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[token_id] = trio.current_time() + UNKNOWN_S

    async def _forget_expired(self) -> None:
        now_s = trio.current_time()
        for count, token_id in enumerate(list(self._owners), start=1):
            found = self._owners.get(token_id)  # others look up owners meanwhile
            if found is not None and found[1] <= now_s:
                del self._owners[token_id]
            if count % SLICE == 0:
                await trio.lowlevel.checkpoint()

    async def _remember(self, tokens: Mapping[str, DelegationToken], *, are_wanted: bool) -> None:
        """Remember the owners of tokens. If the table is full, owners that clients wait for (``are_wanted``) replace
        those that were used longest ago, and others are not remembered."""
        now_s, wall_ms = trio.current_time(), self._wall_ms()
        for count, (token_id, token) in enumerate(tokens.items(), start=1):
            if 0 < len(token.owner) <= MAX_PRINCIPAL_CHARACTERS:
                until_s = now_s + max((token.expires_ms - wall_ms) / 1000, SHORTEST_S)
                self._keep(token_id, token.owner, until_s, is_wanted=are_wanted)
            if count % SLICE == 0:
                await trio.lowlevel.checkpoint()

    def _keep(self, token_id: str, owner: str, until_s: float, *, is_wanted: bool) -> None:
        if token_id not in self._owners and len(self._owners) >= MAX_OWNERS:
            if not is_wanted:
                return
            del self._owners[next(iter(self._owners))]
        self._owners[token_id] = owner, until_s
