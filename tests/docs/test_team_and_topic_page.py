"""The page about quotas of teams and topics: what it configures is valid, and it names what the plugins have."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.config import check_quota_names, loads
from headrace.plugins.team_quotas import TeamQuotas
from headrace.plugins.team_quotas.options import Team
from headrace.plugins.topic_quotas import TopicQuotas
from headrace.proxy.hooks.calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.proxy.wire.walks import fetched_topics, produce
from headrace.quota_callbacks.buckets.client_quotas import MAX_BUCKETS
from headrace.quota_callbacks.options import fields_by_key
from headrace.quota_callbacks.testing import make_context

PAGE = (Path(__file__).parents[2] / "docs" / "team-and-topic-quotas.md").read_text(encoding="utf-8")


def test_the_configuration_is_valid() -> None:
    (text,) = re.findall(r"```toml.*?\n(.*?)```", PAGE, re.DOTALL)
    config = loads(text, schema=None)
    manager = new_plugin_manager()
    for name, plugin in {"team_quotas": TeamQuotas(), "topic_quotas": TopicQuotas()}.items():
        register(manager, name, plugin)
    hooks = HookCalls(manager)
    hooks.configure(make_context().quotas, config.plugins.options)
    hooks.flatten()
    check_quota_names(config, hooks.schema)
    assert {str(entity) for entity in config.entity_quotas()} == {
        "team=payments",
        "topic=orders.*",
        "topic=<default>",
    }


def test_every_option_of_a_team_stands_there() -> None:
    for key in fields_by_key(Team):
        assert f"| `{key}` |" in PAGE


def test_the_bounds_are_those_of_the_code() -> None:
    assert produce.MAX_BATCHES == fetched_topics.MAX_TOPICS == 4096
    assert "more than 4,096 record batches" in PAGE
    assert f"limited to {MAX_BUCKETS:,}" in PAGE
