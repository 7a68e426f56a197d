"""Putting quotas into force: those of the configuration and those of the store, at the callbacks and at admission.

The server creates one `QuotasInForce`, gives it the configuration at start and at each reload, and runs it while it
serves. Quotas of IP addresses limit new connections (KIP-612); all others are those of the callbacks.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.config.tables.client_quotas import AlterRule, BrokersQuotasUse, StoreKind, Unreachable
from headrace.proxy.errors import StartupError
from headrace.proxy.quotas.authorization import Permissions
from headrace.proxy.quotas.client_quota_apis import ClientQuotaApis
from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.follower import StoreFollower
from headrace.proxy.quotas.store import StoreError
from headrace.proxy.server.quotas.brokers_quotas import BrokersQuotas
from headrace.proxy.server.quotas.quota_import import import_quotas
from headrace.proxy.wire.messages.scalars import LONGEST_STRING
from headrace.quota_callbacks.entities import CONNECTION_CREATION_RATE, DEFAULT, QuotaEntity, bounded_name, quota_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.schema import Config
    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.proxy.network.admission import Admission
    from headrace.proxy.network.upstream import Upstream
    from headrace.proxy.quotas.store import QuotaStore
    from headrace.proxy.quotas.topic.clients import TopicSettings
    from headrace.proxy.quotas.topic.replica import QuotaLog
    from headrace.proxy.quotas.topic.store import TopicStore
    from headrace.proxy.server.garbage_collection import Collector
    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.policies import Quota

log = structlog.get_logger("headrace.quotas")


_AT_END: Final = object()
STORE_TIME: Final = 0.9
"""Time-out of a store as a part of ``client_quotas.timeout``, so that clients get its error, which names the cause."""


class QuotasInForce:
    """The quota definitions. ``apis`` answers the client quota APIs."""

    def __init__(
        self,
        config: Config,
        hooks: HookCalls,
        admission: Admission,
        upstream: Upstream,
        collector: Collector,
    ) -> None:
        self._hooks = hooks
        self._admission = admission
        self._upstream = upstream
        self._collector = collector
        self._unknown: set[tuple[str, ...]] = set()
        self.definitions = QuotaDefinitions(self._put_into_force, self._changed)
        settings = config.client_quotas
        self._topic_settings = _topic_settings_of(config)
        self._topic_store = None
        store: QuotaStore | None = None
        if self._topic_settings is not None:
            store = self._topic_store = _topic_store_of(config, self._topic_settings, hooks.schema)
        elif settings.file is not None:
            from headrace.proxy.quotas.sqlite.store import SqliteStore

            store = SqliteStore(
                settings.file, audit_rows=settings.audit_rows, timeout_s=STORE_TIME * settings.timeout_s
            )
        self._follower = None if store is None else StoreFollower(store, self.definitions, settings.timeout_s)
        self.apis = ClientQuotaApis(hooks.schema, self.definitions, self._follower, hooks.authorize_quotas)
        self._topic = settings.topic if settings.store is StoreKind.TOPIC else None
        """The topic that the store is in."""
        self._rule = settings.brokers
        self._file_steps: Iterator[None] = iter(())
        self._file_changed = trio.Event()
        self._brokers = BrokersQuotas(
            upstream, self.definitions, wanted=self._rule in (BrokersQuotasUse.SHOW, BrokersQuotasUse.IMPORT)
        )
        self.apis.brokers = self._brokers
        self.apis.shows_brokers = self._rule is BrokersQuotasUse.SHOW
        self.configure(config)
        for _ in self._file_steps:  # no client is served yet
            pass

    def configure(self, config: Config) -> None:
        """Put the quotas of a configuration into force, and its settings of client quotas that need no restart.

        Many quotas are put into force by `run`, shortly after this returns.
        """
        settings = config.client_quotas
        self._file_steps = self.definitions.set_file(config.entity_quotas(), settings.policy())
        for _ in self._file_steps:
            self._file_changed.set()
            break
        self.apis.permissions = Permissions(
            administrators=frozenset(map(bounded_name, settings.administrators)),
            anonymous_may_alter=settings.alter is AlterRule.ANONYMOUS,
        )
        self.apis.max_reply_bytes = config.limits.max_collected_bytes
        topic = _topic_settings_of(config)
        if self._topic_store is not None and topic is not None and topic != self._topic_settings:
            self._topic_settings = topic  # upstream.bootstrap_servers has changed; all else needs a restart
            self._topic_store.replace_log(_topic_log(topic))

    async def open(self, stop: trio.Event) -> bool:
        """Load the quotas of the store, before clients are served. Raises `StartupError`.

        May wait until the cluster can be reached, but not longer than until ``stop`` is set: then return ``False``.
        """
        if self._follower is None:
            return True
        opened, problem = False, None

        async def cancel_at_stop(scope: trio.CancelScope) -> None:
            await stop.wait()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_at_stop, nursery.cancel_scope)
            try:
                await self._follower.open()
                opened = True
            except StoreError as error:
                problem = error
            nursery.cancel_scope.cancel()
        if problem is not None:
            raise StartupError(str(problem)) from problem
        return opened

    async def run(self) -> None:
        """Put into force what changes in the store, and ask the brokers for their quotas, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._put_file_into_force)
            if self._follower is not None:
                nursery.start_soon(self._follower.run)
                nursery.start_soon(self._warn_of_anonymous_clients)
                if self._rule is BrokersQuotasUse.IMPORT:
                    nursery.start_soon(self._import, self._follower)
            if self._rule is not BrokersQuotasUse.IGNORE:
                await self._brokers.run()

    async def _put_file_into_force(self) -> None:
        """Put what `configure` has left into force, in slices, until cancelled."""
        while True:
            if next(self._file_steps, _AT_END) is not _AT_END:  # those of the latest reload
                await trio.lowlevel.checkpoint()
                continue
            await self._file_changed.wait()
            self._file_changed = trio.Event()

    async def _warn_of_anonymous_clients(self) -> None:
        """Log once how every client can change quotas, if the cluster serves clients that do not authenticate."""
        await self._upstream.wait_until_asked()
        if not self._upstream.serves_anonymous:
            return
        if self._topic is not None:
            log.warning(
                "every client can change quotas, also its own, by writing to the topic of quotas",
                topic=self._topic,
                reason="the cluster serves clients without authentication; allow only the proxies to write to the "
                "topic, by the brokers' access control lists",
            )
        if self.apis.permissions.anonymous_may_alter:
            log.warning(
                "every client can change quotas, also its own",
                reason='the cluster serves clients without authentication; set client_quotas.alter = "administrators"',
            )

    async def _import(self, follower: StoreFollower) -> None:
        """Copy the brokers' quotas into the store, as soon as both are known, unless a quota was ever set in it."""
        await self._brokers.known.wait()
        check = partial(check_stored, self._hooks.schema)
        await import_quotas(self._brokers.quotas, follower, self.definitions.stored, check)

    async def close(self) -> None:
        """Close the store."""
        if self._follower is not None:
            await self._follower.close()

    def _put_into_force(self, entity: QuotaEntity, key: str, quota: Quota | None) -> None:
        self._brokers.note(entity)
        self._collector.freeze_if_grown("entities", len(self.definitions))
        if key == CONNECTION_CREATION_RATE:
            if entity.ip is not None:
                host = None if entity.ip is DEFAULT else str(entity.ip)
                self._admission.set_rate(host, None if quota is None else quota.value)
        elif not self._is_enforced(entity, key):
            self._warn_once(entity, key)
        elif quota is None:
            self._hooks.remove_quota(quota_key(key), entity)
        else:
            self._hooks.update_quota(quota_key(key), entity, quota)

    def _is_enforced(self, entity: QuotaEntity, key: str) -> bool:
        """Return whether a plugin enforces the quota.

        A quota of the store may be of a plugin that was enabled when the quota was set and is disabled now. A quota of
        the file cannot: the check of the configuration refuses it.
        """
        if key not in self._hooks.schema.keys_of(frozenset(each for each, _ in entity.parts())):
            return False
        enforced = self._hooks.enforced.of(entity)
        return enforced is None or key in enforced

    def _warn_once(self, entity: QuotaEntity, key: str) -> None:
        kind = (key, *(each for each, _ in entity.parts()))
        if kind not in self._unknown:
            self._unknown.add(kind)
            reason = "no loaded plugin enforces it"
            log.warning("a quota of the store is not enforced", key=key, entity=str(entity), reason=reason)

    def _changed(self) -> None:
        if self._hooks.quotas is not None:
            self._hooks.quotas.quotas_changed()


def _topic_settings_of(config: Config) -> TopicSettings | None:
    """Return which topic has the quotas, and how to reach it; ``None`` if none has them."""
    settings = config.client_quotas
    if settings.store is not StoreKind.TOPIC:
        return None
    from headrace.proxy.quotas.topic.clients import TopicSettings

    properties = {name: value.get_secret_value() for name, value in settings.topic_properties.items()}
    return TopicSettings(
        topic=settings.topic,
        properties={"bootstrap.servers": ",".join(map(str, config.upstream.bootstrap_servers)), **properties},
        replication_factor=settings.topic_replication_factor,
        history_ms=round(settings.topic_history_s * 1000),
    )


def _topic_log(topic: TopicSettings) -> QuotaLog:
    from headrace.proxy.quotas.topic.replica import KafkaLog

    return KafkaLog(topic)


def _topic_store_of(config: Config, topic: TopicSettings, schema: QuotaSchema) -> TopicStore:
    """Return the store in a topic. Raises `StartupError` if a package is missing."""
    from headrace.proxy.quotas.topic.store import TopicStore, require_confluent_kafka

    try:
        require_confluent_kafka()
    except StoreError as error:
        raise StartupError(str(error)) from error
    settings = config.client_quotas
    return TopicStore(
        _topic_log(topic),
        waits=settings.unreachable is Unreachable.WAIT,
        check=partial(check_stored, schema),
        timeout_s=STORE_TIME * settings.timeout_s,
    )


def check_stored(schema: QuotaSchema, entity: QuotaEntity, key: str, value: float) -> None:
    """Raise `ValueError` for a quota that AlterClientQuotas refuses. Other programs may write to the topic."""
    for entity_type, name in entity.parts():
        definition = schema.entity_types.get(entity_type)
        if definition is None:
            raise ValueError("unknown entity type")
        if isinstance(name, str):
            if len(name.encode()) > LONGEST_STRING:  # also raises ValueError for what is not UTF-8
                raise ValueError(f"a name has more than {LONGEST_STRING} bytes")
            if definition.check is not None:
                definition.check(name)
    if key not in schema.keys:
        raise ValueError("unknown quota key")
    schema.check(key, value, entity)
