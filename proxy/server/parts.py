"""Creation of the parts of a server from its configuration. Called by the server's constructor, once each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.config.tables.plugins import OnError
from headrace.config.values import count_threads
from headrace.proxy.connection.state.shared_state import SharedState
from headrace.proxy.counters import Counters
from headrace.proxy.data_plane.native import NativeDataPlane, is_native
from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.enforcement_switch import Enforcement
from headrace.proxy.hooks.loading import load_plugins, new_plugin_manager
from headrace.proxy.network.admission import Admission
from headrace.proxy.network.overload import Overload, most_delayed, open_descriptors, raise_descriptor_limit
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.handshakes import Handshakes
from headrace.proxy.server.configured import admission_limits_of, choice_of, limits_of, max_memory_bytes, ports_of
from headrace.proxy.server.listeners import create_listeners
from headrace.proxy.server.owner_lookup import create_token_owners
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas

if TYPE_CHECKING:
    from collections.abc import Callable

    import pluggy

    from headrace.config.schema import Config
    from headrace.proxy.network.upstream import Upstream
    from headrace.quota_callbacks.topic_names import TopicNames

log = structlog.get_logger("headrace.listeners")


def create_hook_calls(config: Config, plugins: pluggy.PluginManager | None) -> HookCalls:
    """Return the calls of the hooks of ``plugins``; if that is None, load the plugins that the configuration chooses.

    Raises `StartupError` if a plugin cannot be loaded.
    """
    manager = plugins or new_plugin_manager()
    if plugins is None:
        load_plugins(manager, choice_of(config))
    return HookCalls(
        manager,
        fail_closed=config.plugins.on_error is OnError.CLOSED,
        slow_call_s=config.plugins.slow_call_s,
    )


def create_client_quotas(config: Config, hooks: HookCalls) -> ClientQuotas:
    """Return an empty table of buckets."""
    return ClientQuotas(windows=config.windows(), metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit)


def create_shared_state(config: Config, hooks: HookCalls, topic_names: TopicNames) -> tuple[SharedState, Upstream]:
    """Return what connections share, and the upstream of ``[listen]`` with its own type. Opens the poller's
    descriptors, and reads certificates. Raises `StartupError`."""
    poller, counters = Poller(), Counters()
    handshakes = Handshakes(
        counters, most=config.limits.max_tls_handshakes, timeout_s=config.limits.tls_handshake_timeout_s
    )
    listeners, upstream = create_listeners(config, hooks, poller, handshakes.turns)
    shared = SharedState(
        limits=limits_of(config),
        listeners=listeners,
        poller=poller,
        handshakes=handshakes,
        hooks=hooks,
        topic_names=topic_names,
        enforcement=Enforcement(
            enabled=config.enforcement.enabled,
            exempt_users=config.enforcement.exempt_users,
            exempt_client_ids=config.enforcement.exempt_client_ids,
        ),
        counters=counters,
    )
    shared.token_owners = create_token_owners(config, listeners)
    return shared, upstream


def create_data_plane(config: Config, shared: SharedState, now_ms: Callable[[], int]) -> NativeDataPlane | None:
    """Return the native data plane, unless Python relays all connections.

    Raises `StartupError` if it is not installed and the configuration asks for it by name.
    """
    if not is_native(config.data_plane):
        return None
    try:
        data_plane = NativeDataPlane(
            shared.hooks,
            shared.enforcement,
            shared.counters,
            limits=lambda: shared.limits,
            threads=count_threads(config.data_plane_threads),
            now_ms=now_ms,
        )
    except ImportError as error:
        raise StartupError(
            'data_plane is "native", but this installation has no native data plane (headrace._engine), since it was'
            ' built without Rust; install a wheel that has it, or set data_plane = "python"'
        ) from error
    for context in shared.tls_contexts():
        context.prefer_rustls()
    return data_plane


def create_admission(config: Config, counters: Counters) -> Admission:
    """Return the limits on connections.

    Raises the limit of open files. Call it when most of the files of the process itself are open.
    """
    descriptors = raise_descriptor_limit()
    opened = open_descriptors() + sum(1 + len(list(each.node_ids)) for each in ports_of(config))
    most_bytes = max_memory_bytes(config)
    if config.limits.max_memory is None and most_bytes:
        log.info("limits.max_memory is a share of the memory limit of the container or service", bytes=most_bytes)
    overload = Overload(counters, descriptors=descriptors, opened=opened, max_memory_bytes=most_bytes)
    return Admission(
        admission_limits_of(config, overload.most_connections),
        counters,
        config.quota.window.rate_window,
        overload=overload,
        max_delayed=most_delayed(descriptors),
    )
