"""The table ``[client_quotas]``: quotas that are changed while the proxy runs (KIP-546).

The quotas of the file itself are the tables ``[[quotas]]``, in `headrace.config.quotas`.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import SecretStr

from headrace.config.keys import Key, Section
from headrace.quota_callbacks.definitions import INT_MAX
from headrace.quota_callbacks.options import choice, list_of, text, whole
from headrace.quota_callbacks.policies import EnforcementMode, NewConnections, QuotaPolicy
from headrace.quota_callbacks.secret_sources import secrets_of
from headrace.quota_callbacks.units import duration


class StoreKind(StrEnum):
    """The kind of store for the quotas that are set while the proxy runs."""

    SQLITE = "sqlite"
    """The file ``client_quotas.file``."""
    TOPIC = "topic"
    """A compacted topic of the cluster."""


class Unreachable(StrEnum):
    """What a proxy does if it cannot read the topic of quotas at its start."""

    WAIT = "wait"
    """It serves no client until it has read the topic."""
    SERVE = "serve"
    """It serves clients with the quotas of the configuration file until it has read the topic."""


REPLICAS_MAX: Final = 32_767
"""An INT16 in the protocol."""
TOPIC_PATTERN: Final = r"[a-zA-Z0-9._-]{1,249}"
"""Kafka's ``Topic.LEGAL_CHARS`` and ``Topic.MAX_NAME_LENGTH``."""


class AlterRule(StrEnum):
    """Who may change quotas, if no plugin decides."""

    ANONYMOUS = "anonymous"
    """Administrators, and clients that have not authenticated, where brokers serve such clients."""
    ADMINISTRATORS = "administrators"
    """Administrators only."""


class BrokersQuotasUse(StrEnum):
    """The use that the proxy makes of the quotas that were set at the brokers themselves."""

    IGNORE = "ignore"
    COMPARE = "compare"
    SHOW = "show"
    IMPORT = "import"


class ClientQuotas(Section):
    """Quotas that are changed while the proxy runs, with AlterClientQuotas (KIP-546)."""

    store: Annotated[
        StoreKind,
        choice(StoreKind),
        Key(
            "Where quotas are kept that are set while the proxy runs. sqlite: in client_quotas.file; topic: in a "
            "compacted topic of the cluster, which all proxies of a fleet follow.",
            restart=True,
        ),
    ] = StoreKind.SQLITE
    file: Annotated[
        str | None,
        text("the path of a file"),
        Key(
            "The SQLite file of quotas that are set while the proxy runs. Without it they can be described, but not "
            "changed. Several proxies on one machine can share it.",
            restart=True,
        ),
    ] = None
    audit_rows: Annotated[
        int,
        whole(1, INT_MAX),
        Key("Number of changes that are kept for headrace quotas audit; older ones are removed.", restart=True),
    ] = 100_000
    topic: Annotated[
        str,
        text("a topic name", pattern=TOPIC_PATTERN),
        Key("The topic of quotas. It is created if it does not exist. Only proxies may write to it.", restart=True),
    ] = "__headrace_quotas"
    topic_replication_factor: Annotated[
        int | None,
        whole(1, REPLICAS_MAX),
        Key(
            "Replication factor of the topic, if the proxy creates it; by default 3, or the number of brokers if that "
            "is lower.",
            restart=True,
        ),
    ] = None
    topic_history_s: Annotated[
        float,
        duration("1m", "3650d"),
        Key(
            "How long the topic keeps every change for headrace quotas audit, if the proxy creates it; of older ones, "
            "only the latest of each quota is certain to be kept.",
            restart=True,
        ),
    ] = 7 * 86_400.0
    topic_properties: Annotated[
        Mapping[str, SecretStr],
        secrets_of(
            'a table of librdkafka\'s settings, each key in quotes, such as "security.protocol" = "ssl" or '
            '"sasl.password" = { file = "/run/secrets/password" }'
        ),
        Key(
            "Settings of librdkafka for the connection to the topic, such as for TLS and SASL, each key in quotes. "
            "bootstrap.servers is upstream.bootstrap_servers by default.",
            restart=True,
        ),
    ] = {}
    unreachable: Annotated[
        Unreachable,
        choice(Unreachable),
        Key(
            "What the proxy does if it cannot read the topic at start. wait: serve no client until it can; serve: "
            "serve clients with the quotas of the configuration file until it can.",
            restart=True,
        ),
    ] = Unreachable.WAIT
    timeout_s: Annotated[
        float,
        duration("100ms", "10m"),
        Key(
            "Timeout of a request to change or describe quotas, after which it is answered with REQUEST_TIMED_OUT.",
            restart=True,
        ),
    ] = 10.0
    administrators: Annotated[
        tuple[Annotated[str, text("a user")], ...],
        list_of("a list of users"),
        Key("Users that may describe and change quotas, if no plugin decides."),
    ] = ()
    alter: Annotated[
        AlterRule,
        choice(AlterRule),
        Key(
            "Who may change quotas, if no plugin decides. anonymous: administrators, and clients that have not "
            "authenticated, as at a broker without an authorizer; administrators: administrators only."
        ),
    ] = AlterRule.ANONYMOUS
    brokers: Annotated[
        BrokersQuotasUse,
        choice(BrokersQuotasUse),
        Key(
            "What to do about quotas of the brokers themselves. ignore: do not ask for them; compare: warn of those "
            "that the proxy has, too; show: as compare, and DescribeClientQuotas returns them as brokers.<key>; "
            "import: as compare, and copy them into the store once, if no quota was ever set in it.",
            restart=True,
        ),
    ] = BrokersQuotasUse.COMPARE
    enforcement: Annotated[
        EnforcementMode,
        choice(EnforcementMode),
        Key("How quotas that are not in [[quotas]] are enforced: kafka or paced."),
    ] = EnforcementMode.KAFKA
    new_connections: Annotated[
        NewConnections,
        choice(NewConnections),
        Key(
            "Whether new connections wait while a quota that is not in [[quotas]] throttles their entity: wait or "
            "kafka."
        ),
    ] = NewConnections.WAIT

    def awaited(self) -> str:
        """Return what has to be waited for before clients are served, as a reason not to be ready; empty if nothing."""
        if self.store is not StoreKind.TOPIC or self.unreachable is not Unreachable.WAIT:
            return ""
        return (
            f"no client is served until the topic of quotas {self.topic} has been read "
            '(client_quotas.unreachable = "wait")'
        )

    def policy(self) -> QuotaPolicy:
        """Return the policy of quotas for which the file has none."""
        return QuotaPolicy(mode=self.enforcement, new_connections=self.new_connections)
