"""The hooks of Headrace, all of them, and nothing else.

A plugin is a module, an instance, or a class (made without arguments) with functions marked `hookimpl`. It is found
by an entry point in the group ``headrace.plugins`` or by ``plugins.load`` in the configuration, and it says which
version of this surface it was made for: an attribute ``headrace_hooks = 1``. A plugin made for another version is
refused with a sentence.

For every hook:

- It runs on the event loop, between two system calls. It must not block, sleep or do I/O: hand work to a thread of
  your own.
- When it raises, or answers what cannot be, the error is logged with the plugin's name and counted, and the hook
  counts as
  not called for that plugin. Where that was `request_received`, ``plugins.on_error`` decides: ``open`` (default) goes
  on as
  if it had said nothing; ``closed`` refuses the request (or closes the connection where the protocol has no error for
  it). Other plugins and other connections are not disturbed.
- Times are whole milliseconds of a monotonic clock, passed as ``now_ms``.
- Arguments that an implementation does not name are not passed, as pluggy has it. The request-level hooks take no
  wrappers.

Source: KIP-257 (``org.apache.kafka.server.quota.ClientQuotaCallback``) for the first group; the rest is ours.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import pluggy

from headrace.quota_callbacks.topic_names import TopicNames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping

    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
    from headrace.quota_callbacks.identities import AuthenticationObserver
    from headrace.quota_callbacks.policies import QuotaPolicy
    from headrace.quota_callbacks.requests import ClusterMetadata, Connection, Interest, Request
    from headrace.quota_callbacks.verdicts import Throttle, Verdict

HOOK_VERSION: Final = 1
"""The version of this surface. It changes when a plugin that worked would no longer."""

PROJECT: Final = "headrace"

hookspec = pluggy.HookspecMarker(PROJECT)

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
_mark = pluggy.HookimplMarker(PROJECT)


@overload
def hookimpl(function: _Hook) -> _Hook: ...
@overload
def hookimpl(**options: Any) -> Callable[[_Hook], _Hook]: ...
def hookimpl(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Mark a function or method as the implementation of a hook; takes what pluggy's ``HookimplMarker`` takes, such as
    ``tryfirst`` and ``trylast``.

    The methods of classes that mypyc has compiled can be marked, too: pluggy knows Python's functions only, so one is
    put in front of each.
    """
    if function is None:
        return lambda marked: hookimpl(marked, **options)
    if isinstance(function, MethodDescriptorType):
        function = _in_front_of(function)
    return _mark(function, **options)


def _in_front_of(compiled: MethodDescriptorType) -> Callable[..., Any]:
    """A function with the arguments of ``compiled``, which its attribute ``compiled`` is."""
    names = ", ".join(inspect.signature(compiled).parameters)
    made: dict[str, Any] = {}
    exec(f"def {compiled.__name__}({names}): return compiled({names})", {"compiled": compiled}, made)  # noqa: S102
    function: Callable[..., Any] = made[compiled.__name__]
    function.compiled = compiled  # type: ignore[attr-defined]
    return function


def compiled_method(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """What is behind a bound method that `hookimpl` has made; any other ``implementation`` is returned as it is."""
    compiled: MethodDescriptorType | None = getattr(implementation, "compiled", None)
    return implementation if compiled is None else compiled.__get__(getattr(implementation, "__self__", None))


def _no_loop(_function: Callable[[], Awaitable[None]]) -> None:
    raise RuntimeError("no event loop runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """What a plugin is given when it is configured."""

    options: Mapping[str, Any]
    """The table ``[plugins.options.<name>]`` of the configuration; empty when there is none."""
    quotas: ClientQuotas
    """The buckets, resolved by the ``quota_metric_tags`` and ``quota_limit`` of whoever is registered."""
    request_time_ms: Callable[[Request], float | None] = lambda _request: None
    """Asks the cost model (`request_time_ms`) of whoever is registered."""
    now_ms: Callable[[], int] = lambda: 0
    """The clock of every ``now_ms``, to be asked on the loop."""
    muted: Callable[[], Mapping[str, int]] = dict
    """Connections that are muted or held now, by the quota that it is for, as verdicts name it; to be asked on the
    loop."""
    worker: int | None = None
    """The number of this worker, from 0, where several share the work (``workers``): each has plugins of its own."""
    topics: TopicNames = field(default_factory=TopicNames)
    """The names of topics by their ids; call ``topics.follow()`` to have them learned."""
    dry: bool = False
    """Whether the configuration is only checked (``headrace check-config``) and nothing will run: see `configure`."""
    run_on_loop: Callable[[Callable[[], Awaitable[None]]], None] = _no_loop
    """From a thread of the plugin's: run an async function on the loop, and wait for its end. `RuntimeError` when the
    loop does not run (yet, or any more)."""


class AcrossWorkers(StrEnum):
    """How the values that several workers tell of one series become one."""

    SUM = "sum"
    """What each counts by itself."""
    MAX = "max"
    """What all see alike, or the worst of them; one that has not looked lately sees less."""
    MIN = "min"
    """Likewise, where less is worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One series on the Prometheus page; ``headrace_`` is put before its name."""

    name: str
    help: str
    value: float
    total: bool = False
    """Whether it only ever grows (a counter; ``_total`` is put behind its name)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    across_workers: AcrossWorkers = AcrossWorkers.SUM
    """The same for all series of a name."""


# --- life cycle -------------------------------------------------------------------------------------------------------


@hookspec
def configure(context: PluginContext) -> None:
    """Take the options and the buckets.

    Called once for each plugin, before any listener is open. May block (files are read here). Raising here stops the
    start with the plugin's name and the error; options that make no sense are told by raising ``ValueError`` with a
    sentence (`headrace.quota_callbacks.options.read_options` makes one for every option that is wrong).

    Where ``context.dry`` is set, check the options and change nothing: write no file, make no folder, start no thread
    and open no socket. Files that the options name may be read. Of the other hooks only those that describe the plugin
    (`enforced_quotas`, `request_interest`) and `close` follow.
    """


@hookspec
async def prepare_metrics() -> None:
    """The Prometheus page is about to be read: make ready what takes too long for `collect_metrics`.

    Awaited each time, one page at a time; the page waits for it, and nobody else. May hand work to a thread, and gives
    way to the loop at least every few milliseconds.
    """


@hookspec
def collect_metrics() -> Iterable[Metric]:
    """Name your metrics as they are now, for the Prometheus page.

    Called each time the page is read, after `prepare_metrics`. Keep the number of series bounded.
    """


@hookspec
def close() -> None:
    """Release what you hold (``ClientQuotaCallback.close``).

    Called once, after the last connection is closed. May block for a bounded time: exporters flush here. Runs in a
    thread. Errors are logged.
    """


# --- KIP-257 ----------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def quota_metric_tags(key: QuotaKey, user: str, client_id: str) -> Mapping[str, str] | None:
    """Name the bucket that a request of ``user`` and ``client_id`` is charged to (``quotaMetricTags``).

    Called when a connection first needs a bucket of ``key`` and after quotas changed, not for every request. The
    first answer that is not ``None`` wins, custom callbacks before Kafka's own; ``None`` from all means that ``key``
    has no quota and nothing is recorded. Equal tags share one bucket. Changes nothing.
    """


@hookspec(firstresult=True)
def quota_limit(key: QuotaKey, tags: Mapping[str, str]) -> float | None:
    """Say the limit of the bucket named by ``tags`` (``quotaLimit``), in the key's unit; ``None`` is unlimited.

    Called when a bucket is made and after quotas changed. Must be above 0; another value is the plugin's error. The
    first answer that is not ``None`` wins. A `Limit` also says whose quota it is and how it is enforced; a plain
    number is enforced Kafka's way.
    """


@hookspec
def update_quota(key: QuotaKey, entity: QuotaEntity, value: float, policy: QuotaPolicy) -> bool:
    """A quota was set, by the configuration or by AlterClientQuotas (``updateQuota``).

    Called for each before the first listener opens, then on every change; limits are asked for anew afterwards. Return
    whether any limit of yours changed. ``policy`` is how it is to be enforced, which Kafka does not know.
    """


@hookspec
def remove_quota(key: QuotaKey, entity: QuotaEntity) -> bool:
    """A quota was removed (``removeQuota``). As `update_quota`."""


@hookspec
def quota_reset_required(key: QuotaKey) -> bool:
    """Say whether limits have changed by other means than `update_quota` (``quotaResetRequired``).

    Polled for every request, as Kafka does, when a plugin implements it: keep it to a flag. One ``True`` makes limits
    be asked for anew.
    """


@hookspec
def update_cluster_metadata(cluster: ClusterMetadata) -> bool:
    """The proxy learned that brokers came, left or moved (``updateClusterMetadata``).

    Called after the change took effect. Return whether any limit of yours changed by it.
    """


# --- requests ---------------------------------------------------------------------------------------------------------


@hookspec
def enforced_quotas() -> frozenset[QuotaKey]:
    """Name the quota keys that this callback enforces. Asked once.

    A quota that is configured and that no callback enforces is refused at start, so that none is silently ignored.
    """


@hookspec
def request_interest() -> Iterable[Interest]:
    """Name the APIs whose requests and replies you want, and in how much detail. Asked once, after `configure`.

    A plugin without it gets every API by its head. Requests of an API that nobody wants make no calls at all.
    """


@hookspec
def request_received(request: Request, now_ms: int) -> Verdict | None:
    """A request's head (or body, as asked) was read and nothing of it has been forwarded yet.

    Called once a request, in the order of arrival on its connection; not before the broker has accepted the client
    (until then its name is a mere claim, in which nothing may be charged), nor while enforcement is switched off or
    for exempt users. The rest of a large request may never come: charge what its size says in `request_arrived`, when
    ``request.arrived`` is false here. May set
    ``request.fetch_max_bytes`` and use ``request.connection.cache``. The longest throttle of all wins; a refusal wins
    over a throttle, and the request is not forwarded.
    """


@hookspec
def request_arrived(request: Request, now_ms: int) -> Throttle | None:
    """The last byte of a request was read that was not there as a whole when `request_received` was called.

    Its bytes have been forwarded by then: a throttle mutes the client's channel. Not called where the client closed
    before the request was complete; `request_abandoned` is called then. Kafka, too, charges a request once it has read
    all of it (``ClientQuotaManager`` is asked by ``KafkaApis``).
    """


@hookspec
def batches_received(request: Request, now_ms: int) -> Throttle | None:
    """All record batches of a Produce were seen on their way to the broker; they stand in ``request.batches``.

    Called where `request_received` has set ``request.read_batches``, once a request, before its reply. The batches
    have been forwarded by then: a throttle mutes the client's channel. Implemented by plugins that want Produce.
    """


@hookspec
def request_abandoned(request: Request, now_ms: int) -> None:
    """A request that `request_received` was asked about will have no reply of the broker's that could be judged.

    Its connection was closed, it was refused as a whole, or enforcement was switched off in between.
    ``request.forwarded_s`` is ``None`` when it never reached the broker, and ``request.arrived`` is false when the
    client did not send all of it. Give back what was taken for it. Not called for a Produce without acks, which has no
    reply anyway, once all of it was forwarded.
    """


@hookspec(firstresult=True)
def mutation_budget(request: Request, now_ms: int) -> float | None:
    """Say how many controller mutations the sender of ``request`` may still make now.

    Called for a request whose mutations a callback asked for (`Detail.MUTATIONS`), before the proxy asks the broker
    what the request would change. ``None``: this sender is not limited, and the broker is not asked. A number below 0
    is what the sender has overdrawn; ``math.inf`` means that nothing of this request can be refused. The first answer
    that is not ``None`` wins, custom callbacks before the built-in one. Must charge nothing, since it may be called
    more than once for a request.
    """


@hookspec(firstresult=True)
def request_time_ms(request: Request) -> float | None:
    """Estimate the broker's handler time for ``request``, whose reply has come, in milliseconds of one thread.

    The cost model of ``request_percentage``: called for each reply of a sender that this quota holds. ``None``: let
    the next one say. The first answer wins, custom models before the built-in one
    (`headrace.quota_callbacks.builtin.request_costs`).
    """


@hookspec
def response_received(request: Request, now_ms: int) -> Verdict | None:
    """The head of the reply to ``request`` was read and nothing of it has been sent to the client yet.

    Called once for each reply, under the conditions of `request_received`. The bytes go out at once whatever the
    verdict (KIP-219): a throttle mutes the client's channel and is put into the reply's ``throttle_time_ms``; a
    refusal here is the plugin's error.
    """


# --- identity ---------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def authentication_started(connection: Connection, mechanism: str) -> AuthenticationObserver | None:
    """A client begins to authenticate, by ``mechanism``: at its SaslHandshake, and again when it re-authenticates
    (KIP-368).

    Nothing has been forwarded yet, and the broker may still refuse. ``mechanism`` is as the client spells it. Answer an
    observer that is shown what passes; its `principal` becomes ``connection.user``. ``None``: not my mechanism. The
    first answer that is not ``None`` wins, custom plugins before the built-in one. Without an observer, or when one
    raises, the user stays who it was. Changes nothing.
    """


# --- observation: what they return is ignored -------------------------------------------------------------------------


@hookspec
def connection_opened(connection: Connection) -> None:
    """A client connected; nothing was read yet."""


@hookspec
def connection_closed(connection: Connection, reason: str | None) -> None:
    """A client's connection is gone; ``reason`` says why when it was not the client's own, orderly end."""


@hookspec
def request_completed(request: Request) -> None:
    """A request is over: its reply's last byte was handed to the client, or it will never come (``request.error``).

    Called for every request, enforcement on or off, of the APIs in `request_interest`. ``request`` is final; it may
    be kept.
    """
