"""Sending one request until it is answered: attempts, back-off, deadlines, and the search for the controller.

The rules are those of ``KafkaAdminClient.Call``: after lost connections, time-outs of one request and NOT_CONTROLLER
the request is sent again, with a back-off that doubles, until the deadline of the call. Every other error ends the call
at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, assert_never

import trio

from headrace.proxy.kafka_client.errors import (
    ApiTimeoutError,
    ConnectionLostError,
    KafkaClientError,
    NotControllerError,
    UnreachableError,
)
from headrace.proxy.wire.apis import APIS
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.proxy.kafka_client.cluster import Broker, Cluster
    from headrace.proxy.kafka_client.settings import ClientSettings
    from headrace.proxy.wire.messages.codec import Message
    from headrace.quota_callbacks.api_keys import ApiKey

_BACKOFF_FACTOR: Final = 2
_BACKOFF_JITTER: Final = 0.2  # ExponentialBackoff, CommonClientConfigs.RETRY_BACKOFF_JITTER


class Target(Enum):
    """Which broker a request goes to."""

    ANY = auto()
    CONTROLLER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, and how its reply is read."""

    api_key: ApiKey
    target: Target
    build: Callable[[int, int], Message]
    """Builds the message for a version of the API, and the time in ms that the broker may take."""
    error_codes: Callable[[Message], Iterable[int]]
    """Returns all error codes of a reply."""
    wanted: frozenset[str] | None = None
    """The fields of the reply that are read (`headrace.proxy.wire.messages.projection`); ``None`` for all. The limit of
    rows then holds for those of which fields are read."""

    @property
    def name(self) -> str:
        """Kafka's name of the API, such as ``CreateTopics``."""
        return APIS[self.api_key].name


class Caller:
    """What makes calls to one cluster."""

    def __init__(self, cluster: Cluster, settings: ClientSettings) -> None:
        self._cluster = cluster
        self._settings = settings

    def deadline(self, timeout_ms: int | None) -> float:
        """Return the deadline, on trio's clock, of a call that begins now. ``None`` is ``default_api_timeout_ms``."""
        chosen_ms = self._settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return trio.current_time() + chosen_ms / 1000

    async def call(self, call: Call, deadline: float) -> Message:
        """Return the reply to a request, which is sent again after errors that may pass.

        Raises `ApiTimeoutError`, caused by the last error, at the deadline, and every other error at once. A cancelled
        call may have had its effect at the broker.
        """
        began = trio.current_time()
        attempts = 0
        last: KafkaClientError | None = None
        with trio.move_on_at(deadline):
            while True:
                attempts += 1
                try:
                    return await self._attempt(call, deadline)
                except (UnreachableError, ConnectionLostError, NotControllerError) as error:
                    last = error
                    self._cluster.forget_controller()
                await trio.sleep(self._backoff_s(attempts))
        passed_ms = round((trio.current_time() - began) * 1000)
        reason = f"the last error: {last}" if last else "no broker has replied"
        raise ApiTimeoutError(
            f"{call.name} timed out after {passed_ms} ms and {attempts} attempt{'s'[: attempts > 1]}; {reason}"
        ) from last

    async def pause(self) -> None:
        """Wait as long as before a second attempt."""
        await trio.sleep(self._backoff_s(1))

    async def _attempt(self, call: Call, deadline: float) -> Message:
        broker = await self._broker(call.target)

        def build(version: int) -> Message:
            remaining_ms = int(max(deadline - trio.current_time(), 0) * 1000)
            return call.build(version, min(self._settings.request_timeout_ms, remaining_ms))

        _, reply = await broker.ask(call.api_key, build, self._settings.request_timeout_ms / 1000, call.wanted)
        if ErrorCode.NOT_CONTROLLER in call.error_codes(reply):
            raise NotControllerError
        return reply

    async def _broker(self, target: Target) -> Broker:
        match target:
            case Target.ANY:
                return self._cluster.any_broker()
            case Target.CONTROLLER:
                return await self._cluster.controller()
            case _:
                assert_never(target)

    def _backoff_s(self, attempts: int) -> float:
        shortest, longest = self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms
        doublings = min(attempts - 1, 32)
        backoff_ms: float = min(shortest * _BACKOFF_FACTOR**doublings, longest)
        return backoff_ms / 1000 * random.uniform(1 - _BACKOFF_JITTER, 1 + _BACKOFF_JITTER)  # noqa: S311
