"""The page about quotas of teams and topics: what it configures is valid, and it names what the plugins have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import ShellComplete

from headrace.config import check_quota_names, loads
from headrace.plugins.team_quotas import TeamQuotas
from headrace.plugins.team_quotas.options import Team
from headrace.plugins.topic_quotas import TopicQuotas
from headrace.plugins.topic_quotas.plugin import ALONE_MS
from headrace.proxy.cli import main
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.buckets.client_quotas import MAX_BUCKETS
from headrace.quota_callbacks.options import fields_by_key
from headrace.quota_callbacks.testing import make_context
from testbed.proxy_process import ProxyProcess
from tests.proxy.quota_tools.commands import run

if TYPE_CHECKING:
    import pytest

    from tests.shared_cluster import FirstBroker

PAGE = (Path(__file__).parents[2] / "docs" / "team-and-topic-quotas.md").read_text(encoding="utf-8")
(CONFIG,) = re.findall(r"```toml.*?\n(.*?)```", PAGE, re.DOTALL)


def test_the_configuration_is_valid() -> None:
    config = loads(CONFIG, schema=None)
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
    assert f"limited to {MAX_BUCKETS:,}" in PAGE
    assert ALONE_MS == 60_000
    assert "one by one for a minute" in PAGE


def test_the_commands_print_what_it_shows(kafka: FirstBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(tmp_path / "headrace.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    sections = f'[client_quotas]\nfile = "{tmp_path}/quotas.sqlite"\n\n[plugins.{CONFIG.partition("[plugins.")[2]}'
    (session,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    with ProxyProcess(kafka.bootstrap_servers, config=sections) as proxy:
        environment = {"HEADRACE_BOOTSTRAP_SERVER": proxy.bootstrap_servers}
        for part in session.split("$ headrace ")[1:]:
            command, _, expected = part.partition("\n")
            ran = run(*shlex.split(command), environment=environment)
            assert (ran.status, ran.out, ran.err) == (0, expected, ""), command
        (quota,) = run(
            *("quotas", "resolve", "--config", "headrace.toml", "--names", "team=payments", "--json"),
            environment=environment,
        ).json["resolved"][:1]
        assert quota["source"] == {"team": "payments"}
        ran = run("quotas", "resolve", "--names", "user=alice", environment=environment)
        assert (ran.status, ran.out) == (0, "")
        assert "warning: the cluster has quotas of team, topic, which may apply, too; give the proxy's" in ran.err
        for command in (("quotas", "resolve"), ("client-quotas", "--resolve")):
            ran = run(*command, "--names", "topic=orders.*", environment=environment)
            assert (ran.status, ran.out.splitlines()[1]) == (0, "producer_byte_rate=5242880 {topic=orders.*}")
            assert "warning: of topic, only quotas of exactly this name and of the default are found; " in ran.err
    shell = ShellComplete(main, {}, "headrace", "_HEADRACE_COMPLETE")
    for configured, expected in ((["--config", "headrace.toml"], ["topic="]), ([], [])):
        found = shell.get_completions(["quotas", "resolve", *configured, "--names"], "to")
        assert [each.value for each in found] == expected
