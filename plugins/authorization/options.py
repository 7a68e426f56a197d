"""The options of the plugin: the table ``[plugins.options.authorization]``. Read at start and at a reload."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import model_validator

from headrace.quota_callbacks.authorization import CLUSTER_NAME, Operation, PatternType
from headrace.quota_callbacks.definitions import ip_address
from headrace.quota_callbacks.options import (
    TRUE_OR_FALSE,
    Fault,
    Parsed,
    Table,
    choice,
    did_you_mean,
    list_of,
    text,
    validation_error,
)

USER_PREFIX: Final = "User:"
EVERYBODY: Final = "User:*"


class Effect(StrEnum):
    """The effect of a rule. A rule that denies precedes all rules that allow."""

    ALLOW = "allow"
    DENY = "deny"


class Resource(StrEnum):
    """The types of resources, as they are written in the file."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional_id"
    DELEGATION_TOKEN = "delegation_token"  # noqa: S105 -- not a secret
    USER = "user"


ALL: Final = "All"
"""Stands for all operations (``AclOperation.ALL``)."""
_OPERATIONS: Final = (ALL, *(each.value for each in Operation))


def _parse_operation(raw: object) -> str:
    if raw not in _OPERATIONS or not isinstance(raw, str):
        raise ValueError(did_you_mean(raw, _OPERATIONS, quote='"') or f"one of {', '.join(_OPERATIONS)}")
    return raw


def _parse_principal(raw: object) -> str:
    if not isinstance(raw, str) or not raw.startswith(USER_PREFIX) or raw == USER_PREFIX:
        raise ValueError  # also for other types
    return raw


def _parse_host(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError  # noqa: TRY004  reported like every invalid value
    return str(ip_address(raw))  # the form of `canonical_ip`


_OPERATION: Final = Parsed('an operation of Kafka, such as "Read"', _parse_operation, {"enum": list(_OPERATIONS)})
_PRINCIPAL: Final = Parsed('"User:" and a name, such as "User:alice"', _parse_principal, {"type": "string"})
_HOST: Final = Parsed("an IP address", _parse_host, {"type": "string"})


class RuleOptions(Table):
    """The table ``[[plugins.options.authorization.rules]]``."""

    principal: Annotated[str | None, _PRINCIPAL] = None
    """The principal that the rule is for; ``User:*`` is every client, also one that has not authenticated."""
    users: Annotated[tuple[Annotated[str, text("a user's name")], ...], list_of("a list of users", shortest=1)] = ()
    """The names of several users, in place of ``principal``."""
    effect: Annotated[Effect, choice(Effect)] = Effect.ALLOW
    operations: Annotated[
        tuple[Annotated[str, _OPERATION], ...], list_of('a list of operations, such as ["Read"]', shortest=1)
    ]
    resource_type: Annotated[Resource, choice(Resource)]
    pattern_type: Annotated[PatternType, choice(PatternType)] = PatternType.LITERAL
    name: Annotated[str | None, text('the name of a resource, or "*"')] = None
    """The name of the resources, or its beginning (``prefixed``); a literal ``*`` is all. Only the cluster has none."""
    hosts: Annotated[tuple[Annotated[str, _HOST], ...], list_of("a list of IP addresses", shortest=1)] = ()
    """Addresses of clients that the rule is for; all if it is missing."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        faults: list[Fault] = []
        if (self.principal is None) == (not self.users):
            faults.append(Fault(path=("principal",), rule="expected either this or users"))
        if EVERYBODY.removeprefix(USER_PREFIX) in self.users:
            rule = f'users are names; for everybody write principal = "{EVERYBODY}"'
            faults.append(Fault(path=("users",), found="*", rule=rule))
        if self.resource_type is Resource.CLUSTER:
            if self.name not in {None, CLUSTER_NAME, "*"} or self.pattern_type is PatternType.PREFIXED:
                faults.append(
                    Fault(path=("name",), found=self.name, rule="the cluster has no other name; leave it out")
                )
        elif self.name is None:
            faults.append(Fault(path=("name",), rule='required; expected the name of a resource, or "*"'))
        if faults:
            raise validation_error(faults)
        return self


class AuthorizationOptions(Table):
    """The options of ``authorization``."""

    enabled: Annotated[bool, TRUE_OR_FALSE] = False
    """Whether clients need permission for what they do. What no rule allows is denied then."""
    super_users: Annotated[tuple[Annotated[str, _PRINCIPAL], ...], list_of('a list of principals ("User:alice")')] = ()
    """Principals that may do everything; the broker's ``super.users``."""
    allow_everyone_if_no_rule_found: Annotated[bool, TRUE_OR_FALSE] = False
    """Whether everybody may use a resource for which there is no rule; the broker's
    ``allow.everyone.if.no.acl.found``."""
    rules: Annotated[tuple[RuleOptions, ...], list_of("a list of rules")] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Reject rules that have no effect."""
        if not self.enabled and self.rules:
            raise validation_error([Fault(path=("rules",), rule="have no effect without enabled = true")])
        return self
