"""Decisions by rules beside those of Kafka's ``StandardAuthorizer`` with the same rules as ACLs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.authorization.rules import Rule, Rules
from headrace.quota_callbacks.authorization import (
    CLUSTER_NAME,
    WILDCARD,
    Action,
    Operation,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from testbed.kafka.jvm import kafka_classes, start_jvm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

AUTHORIZER = "org.apache.kafka.metadata.authorizer"
COMMON = "org.apache.kafka.common"
SUPER_USER = "root"
USERS = ("bob", "carol", SUPER_USER)
HOSTS = ("10.0.0.1", "10.0.0.2")
NAMES = ("a", "ab", "abc", "b", WILDCARD)


def cls(name: str) -> Any:
    return kafka_classes("4.3.1", "broker").cls(name)


def enum(name: str, member: str) -> Any:
    """Return a member of one of Kafka's enums by the name that its tools print."""
    text = "".join(f"_{char}" if char.isupper() else char.upper() for char in member).lstrip("_")
    return cls(f"{COMMON}.{name}").valueOf(text)


@cache
def context(user: str, host: str) -> Any:
    address = start_jvm().java.net.InetAddress.getByName(host)
    principal = cls(f"{COMMON}.security.auth.KafkaPrincipal")("User", user)
    answers = {
        "principal": principal,
        "clientAddress": address,
        "requestType": 0,
        "requestVersion": 0,
        "listenerName": "CLIENTS",
        "securityProtocol": None,
        "clientId": "",
        "correlationId": 0,
    }
    interface = cls("org.apache.kafka.server.authorizer.AuthorizableRequestContext")
    return start_jvm().JProxy(interface, dict={name: lambda answer=answer: answer for name, answer in answers.items()})


def kafkas(rules: Sequence[Rule], *, allow_without_rules: bool) -> Any:
    """Return Kafka's authorizer with these rules."""
    java = start_jvm().java
    authorizer = cls(f"{AUTHORIZER}.StandardAuthorizer")()
    settings = java.util.HashMap()
    settings.put("super.users", f"User:{SUPER_USER}")
    settings.put("node.id", 1)
    settings.put("allow.everyone.if.no.acl.found", str(allow_without_rules).lower())
    authorizer.configure(settings)
    metrics = cls(f"{COMMON}.metrics.internals.PluginMetricsImpl")
    authorizer.withPluginMetrics(metrics(cls(f"{COMMON}.metrics.Metrics")(), java.util.LinkedHashMap()))
    found = java.util.HashMap()
    for acl in sorted({each for rule in rules for each in acls(rule)}):
        resource_type, name, pattern_type, principal, host, operation, effect = acl
        made = cls(f"{AUTHORIZER}.StandardAcl")(
            enum("resource.ResourceType", resource_type),
            name,
            enum("resource.PatternType", pattern_type),
            principal,
            host,
            enum("acl.AclOperation", operation),
            enum("acl.AclPermissionType", effect),
        )
        found.put(cls(f"{COMMON}.Uuid").randomUuid(), made)
    authorizer.loadSnapshot(found)
    authorizer.completeInitialLoad()
    return authorizer


def acls(rule: Rule) -> Iterator[tuple[str, ...]]:
    """Yield the ACLs for a rule; Kafka refuses two that are equal."""
    pattern = rule.pattern
    for principal in ("*",) if rule.users is None else rule.users:
        for operation in ("All",) if rule.operations is None else rule.operations:
            for host in ("*",) if rule.hosts is None else rule.hosts:
                effect = "Allow" if rule.allow else "Deny"
                pattern_type = pattern.pattern_type.capitalize()
                who = f"User:{principal}"
                yield (pattern.resource_type, pattern.name, pattern_type, who, host, operation, effect)


def decided_by_kafka(authorizer: Any, user: str, host: str, action: Action) -> bool:
    operation = enum("acl.AclOperation", action.operation)
    resource_type = enum("resource.ResourceType", action.resource_type)
    asking = context(user, host)
    if action.name is None:
        return str(authorizer.authorizeByResourceType(asking, operation, resource_type)) == "ALLOWED"
    literal = enum("resource.PatternType", "Literal")
    pattern = cls(f"{COMMON}.resource.ResourcePattern")(resource_type, action.name, literal)
    asked = start_jvm().java.util.ArrayList()
    asked.add(cls("org.apache.kafka.server.authorizer.Action")(operation, pattern, 1, True, False))
    return str(authorizer.authorize(asking, asked).get(0)) == "ALLOWED"


TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)


@st.composite
def rule_sets(draw: st.DrawFn) -> list[Rule]:
    rules = []
    for number in range(draw(st.integers(0, 8))):
        resource_type = draw(st.sampled_from(TYPES))
        is_cluster = resource_type is ResourceType.CLUSTER
        pattern_type = PatternType.LITERAL if is_cluster else draw(st.sampled_from(PatternType))
        rules.append(
            Rule(
                number=number,
                allow=draw(st.booleans()),
                pattern=ResourcePattern(
                    resource_type=resource_type,
                    name=CLUSTER_NAME if is_cluster else draw(st.sampled_from(NAMES)),
                    pattern_type=pattern_type,
                ),
                users=draw(st.none() | st.sets(st.sampled_from(USERS[:2]), min_size=1).map(frozenset)),
                operations=draw(st.none() | st.sets(st.sampled_from(Operation), min_size=1, max_size=3).map(frozenset)),
                hosts=draw(st.none() | st.sets(st.sampled_from(HOSTS), min_size=1).map(frozenset)),
            )
        )
    return rules


@given(rules=rule_sets(), allow_without_rules=st.booleans(), data=st.data())
def test_every_decision_is_kafkas(rules: list[Rule], allow_without_rules: bool, data: st.DataObject) -> None:
    ours = Rules(rules, super_users=frozenset({SUPER_USER}), allow_without_rules=allow_without_rules)
    theirs = kafkas(rules, allow_without_rules=allow_without_rules)
    for _ in range(20):
        user, host = data.draw(st.sampled_from(USERS)), data.draw(st.sampled_from(HOSTS))
        resource_type = data.draw(st.sampled_from(TYPES))
        names = (
            st.just(CLUSTER_NAME) if resource_type is ResourceType.CLUSTER else st.sampled_from(("a", "abcd", "b", "c"))
        )
        name = data.draw(names if resource_type is ResourceType.CLUSTER else st.none() | names)
        action = Action(data.draw(st.sampled_from(Operation)), resource_type, name)
        assert ours.decide(user, host, action).allowed == decided_by_kafka(theirs, user, host, action), action
