"""Which rule decides about an action.

As Kafka's ``StandardAuthorizer``: super users may do everything; a rule that denies precedes all that allow; Read,
Write, Delete and Alter imply Describe, and AlterConfigs implies DescribeConfigs, where they are allowed but not where
they are denied; what no rule allows is denied. Source: ``StandardAuthorizerData``, and
``Authorizer.authorizeByResourceType`` for actions on any resource of a type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.quota_callbacks.authorization import (
    WILDCARD,
    Action,
    Operation,
    PatternType,
    ResourcePattern,
    ResourceType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_IMPLY_DESCRIBE: Final = frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER})
_IMPLYING: Final = {
    Operation.DESCRIBE: _IMPLY_DESCRIBE,
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}

_ANY_NAME: Final = "hardcode"
"""The name that Kafka asks for to find out whether a user may do everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule."""

    number: int
    """The place of the rule in the file, from 0."""
    allow: bool
    pattern: ResourcePattern
    users: frozenset[str] | None
    """``None`` is everybody."""
    operations: frozenset[Operation] | None
    """``None`` is all."""
    hosts: frozenset[str] | None = None
    """``None`` is all."""

    def applies(self, user: str, host: str) -> bool:
        """Return whether the rule is for this client."""
        return (self.users is None or user in self.users) and (self.hosts is None or host in self.hosts)

    def covers(self, operation: Operation) -> bool:
        """Return whether the rule is for this operation."""
        operations = self.operations
        if operations is None or operation in operations:
            return True
        return self.allow and not operations.isdisjoint(_IMPLYING.get(operation, ()))

    def __str__(self) -> str:
        pattern = self.pattern
        name = f"{pattern.name}*" if pattern.pattern_type is PatternType.PREFIXED else pattern.name
        operations = "All" if self.operations is None else ", ".join(sorted(self.operations))
        users = "everybody" if self.users is None else ", ".join(sorted(self.users)[:3])
        more = 0 if self.users is None else len(self.users) - 3
        others = f" and {more} others" if more > 0 else ""
        hosts = "" if self.hosts is None else f" at {', '.join(sorted(self.hosts))}"
        verb = "allows" if self.allow else "denies"
        resource = f"{pattern.resource_type} {name}"
        return f"rule {self.number + 1} {verb} {operations} on {resource} to {users}{others}{hosts}"


class Decision(NamedTuple):
    """A decision, and the rule that made it; ``None`` if no rule applies."""

    allowed: bool
    rule: Rule | None


class _ByUser:
    """The rules of one pattern, in the order of the file."""

    __slots__ = ("everybody", "of_user")

    def __init__(self) -> None:
        self.everybody: list[Rule] = []
        self.of_user: dict[str, list[Rule]] = {}

    def add(self, rule: Rule) -> None:
        if rule.users is None:
            self.everybody.append(rule)
        else:
            for user in rule.users:
                self.of_user.setdefault(user, []).append(rule)

    @property
    def empty(self) -> bool:
        return not self.everybody and not self.of_user

    def rules(self, user: str) -> Iterator[Rule]:
        yield from self.of_user.get(user, ())
        yield from self.everybody


class Rules:
    """All rules. Finding those for an action takes a look-up for its name, and one for each length of a prefix."""

    def __init__(
        self, rules: Iterable[Rule], *, super_users: frozenset[str] = frozenset(), allow_without_rules: bool = False
    ) -> None:
        """``super_users`` are names, and ``allow_without_rules`` is ``allow.everyone.if.no.acl.found``."""
        self._super_users = super_users
        self._allow_without_rules = allow_without_rules
        self._literal: dict[tuple[ResourceType, str], _ByUser] = {}
        self._prefixed: dict[tuple[ResourceType, str], _ByUser] = {}
        self._of_type: dict[ResourceType, _ByUser] = {each: _ByUser() for each in ResourceType}
        lengths: dict[ResourceType, set[int]] = {each: set() for each in ResourceType}
        self.by_host = False
        """Whether a decision may depend on the client's address."""
        for rule in rules:
            pattern = rule.pattern
            prefixed = pattern.pattern_type is PatternType.PREFIXED
            index = self._prefixed if prefixed else self._literal
            index.setdefault((pattern.resource_type, pattern.name), _ByUser()).add(rule)
            if prefixed:
                lengths[pattern.resource_type].add(len(pattern.name))
            self._of_type[pattern.resource_type].add(rule)
            self.by_host = self.by_host or rule.hosts is not None
        self._lengths = {each: tuple(sorted(found)) for each, found in lengths.items()}

    def decide(self, user: str, host: str, action: Action) -> Decision:
        """Return what is decided about an action of a client, and by which rule."""
        if user in self._super_users:
            return Decision(allowed=True, rule=None)
        if action.name is None:
            return self._decide_any(user, host, action)
        if action.name == WILDCARD and action.resource_type is ResourceType.TOPIC:
            return self._decide_all_topics(user, host, action.operation)
        allowing: Rule | None = None
        found = False
        for section in self._sections(action.resource_type, action.name):
            found = True
            for rule in section.rules(user):
                if rule.allow and allowing is not None:
                    continue
                if rule.applies(user, host) and rule.covers(action.operation):
                    if not rule.allow:
                        return Decision(allowed=False, rule=rule)
                    allowing = rule
        if allowing is not None:
            return Decision(allowed=True, rule=allowing)
        return Decision(allowed=not found and self._allow_without_rules, rule=None)

    def _sections(self, resource_type: ResourceType, name: str) -> Iterator[_ByUser]:
        for literal in (name, WILDCARD) if name != WILDCARD else (name,):
            section = self._literal.get((resource_type, literal))
            if section is not None:
                yield section
        for length in self._lengths[resource_type]:
            if length > len(name):
                break
            section = self._prefixed.get((resource_type, name[:length]))
            if section is not None:
                yield section

    def _decide_all_topics(self, user: str, host: str, operation: Operation) -> Decision:
        """Return whether a client may do ``operation`` to every topic: a rule that denies it for one of them counts."""
        rules = self._of_type[ResourceType.TOPIC]
        found = [each for each in rules.rules(user) if each.applies(user, host) and each.covers(operation)]
        denying = next((each for each in found if not each.allow), None)
        if denying is not None:
            return Decision(allowed=False, rule=denying)
        everything = ResourcePattern(resource_type=ResourceType.TOPIC, name=WILDCARD)
        allowing = next((each for each in found if each.pattern == everything), None)
        if allowing is not None:
            return Decision(allowed=True, rule=allowing)
        return Decision(allowed=self._allow_without_rules and rules.empty, rule=None)

    def _decide_any(self, user: str, host: str, action: Action) -> Decision:
        """Return whether a client may do ``action`` to any resource of the type at all.

        A rule that allows it for some names counts unless one that denies it covers all of them. Source:
        ``Authorizer.authorizeByResourceType``, where no operation implies another.
        """
        operation, resource_type, _name = action
        decided = self.decide(user, host, Action(operation, resource_type, _ANY_NAME))
        if decided.allowed:
            return decided
        allowing: list[Rule] = []
        literal: dict[str, Rule] = {}
        prefixed: dict[str, Rule] = {}
        for rule in self._of_type[resource_type].rules(user):
            if not rule.applies(user, host) or not (rule.operations is None or operation in rule.operations):
                continue
            is_prefix = rule.pattern.pattern_type is PatternType.PREFIXED
            if rule.allow:
                allowing.append(rule)
            elif not is_prefix and rule.pattern.name == WILDCARD:
                return Decision(allowed=False, rule=rule)
            else:
                (prefixed if is_prefix else literal).setdefault(rule.pattern.name, rule)
        for rule in allowing:
            name, is_prefix = rule.pattern.name, rule.pattern.pattern_type is PatternType.PREFIXED
            if not is_prefix and name == WILDCARD:
                return Decision(allowed=True, rule=rule)
            if not is_prefix and name in literal:
                continue
            if not any(name[:length] in prefixed for length in range(1, len(name) + 1)):
                return Decision(allowed=True, rule=rule)
        return Decision(allowed=False, rule=next(iter((*prefixed.values(), *literal.values())), None))
