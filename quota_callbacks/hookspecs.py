"""The specifications of all hooks of Headrace. This module is the reference for plugin authors.

A plugin is a module, an instance, or a class that can be constructed without arguments, with functions marked
`hookimpl`. Headrace finds it by an entry point in the group ``headrace.plugins`` or by ``plugins.load`` in the
configuration. The attribute ``headrace_hooks = 1`` states the version of the hooks that it was written for; a plugin
for another version is refused at start.

Rules for every hook, unless its docstring states an exception:

- *Thread.* A hook runs on the event loop thread and must not block, sleep or do I/O. Use a thread of the plugin's own
  for such work.
- *Errors.* When a hook raises or returns an invalid value, the error is logged with the plugin's name and counted, and
  the result of that plugin is treated as ``None``. Other plugins and connections are not affected.
  ``plugins.on_error = "closed"`` changes this for `request_received` only: the request is refused, or its connection
  is closed where the protocol has no error for it. The default, ``"open"``, forwards the request.
- *Order.* Implementations are called in pluggy's order: the last registered first, subject to ``tryfirst`` and
  ``trylast``. Wrappers are refused at start.
- *Arguments.* An implementation names only the arguments that it needs. ``now_ms`` is in whole milliseconds of a
  monotonic clock.
- *Mutation.* A hook changes only the attributes that its docstring, or `headrace.quota_callbacks.requests`, marks as
  writable.

Source: KIP-257 (``org.apache.kafka.server.quota.ClientQuotaCallback``) for the section with that name. The other hooks
have no counterpart in Kafka.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pluggy

from headrace.quota_callbacks.topic_names import TopicNames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from headrace.quota_callbacks.authorization import Action
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.buckets.quota_scope import QuotaScope
    from headrace.quota_callbacks.definitions import EntityTypeDefinition, QuotaKeyDefinition
    from headrace.quota_callbacks.entities import QuotaEntity
    from headrace.quota_callbacks.identities import AuthenticationObserver, QuotaOperation, UserSource
    from headrace.quota_callbacks.options import Table
    from headrace.quota_callbacks.policies import QuotaPolicy
    from headrace.quota_callbacks.relay_terms import RelayTerms
    from headrace.quota_callbacks.request_sums import RequestSums
    from headrace.quota_callbacks.requests import ClusterMetadata, Connection, Interest, Request
    from headrace.quota_callbacks.sasl import ClientExchange, ServerExchange, UpstreamSasl
    from headrace.quota_callbacks.verdicts import Throttle, Verdict

HOOK_VERSION: Final = 1
"""The version of the hooks. It increases with every change that breaks existing plugins."""

PROJECT: Final = "headrace"

hookspec = pluggy.HookspecMarker(PROJECT)

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function or method as the implementation of a hook."""


def _no_loop(_function: Callable[[], Awaitable[None]]) -> None:
    raise RuntimeError("no event loop runs")


async def _nothing_to_deliver() -> None:
    """Deliver nothing, where there is no proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """The argument of `configure`: the plugin's options, and access to the proxy."""

    options: Mapping[str, Any]
    """The table ``[plugins.options.<name>]`` of the configuration; empty if the file has none."""
    quotas: ClientQuotas
    """The quota buckets, resolved with `quota_metric_tags` and `quota_limit` of all registered plugins."""
    request_time_ms: Callable[[Request], float | None] = lambda _request: None
    """Returns the estimate of the registered cost model (the hook `request_time_ms`), or ``None``."""
    now_ms: Callable[[], int] = lambda: 0
    """Returns the current time of the clock behind ``now_ms``. Call it on the event loop thread only."""
    now_s: Callable[[], float] = lambda: 0.0
    """Returns the current time of the clock behind the attributes of `Request` that end in ``_s``. Call it on the event
    loop thread only."""
    deliver_completed: Callable[[], Awaitable[None]] = _nothing_to_deliver
    """Calls `requests_completed` with all that was completed until now, and waits for that. Call it on the event loop
    only, such as in `run_on_loop`."""
    muted: Callable[[], Mapping[str, int]] = dict
    """Returns the number of currently muted or held connections by quota key (`Reason.quota`). Call it on the event
    loop thread only."""
    topics: TopicNames = field(default_factory=TopicNames)
    """The names of topics by their ids; call ``topics.follow()`` in `configure` to have them learned."""
    dry: bool = False
    """Whether the configuration is only being checked (``headrace check-config``); see `configure`."""
    run_on_loop: Callable[[Callable[[], Awaitable[None]]], None] = _no_loop
    """Runs an async function on the event loop and waits until it returns. Call it from the plugin's own threads only.
    Raises `RuntimeError` before the event loop has started and after it has stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One series on the Prometheus page. The prefix ``headrace_`` is added to its name."""

    name: str
    help: str
    value: float
    total: bool = False
    """Whether it is a counter. The suffix ``_total`` is added to its name."""
    labels: Mapping[str, str] = field(default_factory=dict)


# --- life cycle -------------------------------------------------------------------------------------------------------


@hookspec
def configure(context: PluginContext) -> None:
    """Read the options and keep what the plugin needs of ``context``.

    Called once per plugin, before any listener is open and before every other hook. May block, for example to read
    files. An exception stops the start with an error that names the plugin. Raise `ValueError` with a full sentence for
    an invalid option; `headrace.quota_callbacks.options.read_options` does so for all invalid options at once.

    If ``context.dry`` is true, check the options and have no side effects: write no file, create no folder, start no
    thread and open no socket. Files that the options name may be read. Of the other hooks, only `changed_options`,
    `options_table`, `quota_definitions`, `enforced_quotas`, `scoped_callback`, `request_interest`,
    `request_sample_ratio`, `authorizes_requests`, `sasl_server_exchange`, `sasl_client_exchange` and `close` are called
    then.
    """


@hookspec
def options_table() -> type[Table] | None:
    """Return the class of the plugin's options, as `headrace.quota_callbacks.options.read_options` takes it.

    Called for ``headrace config-schema`` alone, which describes the table ``[plugins.options.<name>]`` by it;
    `configure` may not have been called. Without this hook, or after an exception, the table may have any options.
    """


@hookspec
def changed_options(options: Mapping[str, Any]) -> Callable[[], None] | None:
    """Check options that a reload has changed, and return a function that puts them into force; ``None`` if one of the
    changes needs a restart.

    Called in a thread at each reload whose table ``[plugins.options.<name>]``, the argument, differs from the one in
    force. May block for some seconds: after 30 s the reload changes nothing, and the thread is abandoned. Must have no
    effect itself, since other parts of the new configuration may be invalid. Raise `ValueError` as in `configure`; the
    reload then changes nothing. The function that was returned is called on the event loop if the whole
    configuration is valid. It must not block or raise; if it raises, the old options count as those in force, and the
    next reload calls this hook again. The options of a plugin without this hook are read at start only.
    """


@hookspec
def not_ready() -> str | None:
    """Return why the proxy should get no new connections now; ``None`` if there is no reason.

    Called each time that ``GET /readyz`` of the admin server is answered while clients are served. The page shows the
    reason to anyone who can reach it. Must not block or change anything. An exception counts as no reason.
    """


@hookspec
async def prepare_metrics() -> None:
    """Prepare metrics that take too long to compute in `collect_metrics`.

    Awaited each time the Prometheus page is read, before `collect_metrics`; for one page at a time. Only that page
    waits for it. May wait for a thread, and must reach a checkpoint at least every few milliseconds.
    """


@hookspec
def collect_metrics() -> Iterable[Metric]:
    """Return the current values of the plugin's metrics for the Prometheus page.

    Called each time the page is read, after `prepare_metrics`. Must not block. The number of series must be bounded.
    Without a result, or after an exception, the page lacks this plugin's metrics.
    """


@hookspec
def close() -> None:
    """Release the plugin's resources (``ClientQuotaCallback.close``).

    Called once, in a thread, after the last connection was closed. May block for a bounded time, for example to flush
    an exporter. An exception is logged, and the stop continues.
    """


# --- quota keys and entity types --------------------------------------------------------------------------------------


@hookspec
def quota_definitions() -> Iterable[QuotaKeyDefinition | EntityTypeDefinition]:
    """Return the quota keys and entity types of this plugin, which are then valid wherever the built-in ones are.

    Called once, after `configure`. The configuration file, DescribeClientQuotas and AlterClientQuotas accept them, and
    `update_quota` passes the quotas to the plugins. A key that users, client ids and pairs of both can have is resolved
    by Kafka's precedence, as a built-in key is. The plugin enforces its keys (`enforced_quotas`) by itself;
    `headrace.quota_callbacks.buckets` has the arithmetic. It also enforces all keys of its entity types; but those of
    types with ``metric_tags`` are enforced by the callbacks of the keys (`scoped_callback`). The start fails for an
    invalid definition, for a name that is built in or that another plugin defines, and for an exception.
    """


@hookspec
def scoped_callback(scope: QuotaScope) -> object | None:
    """Return a further callback, which charges the buckets of ``scope``; ``None`` if this plugin has none for it.

    Called once for each entity type with ``metric_tags``, after `quota_definitions`, with the buckets of that type. A
    callback that enforces a key of ``scope.keys`` for users and client ids implements it to enforce the key for other
    entity types, too, as the built-in ones do. The returned object is called like a plugin, after the plugins, for the
    hooks `request_interest`, `mutation_budget` and those from `request_received` to `request_denied`. In the log it has
    the name of this plugin with that of the entity type. The hooks must be marked with `hookimpl`. An exception, or an
    object without such a hook, stops the start.
    """


# --- KIP-257 ----------------------------------------------------------------------------------------------------------
#
# ``key`` is a `QuotaKey`, or the name of a key of a plugin (`quota_definitions`).


@hookspec(firstresult=True)
def quota_metric_tags(key: str, user: str, client_id: str) -> Mapping[str, str] | None:
    """Return the metric tags of the bucket that requests of ``user`` and ``client_id`` are charged to.

    Corresponds to ``quotaMetricTags``. Called when a connection first needs a bucket of ``key`` and after quotas
    changed, not for every request. Must not block or change anything. Equal tags share one bucket. The first result
    that is not ``None`` is used, custom callbacks before Kafka's default callback. If all return ``None``, ``key`` does
    not apply and nothing is recorded. A plugin that raises is skipped.
    """


@hookspec(firstresult=True)
def quota_limit(key: str, tags: Mapping[str, str]) -> float | None:
    """Return the limit of the bucket with these ``tags``, in the unit of ``key``; ``None`` is unlimited.

    Corresponds to ``quotaLimit``. Called when a bucket is created and after quotas changed. Must not block or change
    anything. The first result that is not ``None`` is used. A limit must be finite and above 0; another value is logged
    as an error of the plugin, and such a plugin is skipped, like one that raises. A `Limit` also states the quota's
    entity and policy; a plain number is enforced with Kafka's arithmetic.
    """


@hookspec
def update_quota(key: str, entity: QuotaEntity, value: float, policy: QuotaPolicy) -> bool:
    """Keep a quota that was set; return whether any limit of this plugin changed (``updateQuota``).

    Called for every configured quota before the first listener opens, then for every quota that a reload of the
    configuration, AlterClientQuotas or the quota store adds or changes. Must not block. All limits are resolved again
    afterwards. ``policy`` states how the quota is enforced; Kafka has no counterpart. If it raises, the quota counts as
    set and the plugin does not know of it.
    """


@hookspec
def remove_quota(key: str, entity: QuotaEntity) -> bool:
    """Discard a quota that was removed; return whether any limit of this plugin changed (``removeQuota``).

    Called for every quota that a reload of the configuration, AlterClientQuotas or the quota store removes. Must not
    block. All limits are resolved again afterwards. If it raises, the quota counts as removed and the plugin still
    applies it.
    """


@hookspec
def quota_reset_required(key: str) -> bool:
    """Return whether limits of ``key`` changed by other means than `update_quota` (``quotaResetRequired``).

    Called for every key with every request, as in Kafka, if a plugin implements it; return a flag and nothing more
    expensive. After ``True`` from any plugin, limits are resolved again. An exception counts as ``False``.
    """


@hookspec
def update_cluster_metadata(cluster: ClusterMetadata) -> bool:
    """Process a change of the cluster's brokers; return whether any limit of this plugin changed.

    Corresponds to ``updateClusterMetadata``. Called after the proxy has learned that brokers were added, removed or
    moved, and has adapted to it. Must not block. After ``True`` from any plugin, limits are resolved again.
    """


# --- requests ---------------------------------------------------------------------------------------------------------


@hookspec
def enforced_quotas() -> frozenset[str]:
    """Return the quota keys that this plugin enforces.

    Called once, at start. If a configured quota has a key that no plugin enforces, the start fails, so that no quota is
    silently ignored. An exception stops the start.
    """


@hookspec
def request_interest() -> Iterable[Interest]:
    """Return the APIs that the request hooks of this plugin are called for, and the detail that they need.

    Called once, after `configure`. A plugin without this hook is called for every API with `Detail.HEAD`. Requests of
    an API that no plugin names cause no calls. An exception stops the start.
    """


@hookspec
def request_received(request: Request, now_ms: int) -> Verdict | None:
    """Return a verdict on a request of which nothing has been forwarded yet; ``None`` forwards it.

    Called once per request, in the order of arrival on its connection, when the head was read or, for `Detail.BODY`
    and `Detail.MUTATIONS`, the whole request. Not called before the broker has accepted the client's authentication,
    since its name is unverified until then; nor for exempt users and client ids; nor while enforcement is switched off.

    May write ``request.fetch_max_bytes``, ``request.alone``, ``request.read_batches``, ``request.read_fetched``,
    ``request.read_refused``, ``request.notes`` and ``request.connection.cache``. If ``request.arrived`` is false, the
    rest of the request may never arrive: charge its size in `request_arrived`.

    Called again for a request that it has held with ``ask_again``, when the hold is over.

    Of several throttles the longest is applied. A refusal takes precedence over forwarding: the request, or the
    refused topics, are not forwarded. ``plugins.on_error`` decides what happens when it raises.
    """


@hookspec
def request_arrived(request: Request, now_ms: int) -> Throttle | None:
    """Return a verdict on a request whose last byte arrived after `request_received` was called.

    Called at most once per request, only if ``request.arrived`` was false in `request_received`. The bytes have been
    forwarded, so a throttle mutes the client's channel, and the request can be neither held nor refused. If the client
    closes the connection before the request is complete, `request_abandoned` is called instead. Kafka also charges a
    request after reading all of it (``KafkaApis`` calls ``ClientQuotaManager``).
    """


@hookspec
def batches_received(request: Request, now_ms: int) -> Throttle | None:
    """Return a verdict on a Produce request whose record batches are all in ``request.batches``.

    Called once per Produce request for which `request_received` set ``request.read_batches``, before its reply. The
    batches have been forwarded, so a throttle mutes the client's channel, and the request can be neither held nor
    refused. The plugin's `request_interest` must include Produce. May write ``request.new_producer_ids`` and
    ``request.notes``.
    """


@hookspec
def records_fetched(request: Request, now_ms: int) -> Throttle | None:
    """Return a verdict on a Fetch or ShareFetch, given the bytes that it has fetched of each topic (``fetched_bytes``).

    Called once per request for which `request_received` set ``request.read_fetched``, when the last byte of its reply
    was read. A throttle mutes the client's channel and is written into the reply, but not into one to a Fetch of more
    than 2 MiB, whose beginning has been sent already. The request can be neither held nor refused.
    The plugin's `request_interest` must include the API. May write ``request.notes``.
    """


@hookspec
def request_abandoned(request: Request, now_ms: int) -> Throttle | None:
    """Give back what `request_received` charged or reserved for a request that gets no reply from the broker.

    Called instead of `response_received`, at most once per request: when the connection was closed, the request was
    refused as a whole, or enforcement was switched off meanwhile. ``request.forwarded_s`` is ``None`` if nothing
    reached the broker; ``request.arrived`` is false if the client did not send all of the request, and then
    ``request.missing_bytes`` is how much of it did not come. Not called for a completely forwarded Produce request with
    acks=0, which has no reply. A throttle mutes the client's channel if the request was refused, since the client gets
    an answer then; otherwise it is ignored. May write ``request.notes``, ``request.charged_thread_ns`` and
    ``request.connection.thread_ns``.
    """


@hookspec
def request_denied(request: Request, now_ms: int) -> Throttle | None:
    """Charge the proxy's own work for a request that `authorize_requests` denied.

    Called once for each request that was denied as a whole, instead of `request_received` and all other hooks except
    `request_completed`: nothing was charged for it, and nothing is forwarded. A throttle mutes the client's channel. A
    refusal is an error. May write ``request.charged_thread_ns``, ``request.connection.thread_ns`` and
    ``request.connection.measure_thread_time``.
    """


@hookspec
def mutation_budget(request: Request, now_ms: int) -> float | None:
    """Return the number of controller mutations that the sender of ``request`` may make now.

    Called for requests of APIs with `Detail.MUTATIONS`, before the proxy asks the broker what the request would change;
    possibly more than once per request. Must charge nothing. ``None`` means that the sender has no limit, and the
    broker is not asked. A number below 0 is the amount by which the sender exceeds its quota, so that all topics will
    be refused. ``math.inf`` means that no topic of the request will be refused. The lowest result is used. A plugin
    that raises, or returns something other than a number, is skipped.
    """


@hookspec(firstresult=True)
def request_time_ms(request: Request) -> float | None:
    """Return an estimate of the broker's handler time for ``request``, in milliseconds of one thread.

    This is the cost model of ``request_percentage``. Called for each request that this quota applies to, when its reply
    arrives, and for a Produce request with acks=0 when it is received. Must not block or change anything. The first
    result that is not ``None`` is used, custom models before the built-in one
    (`headrace.quota_callbacks.builtin.request_costs`). A plugin that raises, or returns a negative or non-finite
    number, is skipped.
    """


@hookspec(firstresult=True)
def request_costs(api_key: int) -> tuple[float, float] | None:
    """Return what `request_time_ms` of the same plugin estimates for an API: the milliseconds of each request, and
    those of each KiB of request and reply, together at most the time that was observed. ``None`` if it is not linear.

    The native data plane then computes the estimates without calling `request_time_ms` for each request. Called for
    each API at the start. Must not change anything. A plugin that implements `request_time_ms` without this hook is
    called for each request, so that no connection to which ``request_percentage`` applies is relayed natively. If it
    raises, the costs of the next plugin are used.
    """


@hookspec
def relay_terms(request: Request, now_ms: int) -> RelayTerms | None:
    """Return on which terms the native data plane may relay the connection of ``request`` without calling this plugin
    for each request; ``None`` if it must be called.

    Called between two requests, before a connection is relayed natively, and again after quotas changed. ``request`` is
    the connection's last one, and stands for those that follow: they have its user and client id. Must not block, and
    must not charge anything. Plugins that do not implement this hook get each request of the APIs that they subscribe
    to (`request_interest`); requests of these APIs are then not relayed natively. A plugin that raises is taken to have
    returned ``None``.
    """


@hookspec
def response_received(request: Request, now_ms: int) -> Verdict | None:
    """Return a verdict on a request whose reply's head was read, before any byte of the reply is sent.

    Called once per reply, for the requests that `request_received` is called for. The reply is sent at once (KIP-219):
    a throttle mutes the client's channel, and the longest one is written into the reply's ``throttle_time_ms``. A
    `Refuse` is logged as an error of the plugin and ignored. May write ``request.charged_thread_ns``,
    ``request.notes``, ``request.connection.cache`` and ``request.connection.thread_ns``.
    """


# --- identity ---------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def authentication_started(connection: Connection, mechanism: str) -> AuthenticationObserver | None:
    """Return an observer for one authentication of ``connection``; ``None`` if this plugin does not know ``mechanism``.

    Called at the client's SaslHandshake, and again when it re-authenticates (KIP-368), before anything is forwarded;
    the broker may still refuse. ``mechanism`` is written as the client sent it. Must not block or change anything.
    The observer's `principal`, or the owner of its `token_id`, rewritten by `rewrite_user`, becomes
    ``connection.user``. The first result that is not ``None`` is used, custom plugins before the built-in one. Without
    an observer, or when the hook or the observer raises, ``connection.user`` stays unchanged.
    """


@hookspec(firstresult=True)
def rewrite_user(connection: Connection, user: str, source: UserSource) -> str | None:
    """Return the name that ``user`` has for quotas, the log and the login at brokers; ``None`` leaves it as it is.

    Called once each time that a client has proved who it is, before ``connection.user`` is set: by its certificate,
    after the mapping rules; by SASL, and again when it re-authenticates. ``source`` states which, and
    ``connection.mechanism`` the mechanism. For a certificate, it is called before `connection_opened`. Not called for
    clients that prove nothing, which are ANONYMOUS. Must not block or change anything, and must return the same name
    each time: a client whose name is another one after it has re-authenticated to the proxy is refused.

    The first result that is not ``None`` is used, custom plugins before built-in ones; it has at most
    `MAX_PRINCIPAL_CHARACTERS` characters. An empty name refuses the client. So does a plugin that raises or returns
    anything else, since the name without its rewriting may have other quotas: the connection is closed.
    """


@hookspec(firstresult=True)
def sasl_server_exchange(connection: Connection, mechanism: str) -> ServerExchange | None:
    """Return the exchange that authenticates the client in place of the broker; ``None`` for an unknown mechanism.

    Called at the SaslHandshake of a client of a listener that terminates SASL, and again when the client
    re-authenticates (KIP-368); only for mechanisms that the listener enables. ``mechanism`` is written as the client
    sent it. Must not block or change anything: what takes longer must be done in the exchange's `respond`, which is
    called in a thread if its ``blocks`` is true. The exchange is for this authentication alone, and the client is
    accepted as the principal of its last step; `authentication_started` is not called then. It is also called once for
    each mechanism at the start and by ``headrace check-config`` (where the plugin was configured with ``dry``), with a
    `Connection` that does not belong to a client; if no plugin then returns an exchange, the configuration is invalid.
    A plugin that lacks a setting raises a `ValueError` that states what to set. The first result that is not
    ``None`` is used, custom plugins before the built-in ones; a plugin that raises is skipped. Without an exchange
    the client gets the error UNSUPPORTED_SASL_MECHANISM. An exception of the exchange other than `SaslRefused` is
    logged and counted as an error of the plugin, and the authentication fails.
    """


@hookspec(firstresult=True)
def sasl_client_exchange(connection: Connection | None, settings: UpstreamSasl) -> ClientExchange | None:
    """Return the exchange that authenticates the proxy to a broker; ``None`` for an unknown mechanism.

    Called for each new connection to a broker that the proxy authenticates, and again when the broker limits the
    session (KIP-368). ``connection`` is the client for which the proxy connects, or ``None`` for a connection of the
    proxy's own; ``settings`` are those of the upstream listener, or of the client's user if users are mapped. Must not
    block or change anything; the exchange's `respond` is asynchronous, and may wait. The first result that is not
    ``None`` is used, custom plugins before the built-in ones; a plugin that raises is skipped. Without an exchange the
    connection to the broker fails. It is also called at the start and by ``headrace check-config``, for each login of
    the configuration; ``None`` from all plugins, or a `ValueError` for settings that cannot be used, is an error of the
    configuration then. An exception of the exchange other than `SaslRefused` is logged and counted as an
    error of the plugin, and the connection to the broker fails, too.
    """


@hookspec(firstresult=True)
def authorize_quotas(connection: Connection, operation: QuotaOperation) -> bool | None:
    """Return whether the client may describe or change quotas; ``None`` if this plugin does not decide.

    Called for each DescribeClientQuotas and AlterClientQuotas of a client that the broker has accepted. Must not block
    or change anything. The first result that is not ``None`` is used. If all return ``None``, the rule of
    ``client_quotas.administrators`` and ``client_quotas.alter`` applies. A plugin that raises, or returns something
    other than a boolean, denies the request.
    """


@hookspec
def authorizes_requests() -> bool:
    """Return whether this plugin's `authorize_requests` is to be called.

    Called once after `configure`, so that a plugin whose options have no rules costs nothing. A plugin that implements
    `authorize_requests` alone is always called. One that raises is a start-up error.
    """


@hookspec
def authorize_requests(connection: Connection, actions: Sequence[Action]) -> Sequence[bool] | None:
    """Return for each action whether the client may do it; ``None`` if this plugin does not decide about this client.

    Called for each request of a client that the broker has accepted, before quotas are charged. It is not called for
    ApiVersions, SaslHandshake and SaslAuthenticate, nor for requests that name nothing that needs a permission. It is
    also called for replies that list resources of which the client may see only some. If there are many actions, each
    call has some of them. The result has as many elements as ``actions``. Must not block or change anything. All
    plugins are asked, in turn, and an action is allowed if at least one plugin allows it and none denies it. An action
    about which no plugin decides is denied. A plugin that raises, or returns anything else, denies all actions. If no
    plugin is to be called (`authorizes_requests`), the proxy does not read requests for authorization.
    """


@hookspec(firstresult=True)
def explain_denial(connection: Connection, action: Action) -> str | None:
    """Return the rule because of which the action is denied, in one line for operators; ``None`` if this plugin has
    not denied it.

    Called for an action that `authorize_requests` has denied, at most a few times for each request. Must not block or
    change anything. The first result that is not ``None`` is shown by ``headrace why`` and in the log, and must not
    contain a secret. A plugin that raises is skipped.
    """


# --- observation: return values are ignored, but for `request_sample_ratio` -------------------------------------------


@hookspec
def connection_opened(connection: Connection) -> None:
    """Observe that a client has connected. Called once per connection, before anything is read from it."""


@hookspec
def connection_closed(connection: Connection, reason: str | None) -> None:
    """Observe that a client's connection was closed.

    Called once per connection. ``reason`` is ``None`` if the client closed it in an orderly way.
    """


@hookspec
def request_completed(request: Request) -> None:
    """Observe a request that is finished: the last byte of its reply was sent, or there will be no reply.

    Called for every request of the APIs in `request_interest`, whether enforcement is on or off. A plugin that has
    `requests_completed` or `request_sample_ratio` is called only for requests that are not `Request.is_ordinary`, for
    those in its sample, and for those of an API with `Interest.each_completed`. As long as a plugin has to be called
    for each request of an API, the native data plane does not relay that API. ``request.error`` is set if there was no
    reply. ``request`` does not change any more and may be kept.
    """


@hookspec
def requests_completed(batch: Sequence[RequestSums]) -> None:
    """Observe the requests that were completed since the last call and are `Request.is_ordinary`, as sums by
    connection, user, client id, API, and second of the wall clock.

    Called at least once a second if there were any, before `connection_closed` of their connection, before the
    Prometheus page is made (`prepare_metrics`), at `PluginContext.deliver_completed`, and before `close`. Each request
    of the APIs in `request_interest`, with ``end_only`` or without, is either in one batch, or reported by
    `request_completed`: if it is not ordinary, or its API has `Interest.each_completed`. A request in the sample of
    `request_sample_ratio` is in both. Seconds are not in order. Must not change the batch, which may be kept.
    """


@hookspec
def request_sample_ratio() -> float | None:
    """Return the part of the ordinary requests that `request_completed` of this plugin is called for, from 0 to 1;
    ``None`` for all of them, as without this hook.

    Called once, after `configure`. The requests are chosen at random, each independently of others. Those that are not
    `Request.is_ordinary` are always reported, and those of an API with `Interest.each_completed`. A request of the
    sample that was relayed natively is reported up to a second after it was completed (``request.completed_s``). An
    exception, or another number, stops the start.
    """
