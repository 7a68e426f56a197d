"""The table ``[client_quotas]``: quotas that are changed while the proxy runs (KIP-546).

The quotas of the file itself are the tables ``[[quotas]]``, in `headrace.config.quotas`.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from enum import StrEnum
from typing import Annotated

from headrace.config.keys import Key, Section
from headrace.config.quotas import INT_MAX
from headrace.config.values import duration
from headrace.quota_callbacks.options import choice, list_of, text, whole
from headrace.quota_callbacks.policies import EnforcementMode, NewConnections, QuotaPolicy


class AlterRule(StrEnum):
    """Who may change quotas, if no plugin decides."""

    ANONYMOUS = "anonymous"
    """Administrators, and clients that have not authenticated, where brokers serve such clients."""
    ADMINISTRATORS = "administrators"
    """Administrators only."""


class BrokersQuotas(StrEnum):
    """What is done about the quotas that were set at the brokers themselves."""

    IGNORE = "ignore"
    SHOW = "show"
    IMPORT = "import"


class ClientQuotas(Section):
    """Quotas that are changed while the proxy runs, with AlterClientQuotas (KIP-546)."""

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
    timeout_s: Annotated[
        float,
        duration("100ms", "10m"),
        Key("Timeout of a request to change or describe quotas, after which it is answered with REQUEST_TIMED_OUT."),
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
            "authenticated, as at a broker without an authorizer; administrators: only they."
        ),
    ] = AlterRule.ANONYMOUS
    brokers: Annotated[
        BrokersQuotas,
        choice(BrokersQuotas),
        Key(
            "What to do about quotas of the brokers themselves. ignore: nothing; show: DescribeClientQuotas returns "
            "them, too, as brokers.<key>; import: copy them into the store once, if no quota was ever set in it.",
            restart=True,
        ),
    ] = BrokersQuotas.IGNORE
    enforcement: Annotated[
        EnforcementMode,
        choice(EnforcementMode),
        Key("How quotas are enforced that [[quotas]] does not have: kafka or paced."),
    ] = EnforcementMode.KAFKA
    new_connections: Annotated[
        NewConnections,
        choice(NewConnections),
        Key("What a throttle by such a quota means for new connections: wait or kafka."),
    ] = NewConnections.WAIT

    def policy(self) -> QuotaPolicy:
        """Return the policy of quotas for which the file has none."""
        return QuotaPolicy(mode=self.enforcement, new_connections=self.new_connections)
