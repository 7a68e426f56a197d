"""Calling the hooks for completed requests: for each of them, for a sample, or with sums; part of `hook_calls`.

An ordinary request (`Request.is_ordinary`) is added to the sums if a plugin has ``requests_completed``. It is reported
individually to plugins that have neither that hook nor a sample ratio, to those that ask for each request of its API,
and to those in whose sample it is. A request that is not ordinary is reported individually to every plugin. The native
data plane keeps the same sums, and draws the same sample; this module takes them over.
"""

from __future__ import annotations

import random
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.plugin_errors import description
from headrace.quota_callbacks.request_sums import RequestSums
from headrace.quota_callbacks.requests import is_time_exempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.proxy.hooks.implementations import Call, Calls, Implementations, Interests
    from headrace.quota_callbacks.requests import Connection, Request

    CallHook: TypeAlias = Callable[..., Any]

NativeSums: TypeAlias = "tuple[int, int, int, int, int, int, int, list[int]]"
"""API key, second, requests, bytes of requests and of replies, thread time and broker time in nanoseconds, and a
histogram: the number of requests by their broker time."""

SECOND_NS: Final = 1_000_000_000


class CompletionCalls:
    """The calls for completed requests, and the sums that were not delivered yet."""

    def __init__(
        self,
        found: Implementations,
        interests: Interests,
        call_hook: CallHook,
        request_time_ms: Callable[[Request], float | None],
    ) -> None:
        """``call_hook`` calls an implementation, and handles what it raises. Raises `StartupError`."""
        self._call_hook = call_hook
        self._request_time_ms = request_time_ms
        ratios = _sample_ratios(found)
        summing = found.by_api("requests_completed", ("batch",), interests)
        names = {name for calls in summing.values() for name, _ in calls}
        self._each: dict[int, Calls] = {}
        """Callbacks for each request."""
        self._others: dict[int, Calls] = {}
        """Callbacks that get only requests that are not ordinary, and those of their sample (`_ratios`)."""
        self._ratios: dict[int, tuple[tuple[float, Call], ...]] = {}
        for api_key, calls in found.by_api("request_completed", ("request",), interests).items():
            each = tuple(
                call
                for call in calls
                if call[0] not in names | ratios.keys() or _asks_each(interests, call[0], api_key)
            )
            self._each[api_key] = each
            self._others[api_key] = tuple(call for call in calls if call not in each)
            self._ratios[api_key] = tuple(
                (ratios[call[0]], call) for call in self._others[api_key] if ratios.get(call[0], 0.0) > 0
            )
        self._summing: list[tuple[Call, frozenset[int]]] = []
        for name, call in found.calls("requests_completed", ("batch",)):
            keys = {
                api_key
                for api_key, calls in summing.items()
                if any(name == each for each, _ in calls) and not _asks_each(interests, name, api_key)
            }
            self._summing.append(((name, call), frozenset(keys)))
        self._summed: frozenset[int] = frozenset().union(*(keys for _, keys in self._summing))
        self._sums: dict[tuple[int, str, str, int, int], RequestSums] = {}
        self.draw = random.Random().random  # noqa: S311 -- a sample is no secret
        """Returns a random number from 0 up to 1: a request is in the samples of all plugins with a higher ratio."""

    @property
    def observed(self) -> frozenset[int]:
        """The API keys of which requests have to be reported when they are completed."""
        return frozenset(key for key in self._each if self._each[key] or self._others[key]) | self._summed

    @property
    def each(self) -> frozenset[int]:
        """The API keys of which each request has to be reported by itself."""
        return frozenset(key for key, calls in self._each.items() if calls)

    @property
    def has_sums(self) -> bool:
        """Whether a plugin is called with sums."""
        return bool(self._summed)

    @property
    def sample_ratio(self) -> float:
        """The highest sample ratio of the plugins; 0 if there are none."""
        return max((ratio for ratios in self._ratios.values() for ratio, _ in ratios), default=0.0)

    def request_completed(self, request: Request) -> None:
        """Report a request that the Python relays have completed."""
        api_key = request.api_key
        for name, call in self._each.get(api_key, ()):
            self._call_hook("request_completed", name, call, request)
        if not request.is_ordinary:
            for name, call in self._others.get(api_key, ()):
                self._call_hook("request_completed", name, call, request)
            return
        if self._ratios.get(api_key):
            self.report_sampled(request, self.draw())
        if api_key in self._summed:
            self._add(request)

    def report_sampled(self, request: Request, draw: float) -> None:
        """Report an ordinary request to the plugins in whose sample it is, by its random number."""
        for ratio, (name, call) in self._ratios.get(request.api_key, ()):
            if draw < ratio:
                self._call_hook("request_completed", name, call, request)

    def _add(self, request: Request) -> None:
        connection = request.connection
        sums = self._sums_of(connection, request.client_id, request.api_key, time_ns() // SECOND_NS)
        sums.requests += 1
        sums.request_bytes += request.request_bytes
        sums.response_bytes += request.response_bytes
        sums.new_producer_ids += request.new_producer_ids
        charged_ns = request.charged_thread_ns
        if request.reply_s is not None and request.forwarded_s is not None:
            sums.add_latency(request.reply_s - request.forwarded_s)
            sums.thread_ns += self._thread_ns(request) if charged_ns is None else charged_ns
        elif charged_ns is not None:
            sums.thread_ns += charged_ns
        elif request.acks == 0:
            connection.thread_ns = 0  # the request is exempt, and so is the proxy's time for it

    def _thread_ns(self, request: Request) -> int:
        """Return what ``request_percentage`` would have charged if the sender had such a quota."""
        connection = request.connection
        own_ns, connection.thread_ns = connection.thread_ns, 0
        return 0 if is_time_exempt(request) else round((self._request_time_ms(request) or 0.0) * 1e6) + own_ns

    def add_native(self, connection: Connection, client_id: str, rows: Iterable[NativeSums]) -> None:
        """Add sums of the native data plane."""
        for api_key, second, requests, request_bytes, reply_bytes, thread_ns, broker_ns, latencies in rows:
            if api_key not in self._summed:
                continue
            sums = self._sums_of(connection, client_id, api_key, second)
            sums.requests += requests
            sums.request_bytes += request_bytes
            sums.response_bytes += reply_bytes
            sums.thread_ns += thread_ns
            sums.broker_s += broker_ns / SECOND_NS
            for at, count in enumerate(latencies):
                sums.latencies[at] += count

    def _sums_of(self, connection: Connection, client_id: str, api_key: int, second: int) -> RequestSums:
        key = connection.connection_id, connection.user, client_id, api_key, second
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = RequestSums(connection, connection.user, client_id, api_key, second)
        return sums

    def deliver(self) -> None:
        """Call ``requests_completed`` with the sums since the last call, if there are any."""
        if not self._sums:
            return
        sums, self._sums = tuple(self._sums.values()), {}
        for (name, call), keys in self._summing:
            batch = sums if keys == self._summed else tuple(each for each in sums if each.api_key in keys)
            if batch:
                self._call_hook("requests_completed", name, call, batch)


def _asks_each(interests: Interests, name: str, api_key: int) -> bool:
    interest = interests.get(name, {}).get(api_key)
    return interest is not None and interest.each_completed


def _sample_ratios(found: Implementations) -> Mapping[str, float]:
    """Return the ratios by plugin name. Raises `StartupError` for a plugin that raises, and for one that is none."""
    ratios: dict[str, float] = {}
    for name, call in found.calls("request_sample_ratio", ()):
        try:
            ratio = call()
            if ratio is not None:
                if not 0 <= ratio <= 1:
                    raise ValueError(f"{ratio!r} is not a number from 0 to 1")  # noqa: TRY301
                ratios[name] = float(ratio)
        except BaseException as error:
            raise StartupError(f"plugin {name!r}: request_sample_ratio: {description(error)}") from error  # noqa: ASYNC104
    return ratios
