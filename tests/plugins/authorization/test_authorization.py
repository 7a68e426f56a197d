"""The options of the plugin, the decisions that it keeps, and what it says about a denial."""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from headrace.plugins.authorization import Authorization, plugin
from headrace.quota_callbacks.authorization import Action, Operation, ResourceType
from headrace.quota_callbacks.options import OptionsError
from headrace.quota_callbacks.requests import Address, Connection
from headrace.quota_callbacks.testing import make_context

if TYPE_CHECKING:
    from headrace.quota_callbacks.hookspecs import PluginContext

READ_ORDERS = Action(Operation.READ, ResourceType.TOPIC, "orders")
BOB: dict[str, Any] = {"principal": "User:bob", "operations": ["Read"], "resource_type": "topic", "name": "orders"}


def configured(*rules: dict[str, Any], **options: Any) -> Authorization:
    made = Authorization()
    made.configure(make_context({"enabled": True, "rules": list(rules), **options}))
    return made


def connection(user: str = "bob", host: str = "10.0.0.1") -> Connection:
    return Connection(connection_id=1, peer=Address(host=host, port=1), user=user)


def test_it_takes_no_part_without_options() -> None:
    made = Authorization()
    made.configure(make_context())
    assert not made.authorizes_requests()
    assert configured().authorizes_requests()


def test_names_of_topics_are_learned_only_if_it_is_enabled() -> None:
    for enabled in (True, False):
        given: PluginContext = make_context({"enabled": enabled})
        Authorization().configure(given)
        assert given.topics.followed is enabled


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"principal": "bob"}, 'expected "User:" and a name'),
        ({"principal": None}, "expected either this or users"),
        ({"users": ["bob"]}, "expected either this or users"),
        ({"principal": None, "users": ["bob", "*"]}, 'for everybody write principal = "User:*"'),
        ({"operations": ["read"]}, 'did you mean "Read"?'),
        ({"operations": []}, "a list of operations"),
        ({"resource_type": "topics"}, 'did you mean "topic"?'),
        ({"name": None}, "required"),
        ({"resource_type": "cluster", "name": "orders"}, "the cluster has no other name"),
        ({"hosts": ["example.com"]}, "expected an IP address"),
        ({"effect": "permit"}, '"allow" or "deny"'),
    ],
)
def test_an_invalid_rule_is_an_error_that_names_it(rule: dict[str, Any], message: str) -> None:
    given = {key: value for key, value in {**BOB, **rule}.items() if value is not None}
    with pytest.raises(OptionsError) as caught:
        configured(BOB, given)
    assert message in str(caught.value)
    assert "plugins.options.authorization.rules[1]" in str(caught.value)


def test_rules_that_nobody_would_enforce_are_an_error() -> None:
    with pytest.raises(OptionsError, match="have no effect without enabled = true"):
        Authorization().configure(make_context({"rules": [BOB]}))


def test_a_denial_is_explained_by_its_rule() -> None:
    deny = {**BOB, "effect": "deny", "pattern_type": "prefixed", "name": "or", "hosts": ["10.0.0.2"]}
    made = configured(BOB, deny)
    assert made.authorize_requests(connection(), [READ_ORDERS]) == [True]
    assert made.explain_denial(connection(), READ_ORDERS) is None
    elsewhere = connection(host="10.0.0.2")
    assert made.authorize_requests(elsewhere, [READ_ORDERS]) == [False]
    assert made.explain_denial(elsewhere, READ_ORDERS) == "rule 2 denies Read on Topic or* to bob at 10.0.0.2"
    assert made.explain_denial(connection("eve"), READ_ORDERS) == "no rule allows it"


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("192.0.2.7", "::ffff:192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "::ffff:c000:207"),
        ("fe80::1", "fe80::1%eth0"),
        ("FE80:0::1", "fe80::1"),
    ],
)
def test_a_rule_is_for_an_address_in_each_of_its_forms(written: str, seen: str) -> None:
    deny = {**BOB, "effect": "deny", "hosts": [written]}
    made = configured(BOB, deny)
    assert made.authorize_requests(connection(host=seen), [READ_ORDERS]) == [False]
    explained = made.explain_denial(connection(host=seen), READ_ORDERS)
    assert explained is not None
    assert explained.startswith("rule 2 denies")
    assert made.authorize_requests(connection(host="192.0.2.8"), [READ_ORDERS]) == [True]


def test_kept_decisions_are_those_of_the_user_that_asks() -> None:
    made = configured(BOB)
    same = connection()
    assert made.authorize_requests(same, [READ_ORDERS]) == [True]
    same.user = "eve"  # the same connection, authenticated again
    assert made.authorize_requests(same, [READ_ORDERS]) == [False]


def test_names_that_clients_choose_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "KEPT_DECISIONS", 100)
    made = configured(BOB)
    tracemalloc.start()
    try:
        for number in range(300):
            for length in (32_000, 100):
                name = f"{number:0{length}}"
                made.authorize_requests(connection(), [Action(Operation.READ, ResourceType.GROUP, name)])
        held, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000


def test_ten_thousand_rules_cost_no_more_than_a_few() -> None:
    many = [
        {**BOB, "name": f"topic-{number}", "pattern_type": ("literal", "prefixed")[number % 2]}
        for number in range(10_000)
    ]
    actions = [Action(Operation.READ, ResourceType.TOPIC, f"topic-{number}") for number in range(0, 10_000, 10)]

    def seconds(made: Authorization) -> float:
        found = []
        for _ in range(5):
            made._kept.clear()
            began_s = time.process_time()
            made.authorize_requests(connection(), actions)
            found.append(time.process_time() - began_s)
        return min(found)

    assert seconds(configured(*many)) < 20 * seconds(configured(*many[:10])) + 0.01


def test_rules_change_when_the_whole_configuration_is_valid() -> None:
    made = configured(BOB)
    assert made.authorize_requests(connection(), [READ_ORDERS]) == [True]
    put_into_force = made.changed_options({"enabled": True})
    assert made.authorize_requests(connection(), [READ_ORDERS]) == [True]
    assert put_into_force is not None
    put_into_force()
    assert made.authorize_requests(connection(), [READ_ORDERS]) == [False]


def test_invalid_rules_change_nothing_and_enabling_needs_a_restart() -> None:
    made = configured(BOB)
    with pytest.raises(OptionsError, match=r"plugins\.options\.authorization\.rules"):
        made.changed_options({"enabled": True, "rules": [{}]})
    assert made.changed_options({}) is None
    assert made.authorize_requests(connection(), [READ_ORDERS]) == [True]
