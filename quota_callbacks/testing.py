"""Helpers for the tests of a plugin: connections, requests and a plugin context, without a proxy or a clock.

Time is an argument of every hook, so a test can call the hooks with any number of milliseconds.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import ANONYMOUS, QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.requests import Address, Connection, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.quota_callbacks.buckets.client_quotas import QuotaLimit

_numbers: Final = itertools.count(1)


def make_connection(*, user: str = ANONYMOUS, node_id: int | None = None) -> Connection:
    """Return the connection of a client at 127.0.0.1 that the broker has accepted as ``user``."""
    return Connection(
        connection_id=next(_numbers), peer=Address(host="127.0.0.1", port=50_000), node_id=node_id, user=user
    )


def make_request(
    api_key: int,
    *,
    api_version: int = 0,
    connection: Connection | None = None,
    client_id: str = "",
    request_bytes: int = 100,
    received_s: float = 0.0,
) -> Request:
    """Return a request as `request_received` gets it; set further fields, such as ``batches``, on the result."""
    return Request(
        connection or make_connection(),
        api_key,
        api_version,
        next(_numbers),
        client_id,
        request_bytes,
        received_s,
    )


def make_context(
    options: Mapping[str, Any] | None = None,
    *,
    limits: Mapping[str, float] | None = None,
    windows: Mapping[str, Window] | None = None,
    quota_limit: QuotaLimit | None = None,
    dry: bool = False,
) -> PluginContext:
    """Return what `configure` is given.

    ``context.quotas`` has a bucket for each user and client id, with the limits of ``limits`` by quota key, measured
    over ``windows`` or Kafka's default of 11 samples of a second. Keys of plugins are allowed. ``quota_limit`` is the
    hook of the plugin, if it has one: what it returns precedes ``limits``.
    """
    found = dict(limits or {})

    def limit(key: str, tags: Mapping[str, str]) -> float | None:
        of_plugin = None if quota_limit is None else quota_limit(key, tags)
        return found.get(key) if of_plugin is None else of_plugin

    quotas = ClientQuotas(
        windows={key: Window() for key in (*QuotaKey, *found)} | dict(windows or {}),
        metric_tags=lambda key, user, client_id: {"user": user, "client-id": client_id} if key in found else None,
        quota_limit=limit,
    )
    return PluginContext(options=dict(options or {}), quotas=quotas, dry=dry)
