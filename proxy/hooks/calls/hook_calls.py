"""Calling hooks, from flat lists that are built once after registration, and handling exceptions of plugins.

A pluggy call with four implementations costs 1.6 µs; calling the same four from a list costs 0.3 µs. The other modules
of this package call the hooks of their own subjects in the same way. An exception of a plugin is logged with the
plugin's name and never reaches a connection (`headrace.proxy.hooks.plugin_errors`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import structlog

from headrace.proxy.hooks.calls.authorization import AuthorizationCalls
from headrace.proxy.hooks.calls.completions import CompletionCalls
from headrace.proxy.hooks.calls.configuration import ConfigurationCalls
from headrace.proxy.hooks.calls.relay import RelayCalls
from headrace.proxy.hooks.calls.sasl import SaslCalls
from headrace.proxy.hooks.calls.users import UserCalls
from headrace.proxy.hooks.combined_verdicts import DECIDING, CombinedVerdict, check_verdict
from headrace.proxy.hooks.enforced_quotas import EnforcedQuotas, enforced_quotas
from headrace.proxy.hooks.implementations import Implementations, api_keys_with_detail
from headrace.proxy.hooks.plugin_errors import collected, raise_cancellation
from headrace.proxy.hooks.quota_schema import combined_schema
from headrace.proxy.hooks.slow_calls import SlowCalls
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.proxy.wire.apis import READ_IN_FULL
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, INT_MAX
from headrace.quota_callbacks.entities import CONNECTION_CREATION_RATE, quota_key
from headrace.quota_callbacks.error_codes import ErrorCode
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.requests import Detail
from headrace.quota_callbacks.verdicts import Refuse, Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pluggy

    from headrace.proxy.hooks.implementations import Calls
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.entities import QuotaEntity
    from headrace.quota_callbacks.hookspecs import Metric
    from headrace.quota_callbacks.identities import AuthenticationObserver, QuotaOperation
    from headrace.quota_callbacks.policies import Quota
    from headrace.quota_callbacks.requests import ClusterMetadata, Connection, Request
    from headrace.quota_callbacks.verdicts import Verdict

log = structlog.get_logger("headrace.plugins")


class HookCalls:
    """The hook implementations of all registered plugins. Create it after the plugins were registered."""

    def __init__(
        self, manager: pluggy.PluginManager, *, fail_closed: bool = False, slow_call_s: float = math.inf
    ) -> None:
        self.slow_calls = SlowCalls(slow_call_s)
        self._found = Implementations(manager, self.slow_calls)
        self.relay: RelayCalls
        """Calls the hooks for connections that are relayed natively."""
        self.completed: CompletionCalls
        """Calls the hooks for completed requests."""
        self.fail_closed = fail_closed
        self.errors = 0
        """Number of exceptions raised by plugins."""
        self.failures: dict[str, int] = {}
        """Number of exceptions raised, by plugin name."""
        self.configuration = ConfigurationCalls(self._found, self._failed, self.slow_calls)
        """Calls the hooks for the options of plugins."""
        self.sasl = SaslCalls(self._found, self._failed, self.slow_calls)
        """Calls the hooks for SASL exchanges that the proxy takes part in."""
        self.users = UserCalls(self._found, self._failed)
        """Calls the hook that rewrites the names of users."""
        self.authorization = AuthorizationCalls(self._found, self._failed)
        """Calls the hooks for authorization."""
        self._received: dict[int, Calls] = {}
        self._replied: dict[int, Calls] = {}
        self._batches: Calls = ()
        self._fetched: dict[int, Calls] = {}
        self._arrived: dict[int, Calls] = {}
        self._abandoned: dict[int, Calls] = {}
        self._denied: dict[int, Calls] = {}
        self._request_times: Calls = ()
        self._budgets: Calls = ()
        self.bodies: frozenset[int] = frozenset()
        """API keys whose requests are collected and decoded, because a plugin requires the body (`Detail.BODY`)."""
        self.mutations: frozenset[int] = frozenset()
        """API keys whose requests are collected because a plugin requires the mutations (`Detail.MUTATIONS`)."""
        self.collects: frozenset[int] = READ_IN_FULL
        """API keys whose requests may be collected: because a plugin requires the body or the mutations, or because the
        proxy itself reads them. Requests of other APIs are never collected."""
        self.completions: frozenset[int] = frozenset()
        """API keys of which completed requests are reported."""
        self._updates: Calls = ()
        self._removals: Calls = ()
        self._opened: Calls = ()
        self._closed: Calls = ()
        self._reset: Calls = ()
        self._tags: Calls = ()
        self._limits: Calls = ()
        self._keys: tuple[str, ...] = ()
        self.enforced = EnforcedQuotas()
        """The quotas that the callbacks enforce."""
        self.schema = BUILTIN_SCHEMA
        """The quota keys and entity types that exist: the built-in ones and those of the plugins."""
        self._repeated = RepeatedLines()
        self.quotas: ClientQuotas | None = None

    # --- start ---

    def configure(
        self, quotas: ClientQuotas, options: Mapping[str, Mapping[str, Any]], context: PluginContext | None = None
    ) -> None:
        """Call ``configure`` of every plugin with its options, and keep ``quotas``, the buckets.

        ``context`` has everything that all plugins share. Raises as `ConfigurationCalls.configure`.
        """
        self.quotas = quotas
        shared = context or PluginContext(options={}, quotas=quotas)
        self.configuration.configure(options, replace(shared, quotas=quotas, request_time_ms=self.request_time_ms))

    def flatten(self) -> None:
        """Build the flat lists, and collect the quota definitions.

        Call it after `configure`, since what a plugin returns may depend on its options. Raises `StartupError` for a
        plugin that raises, and for invalid definitions.
        """
        self.schema = combined_schema(self._found.calls("quota_definitions", ()), self._failed, self.slow_calls)
        if self.quotas is not None:
            self.quotas.add_keys(self.schema.keys)
        self.enforced = enforced_quotas(self.schema, self.quotas, self._found)
        interests = self._found.interests()
        self.bodies = api_keys_with_detail(Detail.BODY, interests)
        self.mutations = api_keys_with_detail(Detail.MUTATIONS, interests)
        self.collects = READ_IN_FULL | self.bodies | self.mutations
        self._received = self._found.by_api("request_received", ("request", "now_ms"), interests)
        self._replied = self._found.by_api("response_received", ("request", "now_ms"), interests)
        self.completed = CompletionCalls(self._found, interests, self._call_hook, self.request_time_ms)
        self.completions = self.completed.observed
        self._abandoned = self._found.by_api("request_abandoned", ("request", "now_ms"), interests)
        self._denied = self._found.by_api("request_denied", ("request", "now_ms"), interests)
        self._arrived = self._found.by_api("request_arrived", ("request", "now_ms"), interests)
        self._batches = self._found.by_api("batches_received", ("request", "now_ms"), interests).get(ApiKey.PRODUCE, ())
        self._fetched = self._found.by_api("records_fetched", ("request", "now_ms"), interests)
        self.relay = RelayCalls(self._found, self._failed, interests, self.completed.each)
        self._budgets = self._found.calls("mutation_budget", ("request", "now_ms"))
        self._request_times = self._found.calls("request_time_ms", ("request",))
        self._updates = self._found.calls("update_quota", ("key", "entity", "value", "policy"))
        self._removals = self._found.calls("remove_quota", ("key", "entity"))
        self._opened = self._found.calls("connection_opened", ("connection",))
        self._closed = self._found.calls("connection_closed", ("connection", "reason"))
        self._reset = self._found.calls("quota_reset_required", ("key",))
        self._keys = tuple(quota_key(name) for name in self.schema.keys if name != CONNECTION_CREATION_RATE)
        self._tags = self._found.calls("quota_metric_tags", ("key", "user", "client_id"))
        self._limits = self._found.calls("quota_limit", ("key", "tags"))
        self.authorization.flatten()

    # --- requests ---

    def request_callbacks(self, api_key: int) -> Calls:
        """Return the callbacks to call for a request with this API key."""
        return self._received.get(api_key, ())

    def response_callbacks(self, api_key: int) -> Calls:
        """Return the callbacks to call for a response with this API key."""
        return self._replied.get(api_key, ())

    def request_received(self, calls: Calls, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Call ``request_received`` of ``calls``; return the combined verdict, or ``None`` to forward the request."""
        if self._reset:
            self._poll_resets()
        combined = self._collect_verdicts("request_received", calls, request, now_ms)
        cap = request.fetch_max_bytes
        if cap is not None and not (isinstance(cap, int) and 0 <= cap <= INT_MAX):
            self._failed(
                "request_received",
                "a plugin",
                ValueError(f"fetch_max_bytes is {cap!r}; it must be an INT32, 0 or more"),
            )
            request.fetch_max_bytes = None
        return combined

    def response_received(self, calls: Calls, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Call ``response_received`` of ``calls``; return the combined verdict, or ``None``."""
        return self._collect_verdicts("response_received", calls, request, now_ms)

    def request_arrived(self, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Call ``request_arrived`` for a request whose last byte arrived after ``request_received`` was called."""
        return self._collect_verdicts("request_arrived", self._arrived.get(request.api_key, ()), request, now_ms)

    def batches_received(self, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Call ``batches_received`` for a Produce request whose batches have all been read."""
        return self._collect_verdicts("batches_received", self._batches, request, now_ms)

    def records_fetched(self, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Call ``records_fetched`` for a Fetch or ShareFetch whose whole reply has been read."""
        return self._collect_verdicts("records_fetched", self._fetched.get(request.api_key, ()), request, now_ms)

    def request_abandoned(self, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Call ``request_abandoned`` for a request that will have no response from the broker; return the combined
        verdict, or ``None``."""
        return self._collect_verdicts("request_abandoned", self._abandoned.get(request.api_key, ()), request, now_ms)

    def request_denied(self, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Call ``request_denied`` for a request that was not authorized; return as `request_abandoned`."""
        return self._collect_verdicts("request_denied", self._denied.get(request.api_key, ()), request, now_ms)

    def request_time_ms(self, request: Request) -> float | None:
        """Return the first plugin's estimate of the broker's handler time in milliseconds, or ``None``.

        An estimate that is not a finite number, 0 or more, is logged as an error of the plugin and skipped.
        """
        for name, call in self._request_times:
            try:
                estimate = call(request)
                if estimate is not None:
                    if not 0 <= estimate < math.inf:
                        raise ValueError(f"request_time_ms is {estimate!r}; it must be finite, 0 or more")  # noqa: TRY301
                    return float(estimate)
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                self._failed("request_time_ms", name, error)
        return None

    def mutation_budget(self, request: Request, now_ms: int) -> float | None:
        """Return the lowest answer: the sender's tokens for mutations, or ``None`` if no quota applies.

        An answer that is not a number is logged as an error of the plugin and skipped.
        """
        lowest: float | None = None
        for name, call in self._budgets:
            budget: Any = self._call_hook("mutation_budget", name, call, request, now_ms)
            if budget is None:
                continue
            if not _is_number(budget):
                self._failed("mutation_budget", name, ValueError(f"mutation_budget is {budget!r}; it must be a number"))
            elif lowest is None or budget < lowest:
                lowest = budget
        return lowest

    def _collect_verdicts(self, hook: str, calls: Calls, request: Request, now_ms: int) -> CombinedVerdict | None:
        combined: CombinedVerdict | None = None
        longest_s = self.slow_calls.limit_s
        began_s = monotonic()
        for name, call in calls:
            verdict: Verdict | None
            try:
                verdict = call(request, now_ms)
                if verdict is not None:
                    check_verdict(verdict, request, hook)
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                verdict = self._verdict_of_failed(hook, name, error)  # raises if it is a cancellation
            ended_s = monotonic()
            if ended_s - began_s > longest_s:
                self.slow_calls.note(name, hook, began_s, ended_s)
            began_s = ended_s  # one reading for each call, since this is on the path of every request
            if verdict is None:
                continue
            if combined is None:
                combined = CombinedVerdict()
            combined.add(verdict)
            if isinstance(verdict, Throttle) and verdict.ask_again and not verdict.observe:
                combined.ask_again = (*combined.ask_again, (name, call))
        return combined

    def _verdict_of_failed(self, hook: str, name: str, error: BaseException) -> Refuse | None:
        """Log and count an exception of a callback; return the refusal if ``plugins.on_error`` is "closed" and the
        request can still be refused."""
        self._failed(hook, name, error)
        if not self.fail_closed or hook != DECIDING:
            return None
        return Refuse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR.value, message=f"quota plugin {name} failed")

    def request_completed(self, request: Request) -> None:
        """Report a completed request to the plugins that subscribe to this API."""
        self.completed.request_completed(request)

    def connection_opened(self, connection: Connection) -> None:
        """Call ``connection_opened`` of all plugins."""
        for name, call in self._opened:
            self._call_hook("connection_opened", name, call, connection)

    def connection_closed(self, connection: Connection, reason: str | None) -> None:
        """Call ``connection_closed`` of all plugins; ``reason`` is ``None`` for a connection that ended normally. What
        was completed is delivered before."""
        self.completed.deliver()
        for name, call in self._closed:
            self._call_hook("connection_closed", name, call, connection, reason)

    # --- identity ---

    def authentication_started(
        self, connection: Connection, mechanism: str
    ) -> tuple[str, AuthenticationObserver] | None:
        """Return the first plugin's name and its observer, or ``None``; a plugin that raises is skipped."""
        for name, call in self._found.calls("authentication_started", ("connection", "mechanism")):
            observer: AuthenticationObserver | None = self._call_hook(
                "authentication_started", name, call, connection, mechanism
            )
            if observer is not None:
                return name, observer
        return None

    def call_observer(self, name: str, call: Callable[[], object]) -> object:
        """Call a method of an observer, by the name of its plugin, and return its result. Raises what it raises."""
        return self.slow_calls.measured(name, "authentication_started", call)()

    def observer_failed(self, name: str, error: BaseException) -> None:
        """Log and count an exception of an observer, by the name of its plugin."""
        self._failed("authentication_started", name, error)

    def authorize_quotas(self, connection: Connection, operation: QuotaOperation) -> bool | None:
        """Return the first plugin's decision, or ``None``. A plugin that raises denies the request."""
        for name, call in self._found.calls("authorize_quotas", ("connection", "operation")):
            errors = self.errors
            decided: object = self._call_hook("authorize_quotas", name, call, connection, operation)
            if decided is not None or self.errors != errors:
                return decided is True
        return None

    # --- KIP-257 ---

    def quota_metric_tags(self, key: str, user: str, client_id: str) -> Mapping[str, str] | None:
        """Return the first plugin's metric tags, custom callbacks before built-in ones; skip a plugin that raises."""
        for name, call in self._tags:
            tags: Mapping[str, str] | None = self._call_hook("quota_metric_tags", name, call, key, user, client_id)
            if tags is not None:
                return tags
        return None

    def quota_limit(self, key: str, tags: Mapping[str, str]) -> float | None:
        """Return the first plugin's limit, or ``None``.

        A limit that is infinite or not above 0 is logged as an error of the plugin, since throttle times are divided by
        it.
        """
        for name, call in self._limits:
            limit: Any = self._call_hook("quota_limit", name, call, key, tags)
            if limit is None:
                continue
            if _is_number(limit) and 0 < limit < math.inf:
                found: float | None = limit  # possibly a `Limit`, whose attributes must be kept
                return found
            self._failed("quota_limit", name, ValueError(f"quota_limit is {limit!r}; it must be finite and above 0"))
        return None

    def update_quota(self, key: str, entity: QuotaEntity, quota: Quota) -> None:
        """Call ``update_quota`` of all plugins; the caller then calls ``ClientQuotas.quotas_changed``."""
        for name, call in self._updates:
            self._call_hook("update_quota", name, call, key, entity, quota.value, quota.policy)

    def remove_quota(self, key: str, entity: QuotaEntity) -> None:
        """Call ``remove_quota`` of all plugins; the caller then calls ``ClientQuotas.quotas_changed``."""
        for name, call in self._removals:
            self._call_hook("remove_quota", name, call, key, entity)

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> None:
        """Call ``update_cluster_metadata`` of all plugins; resolve limits again if one reports a change."""
        answers = [
            self._call_hook("update_cluster_metadata", name, call, cluster)
            for name, call in self._found.calls("update_cluster_metadata", ("cluster",))
        ]
        if any(answers) and self.quotas is not None:
            self.quotas.quotas_changed()

    def not_ready(self) -> list[str]:
        """Return the plugins' reasons why the proxy should get no new connections, with the plugins' names."""
        asked = self._found.calls("not_ready", ())
        answers = [(name, self._call_hook("not_ready", name, call)) for name, call in asked]
        return [f"plugin {name}: {reason}" for name, reason in answers if reason is not None]

    async def prepare_metrics(self) -> None:
        """Call ``prepare_metrics`` of all plugins, one after the other."""
        for name, call in self._found.calls("prepare_metrics", ()):
            try:
                await self.slow_calls.measured_steps(name, "prepare_metrics", call())
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                self._failed("prepare_metrics", name, error)

    def collect_metrics(self) -> Iterator[Metric]:
        """Yield the current metrics of all plugins."""
        for name, call in self._found.calls("collect_metrics", ()):
            # A generator of the plugin runs in `collected`, after the call that returns it.
            collect = self.slow_calls.measured(name, "collect_metrics", partial(collected, call))
            yield from self._call_hook("collect_metrics", name, collect) or ()

    def close(self) -> None:
        """Call ``close`` of all plugins. It may block; call it from a thread."""
        for name, call in self._found.calls("close", ()):
            self._call_hook("close", name, call)

    def _poll_resets(self) -> None:
        for name, call in self._reset:
            for key in self._keys:
                if self._call_hook("quota_reset_required", name, call, key) and self.quotas is not None:
                    self.quotas.quotas_changed()

    # --- internals ---

    def _call_hook(self, hook: str, name: str, call: Callable[..., Any], *arguments: object) -> Any:
        try:
            return call(*arguments)
        except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
            self._failed(hook, name, error)
            return None  # noqa: ASYNC104

    def _failed(self, hook: str, name: str, error: BaseException) -> None:
        raise_cancellation(error)
        self.errors += 1
        self.failures[name] = self.failures.get(name, 0) + 1
        left_out = self._repeated.due("plugin raised", name, hook, type(error).__qualname__)
        if left_out is not None:
            text = f"{type(error).__name__}: {error}"
            log.error("plugin raised", plugin=name, hook=hook, error=text, left_out=left_out or None, exc_info=error)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
