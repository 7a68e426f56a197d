"""Calling the hooks: flat lists made once after registration, and the policy for a plugin that raises.

A pluggy call with four implementations costs 1.6 µs; the same four called from a list 0.3 µs. Nobody else in the proxy
calls a plugin. Whatever a plugin raises stops here, is logged with the plugin's name, and never reaches a connection.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.combined_verdicts import CombinedVerdict, check_verdict
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext, compiled_method
from headrace.quota_callbacks.requests import Detail, Interest
from headrace.quota_callbacks.verdicts import Refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pluggy

    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.hookspecs import Metric
    from headrace.quota_callbacks.identities import AuthenticationObserver
    from headrace.quota_callbacks.policies import Quota
    from headrace.quota_callbacks.requests import ClusterMetadata, Connection, Request
    from headrace.quota_callbacks.verdicts import Verdict

log = structlog.get_logger("headrace.plugins")

UNKNOWN_SERVER_ERROR: Final = -1
INT32_MAX: Final = 2**31 - 1
Call = tuple[str, "Callable[..., Any]"]
Calls = tuple[Call, ...]
Interests = dict[str, dict[int, Interest]]


class HookCalls:
    """The hooks of every registered plugin, by what calls them. Make a new one after plugins were registered."""

    def __init__(self, manager: pluggy.PluginManager, *, fail_closed: bool = False) -> None:
        self._manager = manager
        self.fail_closed = fail_closed
        self.errors = 0
        """How often a plugin raised."""
        self.failures: dict[str, int] = {}
        """The same by plugin."""
        self._received: dict[int, Calls] = {}
        self._replied: dict[int, Calls] = {}
        self._completed: dict[int, Calls] = {}
        self._batches: Calls = ()
        self._arrived: dict[int, Calls] = {}
        self._abandoned: dict[int, Calls] = {}
        self._request_times: Calls = ()
        self._budgets: Calls = ()
        self.bodies: frozenset[int] = frozenset()
        """API keys whose requests are collected and decoded because a plugin asked for the body."""
        self.mutations: frozenset[int] = frozenset()
        """API keys whose requests are collected because a plugin asked what they would change."""
        self._opened: Calls = ()
        self._closed: Calls = ()
        self._reset: Calls = ()
        self._tags: Calls = ()
        self._limits: Calls = ()
        self._enforced: frozenset[QuotaKey] = frozenset()
        self._repeated = RepeatedLines()
        self.quotas: ClientQuotas | None = None

    # --- start and reload ---

    def configure(
        self, quotas: ClientQuotas, options: Mapping[str, Mapping[str, Any]], context: PluginContext | None = None
    ) -> None:
        """Hand every plugin its options; raises `StartupError` that names the plugin and what it said.

        ``context`` is what plugins are given besides, for all the same.
        """
        self.quotas = quotas
        shared = context or PluginContext(options={}, quotas=quotas)
        shared = replace(shared, quotas=quotas, request_time_ms=self.request_time_ms)
        for name, call in self._calls("configure", ("context",)):
            try:
                call(replace(shared, options=options.get(name, {})))
            except Exception as error:
                raise StartupError(f"plugin {name!r}: {error or type(error).__name__}") from error

    def flatten(self) -> None:
        """Make the flat lists. After `configure`, since interests may follow from options."""
        interests = self._interests()
        self.bodies = _api_keys_with_detail(Detail.BODY, interests)
        self.mutations = _api_keys_with_detail(Detail.MUTATIONS, interests)
        self._received = self._by_api("request_received", ("request", "now_ms"), interests)
        self._replied = self._by_api("response_received", ("request", "now_ms"), interests)
        self._completed = self._by_api("request_completed", ("request",), interests)
        self._abandoned = self._by_api("request_abandoned", ("request", "now_ms"), interests)
        self._arrived = self._by_api("request_arrived", ("request", "now_ms"), interests)
        self._batches = self._by_api("batches_received", ("request", "now_ms"), interests).get(ApiKey.PRODUCE, ())
        self._budgets = self._calls("mutation_budget", ("request", "now_ms"))
        self._request_times = self._calls("request_time_ms", ("request",))
        self._opened = self._calls("connection_opened", ("connection",))
        self._closed = self._calls("connection_closed", ("connection", "reason"))
        self._reset = self._calls("quota_reset_required", ("key",))
        self._tags = self._calls("quota_metric_tags", ("key", "user", "client_id"))
        self._limits = self._calls("quota_limit", ("key", "tags"))
        self._enforced = frozenset(key for name in self._calls("enforced_quotas", ()) for key in _enforced_by(name))

    def enforced_quotas(self) -> frozenset[QuotaKey]:
        """The quota keys that some callback enforces."""
        return self._enforced

    # --- requests ---

    def request_callbacks(self, api_key: int) -> Calls:
        """Whom to ask about a request of this API."""
        return self._received.get(api_key, ())

    def response_callbacks(self, api_key: int) -> Calls:
        """Whom to ask about a reply of this API."""
        return self._replied.get(api_key, ())

    def completion_callbacks(self, api_key: int) -> Calls:
        """Whom to tell that a request of this API is over."""
        return self._completed.get(api_key, ())

    def request_received(self, calls: Calls, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Ask ``calls``; ``None`` when nobody objects."""
        if self._reset:
            self._poll_resets()
        combined = self._collect_verdicts("request_received", calls, request, now_ms)
        cap = request.fetch_max_bytes
        if cap is not None and not (isinstance(cap, int) and 0 <= cap <= INT32_MAX):
            self._failed("request_received", "a plugin", ValueError(f"fetch_max_bytes is {cap!r}, not an INT32 from 0"))
            request.fetch_max_bytes = None
        return combined

    def response_received(self, calls: Calls, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Ask ``calls`` about the reply."""
        combined = self._collect_verdicts("response_received", calls, request, now_ms)
        if combined is not None and combined.refusal is not None:
            combined.refusal = None
            if not self.fail_closed:
                self._failed("response_received", "a plugin", ValueError("a reply cannot be refused"))
        return combined

    def request_arrived(self, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Ask about a request whose last byte came after its head was judged."""
        return self._collect_verdicts("request_arrived", self._arrived.get(request.api_key, ()), request, now_ms)

    def batches_received(self, request: Request, now_ms: int) -> CombinedVerdict | None:
        """Ask about the batches of a Produce."""
        return self._collect_verdicts("batches_received", self._batches, request, now_ms)

    def request_abandoned(self, request: Request, now_ms: int) -> None:
        """Tell whoever was asked about ``request`` that it will have no reply."""
        for name, call in self._abandoned.get(request.api_key, ()):
            self._call_hook("request_abandoned", name, call, request, now_ms)

    def request_time_ms(self, request: Request) -> float | None:
        """The first estimate of the broker's handler time; one that is no finite number from 0 is the plugin's
        error."""
        for name, call in self._request_times:
            try:
                estimate = call(request)
                if estimate is not None:
                    if not 0 <= estimate < math.inf:
                        raise ValueError(f"request_time_ms answered {estimate!r}; it is a finite number from 0")  # noqa: TRY301
                    return float(estimate)
            except Exception as error:  # noqa: BLE001 -- a stranger's code
                self._failed("request_time_ms", name, error)
        return None

    def mutation_budget(self, request: Request, now_ms: int) -> float | None:
        """The first answer; one that is no number is the plugin's error."""
        for name, call in self._budgets:
            budget: Any = self._call_hook("mutation_budget", name, call, request, now_ms)
            if budget is None:
                continue
            if _is_number(budget):
                found: float = budget
                return found
            self._failed("mutation_budget", name, ValueError(f"mutation_budget answered {budget!r}; it is a number"))
        return None

    def _collect_verdicts(self, hook: str, calls: Calls, request: Request, now_ms: int) -> CombinedVerdict | None:
        combined: CombinedVerdict | None = None
        for name, call in calls:
            try:
                verdict: Verdict | None = call(request, now_ms)
                if verdict is None:
                    continue
                check_verdict(verdict, request)
            except Exception as error:  # noqa: BLE001 -- a stranger's code
                self._failed(hook, name, error)
                if not self.fail_closed:
                    continue
                verdict = Refuse(error_code=UNKNOWN_SERVER_ERROR, message=f"quota plugin {name} failed")
            if combined is None:
                combined = CombinedVerdict()
            combined.add(verdict)
        return combined

    def request_completed(self, request: Request) -> None:
        """Tell whoever listens that ``request`` is over."""
        for name, call in self._completed.get(request.api_key, ()):
            self._call_hook("request_completed", name, call, request)

    def connection_opened(self, connection: Connection) -> None:
        """Tell whoever listens."""
        for name, call in self._opened:
            self._call_hook("connection_opened", name, call, connection)

    def connection_closed(self, connection: Connection, reason: str | None) -> None:
        """Tell whoever listens."""
        for name, call in self._closed:
            self._call_hook("connection_closed", name, call, connection, reason)

    # --- identity ---

    def authentication_started(
        self, connection: Connection, mechanism: str
    ) -> tuple[str, AuthenticationObserver] | None:
        """The first observer, and the name of its plugin; one that raises is passed over."""
        for name, call in self._calls("authentication_started", ("connection", "mechanism")):
            observer: AuthenticationObserver | None = self._call_hook(
                "authentication_started", name, call, connection, mechanism
            )
            if observer is not None:
                return name, observer
        return None

    def observer_failed(self, name: str, error: Exception) -> None:
        """An observer of that plugin raised."""
        self._failed("authentication_started", name, error)

    # --- KIP-257 ---

    def quota_metric_tags(self, key: QuotaKey, user: str, client_id: str) -> Mapping[str, str] | None:
        """The first answer, custom callbacks first; a plugin that raises is passed over."""
        for name, call in self._tags:
            tags: Mapping[str, str] | None = self._call_hook("quota_metric_tags", name, call, key, user, client_id)
            if tags is not None:
                return tags
        return None

    def quota_limit(self, key: QuotaKey, tags: Mapping[str, str]) -> float | None:
        """The first answer; a limit that is not above 0 counts as the plugin's error (it would divide by zero)."""
        for name, call in self._limits:
            limit: Any = self._call_hook("quota_limit", name, call, key, tags)
            if limit is None:
                continue
            if _is_number(limit) and limit > 0:
                found: float | None = limit  # a `Limit`, maybe: more than its value
                return found
            self._failed("quota_limit", name, ValueError(f"quota_limit answered {limit!r}; a limit must be above 0"))
        return None

    def update_quota(self, key: QuotaKey, entity: QuotaEntity, quota: Quota) -> None:
        """Tell every callback; the caller then calls ``ClientQuotas.quotas_changed``."""
        for name, call in self._calls("update_quota", ("key", "entity", "value", "policy")):
            self._call_hook("update_quota", name, call, key, entity, quota.value, quota.policy)

    def remove_quota(self, key: QuotaKey, entity: QuotaEntity) -> None:
        """Tell every callback; the caller then calls ``ClientQuotas.quotas_changed``."""
        for name, call in self._calls("remove_quota", ("key", "entity")):
            self._call_hook("remove_quota", name, call, key, entity)

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> None:
        """Tell every callback, and ask for limits anew if one says that they changed."""
        answers = [
            self._call_hook("update_cluster_metadata", name, call, cluster)
            for name, call in self._calls("update_cluster_metadata", ("cluster",))
        ]
        if any(answers) and self.quotas is not None:
            self.quotas.quotas_changed()

    async def prepare_metrics(self) -> None:
        """Let every plugin make its metrics ready."""
        for name, call in self._calls("prepare_metrics", ()):
            try:
                await call()
            except Exception as error:  # noqa: BLE001 -- a stranger's code
                self._failed("prepare_metrics", name, error)

    def collect_metrics(self) -> Iterator[Metric]:
        """Every plugin's metrics as they are now."""
        for name, call in self._calls("collect_metrics", ()):
            yield from self._call_hook("collect_metrics", name, call) or ()

    def close(self) -> None:
        """Close every plugin. Blocks; call it from a thread."""
        for name, call in self._calls("close", ()):
            self._call_hook("close", name, call)

    def _poll_resets(self) -> None:
        for name, call in self._reset:
            for key in QuotaKey:
                if self._call_hook("quota_reset_required", name, call, key) and self.quotas is not None:
                    self.quotas.quotas_changed()

    # --- plumbing ---

    def _call_hook(self, hook: str, name: str, call: Callable[..., Any], *arguments: object) -> Any:
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 -- a stranger's code
            self._failed(hook, name, error)
            return None

    def _failed(self, hook: str, name: str, error: Exception) -> None:
        self.errors += 1
        self.failures[name] = self.failures.get(name, 0) + 1
        left_out = self._repeated.due((name, hook, type(error)))
        if left_out is not None:
            text = f"{type(error).__name__}: {error}"
            log.error("plugin raised", plugin=name, hook=hook, error=text, left_out=left_out or None, exc_info=error)

    def _calls(self, hook: str, names: tuple[str, ...]) -> Calls:
        """Implementations in pluggy's order (last registered first, ``tryfirst`` and ``trylast`` heeded)."""
        caller = getattr(self._manager.hook, hook)
        calls = []
        for implementation in reversed(caller.get_hookimpls()):
            call = _with_arguments(compiled_method(implementation.function), names)
            calls.append((implementation.plugin_name, call))
        return tuple(calls)

    def _interests(self) -> Interests:
        """For every plugin that names them the APIs it wants; others want all, by the head."""
        wanted: Interests = {}
        for name, call in self._calls("request_interest", ()):
            try:
                wanted[name] = {interest.api_key: interest for interest in call()}
            except Exception as error:
                raise StartupError(f"plugin {name!r}: request_interest: {error}") from error
        return wanted

    def _by_api(self, hook: str, names: tuple[str, ...], interests: Interests) -> dict[int, Calls]:
        by_api: dict[int, list[Call]] = {}
        for name, call in self._calls(hook, names):
            wanted = interests.get(name)
            for api_key in _ALL_KEYS:
                if wanted is None or _subscribes(wanted.get(api_key), hook):
                    by_api.setdefault(api_key, []).append((name, call))
        return {api_key: tuple(calls) for api_key, calls in by_api.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _enforced_by(each: Call) -> frozenset[QuotaKey]:
    name, call = each
    try:
        return frozenset(QuotaKey(key) for key in call())
    except Exception as error:
        raise StartupError(f"plugin {name!r}: enforced_quotas: {type(error).__name__}: {error}") from error


def _subscribes(interest: Interest | None, hook: str) -> bool:
    return interest is not None and (hook == "request_completed" or not interest.end_only)


def _api_keys_with_detail(detail: Detail, interests: Interests) -> frozenset[int]:
    return frozenset(key for wanted in interests.values() for key, each in wanted.items() if each.detail is detail)


_ALL_KEYS: Final = range(256)
"""Room for API keys to come; Kafka 4.4 ends at 94."""


_NAMED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _with_arguments(function: Callable[..., Any], passed: tuple[str, ...]) -> Callable[..., Any]:
    """``function``, to be called with all of ``passed`` in order, whatever part of them it names."""
    parameters = inspect.signature(function).parameters
    if tuple(parameters) == passed:
        return function
    names = [each.name for each in parameters.values() if each.default is each.empty and each.kind in _NAMED]
    picks = [passed.index(name) for name in names]
    return lambda *arguments: function(**{name: arguments[pick] for name, pick in zip(names, picks, strict=True)})
