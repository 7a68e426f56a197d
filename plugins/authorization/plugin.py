"""The hook implementations: decisions by rules, which are kept for the actions that clients repeat."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.plugins.authorization.options import (
    ALL,
    EVERYBODY,
    USER_PREFIX,
    AuthorizationOptions,
    Effect,
    Resource,
)
from headrace.plugins.authorization.rules import Rule, Rules
from headrace.quota_callbacks.authorization import CLUSTER_NAME, Operation, ResourcePattern, ResourceType
from headrace.quota_callbacks.definitions import canonical_ip
from headrace.quota_callbacks.entities import bounded_name
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.options import read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.plugins.authorization.options import RuleOptions
    from headrace.quota_callbacks.authorization import Action
    from headrace.quota_callbacks.options import Table
    from headrace.quota_callbacks.requests import Connection

KEPT_DECISIONS: Final = 50_000
"""Decisions that are kept, about 20 MiB; when there are more, all are dropped and made again."""

LONGEST_KEPT_NAME: Final = 249
"""Names of resources up to this length are kept with their decisions: that of a topic (``Topic.MAX_NAME_LENGTH``).
Names of groups may have 32,767 characters, chosen by clients."""

_TYPES: Final = {each: ResourceType[each.name] for each in Resource}


class Authorization:
    """The plugin that decides about requests by the rules of the configuration. It takes no part while it is not
    enabled."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._enabled = False
        self._rules = Rules(())
        self._kept: dict[tuple[str, str, Action], bool] = {}

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        return AuthorizationOptions

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the rules."""
        options = _read(context.options)
        self._enabled = options.enabled
        self._rules = _rules(options)
        if self._enabled:
            context.topics.follow()

    @hookimpl
    def changed_options(self, options: Mapping[str, Any]) -> Callable[[], None] | None:
        """Read the rules again; whether it is enabled needs a restart."""
        read = _read(options)
        return partial(self._replace, _rules(read)) if read.enabled == self._enabled else None

    def _replace(self, rules: Rules) -> None:
        self._rules = rules
        self._kept.clear()

    @hookimpl
    def authorizes_requests(self) -> bool:
        """Return whether it is enabled."""
        return self._enabled

    @hookimpl(trylast=True)
    def authorize_requests(self, connection: Connection, actions: Sequence[Action]) -> list[bool]:
        """Return for each action whether a rule allows it."""
        kept, user = self._kept, connection.user
        host = _usual_form(connection.peer.host) if self._rules.by_host else ""
        found: list[bool] = []
        for action in actions:
            key = (user, host, action)
            allowed = kept.get(key)
            if allowed is None:
                allowed = self._rules.decide(user, host, action).allowed
                if action.name is None or len(action.name) <= LONGEST_KEPT_NAME:
                    if len(kept) >= KEPT_DECISIONS:
                        kept.clear()
                    kept[key] = allowed
            found.append(allowed)
        return found

    @hookimpl(trylast=True)
    def explain_denial(self, connection: Connection, action: Action) -> str | None:
        """Return the rule that denies the action, or that none allows it."""
        decision = self._rules.decide(connection.user, _usual_form(connection.peer.host), action)
        if decision.allowed:
            return None
        return "no rule allows it" if decision.rule is None else str(decision.rule)


def _read(options: Mapping[str, Any]) -> AuthorizationOptions:
    return read_options(AuthorizationOptions, options, "authorization")


def _rules(options: AuthorizationOptions) -> Rules:
    return Rules(
        (_rule(number, each) for number, each in enumerate(options.rules)),
        super_users=frozenset(bounded_name(each.removeprefix(USER_PREFIX)) for each in options.super_users),
        allow_without_rules=options.allow_everyone_if_no_rule_found,
    )


def _usual_form(host: str) -> str:
    """Return the form of a client's address that rules have.

    A listener of IPv6 that also accepts IPv4 gives ``::ffff:192.0.2.7`` for 192.0.2.7, and a link-local address has a
    zone.
    """
    return canonical_ip(host.partition("%")[0])


def _rule(number: int, options: RuleOptions) -> Rule:
    users = [options.principal.removeprefix(USER_PREFIX)] if options.principal else options.users
    everybody = options.principal == EVERYBODY
    name = CLUSTER_NAME if options.resource_type is Resource.CLUSTER else options.name
    operations = None if ALL in options.operations else frozenset(map(Operation, options.operations))
    return Rule(
        number=number,
        allow=options.effect is Effect.ALLOW,
        pattern=ResourcePattern(
            resource_type=_TYPES[options.resource_type], name=name or "", pattern_type=options.pattern_type
        ),
        users=None if everybody else frozenset(map(bounded_name, users)),
        operations=operations,
        hosts=frozenset(options.hosts) or None,
    )
