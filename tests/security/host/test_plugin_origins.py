"""Plugins that are installed unasked: which distribution each comes from, and loading only those that are named."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.config.loading import loads
from headrace.config.problems import ConfigError
from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.loading import (
    Choice,
    imported_plugins,
    installed_plugins,
    load_plugins,
    log_plugins,
    new_plugin_manager,
)
from headrace.proxy.server.preflight import problems_of, warnings_of
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from testbed.proxy_process import ProxyProcess

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.quota_callbacks.requests import Connection
    from tests.shared_cluster import FirstBroker

MINIMAL = 'upstream.bootstrap_servers = ["kafka:9092"]\nlisten.address = "127.0.0.1:9192"\n'
QUOTA = '[[quotas]]\nentity = { user = "alice" }\nproducer_byte_rate = 5\n'
NAMED = ("byte_rate", "default_quotas")


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution, of which only another package's requirement is known, with a plugin."""
    info = tmp_path / "stranger-6.6.6.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 6.6.6\n")
    (info / "entry_points.txt").write_text("[headrace.plugins]\nstranger = stranger_module:Plugin\n")
    (info / "RECORD").write_text("stranger_module.py,,\nstranger-6.6.6.dist-info/METADATA,,\n")
    (tmp_path / "stranger_module.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n"
        "class Plugin:\n    headrace_hooks = 1\n"
    )
    (tmp_path / "own_module.py").write_text("class Plugin:\n    headrace_hooks = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def names_of(choice: Choice) -> list[str]:
    return [name for name, _ in imported_plugins(choice)]


def test_without_autoload_only_what_is_named_is_imported(stranger: Path) -> None:
    assert "stranger" in names_of(Choice(disabled=[name for name in installed_plugins() if name != "stranger"]))
    assert (stranger / "imported").exists()
    (stranger / "imported").unlink()
    assert names_of(Choice(autoload=False)) == []
    choice = Choice(autoload=False, load=(*NAMED, "own_module:Plugin"))
    assert names_of(choice) == [*NAMED, "own_module:Plugin"]
    assert not (stranger / "imported").exists()


def test_an_installed_plugin_may_be_named_with_autoload_too() -> None:
    manager = new_plugin_manager()
    load_plugins(manager, Choice(load=("byte_rate",)))
    assert [name for name, _ in manager.list_name_plugin()].count("byte_rate") == 1


def test_the_log_names_each_plugin_with_its_distribution(stranger: Path) -> None:
    choice = Choice(autoload=False, load=(*NAMED, "stranger", "own_module:Plugin", "structlog.testing:capture_logs"))
    with capture_logs() as lines:
        log_plugins(choice)
    assert [(line["distribution"], line["version"], line["plugins"]) for line in lines] == [
        ("headrace", version("headrace"), "byte_rate, default_quotas"),
        ("stranger", "6.6.6", "stranger"),
        ("none", None, "own_module:Plugin"),
        ("structlog", version("structlog"), "structlog.testing:capture_logs"),
    ]


def test_a_second_plugin_of_a_built_in_name_is_an_error_that_names_both(stranger: Path) -> None:
    (stranger / "stranger-6.6.6.dist-info" / "entry_points.txt").write_text(
        "[headrace.plugins]\ndefault_quotas = stranger_module:Plugin\n"
    )
    with pytest.raises(StartupError, match=r"two plugins are called 'default_quotas': those of .*stranger 6\.6\.6"):
        names_of(Choice())
    assert not (stranger / "imported").exists()


def test_a_proxy_that_loads_only_what_is_named(kafka: FirstBroker) -> None:
    config = f'[plugins]\nautoload = false\nload = ["byte_rate", "default_quotas"]\n{QUOTA}'
    with ProxyProcess(kafka.bootstrap_servers, config=config) as proxy:
        line = proxy.wait_for_log("plugins loaded")
        assert f"distribution=headrace version={version('headrace')} plugins='byte_rate, default_quotas'" in line
        assert proxy.stop() == 0
        assert proxy.log.count("plugins loaded") == 1


def test_a_quota_whose_plugin_is_not_named_prevents_the_start() -> None:
    config = loads(f"{MINIMAL}[plugins]\nautoload = false\nload = ['default_quotas']\n{QUOTA}")
    (problem,) = problems_of(config)
    assert "no loaded plugin enforces producer_byte_rate" in problem


def test_options_of_a_plugin_that_is_not_named_are_an_error() -> None:
    text = f"{MINIMAL}[plugins]\nautoload = false\n[plugins.options.tracing]\nenabled = true\n"
    with pytest.raises(ConfigError, match=r"this plugin is not loaded, since plugins\.autoload is false"):
        loads(text, plugins=installed_plugins())
    loads(text.replace("autoload = false", 'autoload = false\nload = ["tracing"]'), plugins=installed_plugins())


class NoUsers:
    headrace_hooks = HOOK_VERSION


class OwnUsers(NoUsers):
    @hookimpl(specname="authentication_started")
    def started(self, connection: Connection, mechanism: str) -> None:
        """Know no mechanism."""


def test_users_without_the_plugin_that_names_them_are_warned_about() -> None:
    config = loads(f"{MINIMAL}[plugins]\nautoload = false\nload = ['byte_rate', 'default_quotas']\n{QUOTA}")
    assert problems_of(config) == []
    (warning,) = warnings_of(config)
    assert "no loaded plugin determines users, so every connection is ANONYMOUS; add one that does to" in warning
    assert "sasl_identity" in warning.partition("plugins.load (installed: ")[2].partition(")")[0].split(", ")
    for loaded in ("sasl_identity", f"{__name__}:OwnUsers"):
        assert list(warnings_of(loads(f"{MINIMAL}[plugins]\nautoload = false\nload = ['{loaded}']\n{QUOTA}"))) == []
    (warning,) = warnings_of(loads(f"{MINIMAL}[plugins]\nautoload = false\nload = ['{__name__}:NoUsers']\n{QUOTA}"))
    assert "no loaded plugin determines users" in warning
