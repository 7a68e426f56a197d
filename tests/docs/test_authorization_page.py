"""The page about authorization: what it configures is valid, and it names what the plugin has."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.config import loads
from headrace.plugins.authorization import Authorization
from headrace.plugins.authorization.options import AuthorizationOptions, Resource, RuleOptions
from headrace.plugins.authorization.plugin import KEPT_DECISIONS
from headrace.quota_callbacks.authorization import Action, Operation, ResourceType
from headrace.quota_callbacks.options import fields_by_key
from headrace.quota_callbacks.testing import make_connection, make_context

PAGE = (Path(__file__).parents[2] / "docs" / "authorization.md").read_text(encoding="utf-8")
(CONFIG,) = re.findall(r"```toml.*?\n(.*?)```", PAGE, re.DOTALL)


def test_the_configuration_means_what_the_page_says() -> None:
    plugin = Authorization()
    plugin.configure(make_context(loads(CONFIG).plugins.options["authorization"]))
    alice = make_connection(user="alice")
    actions = [Action(Operation.WRITE, ResourceType.TOPIC, name) for name in ("orders.eu", "orders.secret", "other")]
    assert plugin.authorize_requests(alice, actions) == [True, False, False]
    assert plugin.authorize_requests(make_connection(user="admin"), actions) == [True, True, True]
    assert plugin.explain_denial(alice, actions[1]) in PAGE.replace("\n", " ")


def test_every_option_stands_there() -> None:
    for key in (*fields_by_key(AuthorizationOptions), *fields_by_key(RuleOptions)):
        assert f"| `{key}` |" in PAGE
    for name in (*Operation, *Resource):
        assert f"`{name}`" in PAGE
    assert f"{KEPT_DECISIONS:,} combinations" in PAGE
