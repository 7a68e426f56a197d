"""Finding plugins, rejecting unsuitable ones, and calling the hooks that do not concern one request."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import Choice, installed_plugins, load_plugins, new_plugin_manager, register
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, hookimpl
from headrace.quota_callbacks.identities import QuotaOperation
from headrace.quota_callbacks.policies import Quota
from headrace.quota_callbacks.requests import Address, ClusterMetadata, Connection

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.quota_callbacks import hookspecs

KEY = QuotaKey.CONSUMER_BYTE_RATE
BUILT_IN = {"byte_rate", "default_quotas", "tracing"}


def hooks_of(*plugins: Any, options: Mapping[str, Mapping[str, Any]] | None = None) -> HookCalls:
    manager = new_plugin_manager()
    for number, plugin in enumerate((DefaultQuotaCallback(), *plugins)):
        register(manager, f"plugin-{number}", plugin)
    hooks = HookCalls(manager)
    quotas = ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()), metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit
    )
    hooks.configure(quotas, options or {})
    hooks.flatten()
    return hooks


class Plugin:
    headrace_hooks = HOOK_VERSION


# --- loading ---


def test_the_built_ins_are_found_as_a_strangers_plugin_is() -> None:
    manager = new_plugin_manager()
    load_plugins(manager, Choice())
    assert {name for name, _ in manager.list_name_plugin()} >= BUILT_IN


def test_a_built_in_can_be_disabled() -> None:
    manager = new_plugin_manager()
    load_plugins(manager, Choice(disabled=("byte_rate",)))
    assert "byte_rate" not in {name for name, _ in manager.list_name_plugin()}


def test_disabling_what_is_not_there_is_an_error_that_lists_what_is() -> None:
    message = (
        r"plugins.disabled names 'byterate'.*installed: authorization, byte_rate, controller_mutation, default_quotas"
    )
    with pytest.raises(StartupError, match=message):
        load_plugins(new_plugin_manager(), Choice(disabled=("byterate",)))


@pytest.mark.parametrize("kind", ["class", "instance", "module"])
def test_plugins_are_loaded_by_import_path(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    module = ModuleType("strangers")
    monkeypatch.setitem(sys.modules, "strangers", module)
    module.headrace_hooks = HOOK_VERSION  # type: ignore[attr-defined]
    module.Mine = Plugin  # type: ignore[attr-defined]
    module.mine = Plugin()  # type: ignore[attr-defined]
    path = {"class": "strangers:Mine", "instance": "strangers:mine", "module": "strangers"}[kind]
    manager = new_plugin_manager()
    load_plugins(manager, Choice(load=(path,)))
    found = manager.get_plugin(path)
    assert found is module if kind == "module" else isinstance(found, Plugin)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module_here:Plugin", "plugin 'no_such_module_here:Plugin' cannot be loaded: there is no module"),
        ("no_such_package.plugin", "there is no module 'no_such_package'; Python searches "),
        ("headrace.nothing", "cannot be loaded: ModuleNotFoundError: No module named 'headrace.nothing'"),
        ("headrace.quota_callbacks.builtin.byte_rate:Nothing", "cannot be loaded: AttributeError"),
        (
            "headrace.quota_callbacks.entities",
            "does not declare the version of the hooks that it requires: set headrace_hooks = 1",
        ),
    ],
)
def test_what_cannot_be_loaded_is_named(path: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        load_plugins(new_plugin_manager(), Choice(load=(path,)))


@pytest.mark.parametrize(("variable", "named"), [("", "not set"), ("/opt/one:/opt/two", "/opt/one:/opt/two")])
def test_a_module_that_is_not_on_the_path(
    variable: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message states the module, where Python searches and how to install it, but not all of ``sys.path``."""
    (tmp_path / "imports_a_missing_module.py").write_text("import not_installed_here\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", variable)
    where = (
        f"Python searches headrace's virtual environment, {sys.prefix}, and the directories of PYTHONPATH, which is"
        f" {named}: install the package with {sys.executable} -m pip install PACKAGE, or add the module's directory to"
        " PYTHONPATH"
    )
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    problems = {
        "not_installed_here": "there is no module 'not_installed_here'",
        "imports_a_missing_module": "it imports 'not_installed_here', which is not installed",
    }
    for path, problem in problems.items():
        with pytest.raises(StartupError) as caught:
            load_plugins(new_plugin_manager(), Choice(disabled=installed_plugins(), load=(path,)))
        assert str(caught.value) == f"plugin {path!r} cannot be loaded: {problem}; {where}"


@pytest.mark.parametrize("package", ["config", "pipeline", "plugins", "proxy", "quota_callbacks"])
@pytest.mark.parametrize("other", [False, True], ids=["no such package", "another package of this name"])
def test_a_plugin_that_imports_the_packages_by_their_earlier_names(
    package: str, other: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another package of this name, such as PyPI's config, lacks what the plugin imports from it."""
    name = package if other else f"{package}.anything"
    (tmp_path / "made_for_earlier_names.py").write_text(f"from {name} import hookimpl\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, package, ModuleType(package) if other else None)
    path = "made_for_earlier_names"
    message = (
        f"plugin {path!r} cannot be loaded: it imports {name!r}, but this version of headrace has its packages as"
        f" headrace.{package} and so on; change the plugin's imports, or install a release of it for this version"
    )
    with pytest.raises(StartupError, match=f"^{re.escape(message)}$"):
        load_plugins(new_plugin_manager(), Choice(disabled=installed_plugins(), load=(path,)))


def test_a_plugin_in_a_folder_of_an_earlier_name_that_is_not_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plugins", None)  # as if the source tree were not on the path
    message = r"^plugin 'plugins.mine:Plugin' cannot be loaded: there is no module 'plugins.mine'; Python searches "
    with pytest.raises(StartupError, match=message):
        load_plugins(new_plugin_manager(), Choice(disabled=installed_plugins(), load=("plugins.mine:Plugin",)))


def test_a_plugin_made_for_another_version_is_refused_with_a_sentence() -> None:
    class Old:
        headrace_hooks = 0

    expected = r"plugin 'old' requires version 0 of the hooks; this headrace has version 1. Install .* plugins.disabled"
    with pytest.raises(StartupError, match=expected):
        register(new_plugin_manager(), "old", Old())


def test_a_hook_that_does_not_exist_is_refused() -> None:
    class Misspelt(Plugin):
        @hookimpl
        def request_recieved(self) -> None: ...

    with pytest.raises(StartupError, match=r"'misspelt'.*request_recieved"):
        register(new_plugin_manager(), "misspelt", Misspelt())


def test_an_argument_that_does_not_exist_is_refused() -> None:
    class Wrong(Plugin):
        @hookimpl
        def quota_limit(self, nonsense: object) -> None: ...

    with pytest.raises(StartupError, match=r"'wrong' was rejected:.*nonsense"):
        register(new_plugin_manager(), "wrong", Wrong())


def test_a_plugin_that_cannot_be_made_is_named() -> None:
    class Picky(Plugin):
        def __init__(self, needed: str) -> None: ...

    with pytest.raises(StartupError, match=r"plugin 'picky' cannot be instantiated: TypeError"):
        register(new_plugin_manager(), "picky", Picky)


def test_wrappers_are_refused() -> None:
    class Wrapper(Plugin):
        @hookimpl(wrapper=True)
        def request_received(self) -> Any:
            yield

    with pytest.raises(StartupError, match="wraps 'request_received'; hooks of headrace do not support wrappers"):
        register(new_plugin_manager(), "wrapper", Wrapper())


# --- life cycle ---


def test_configure_hands_each_plugin_its_own_options() -> None:
    seen: list[Mapping[str, Any]] = []

    class Curious(Plugin):
        @hookimpl
        def configure(self, context: hookspecs.PluginContext) -> None:
            seen.append(context.options)

    hooks_of(Curious(), Curious(), options={"plugin-2": {"colour": "blue"}})
    assert sorted(seen, key=len) == [{}, {"colour": "blue"}]


def test_options_that_make_no_sense_stop_the_start() -> None:
    class Strict(Plugin):
        @hookimpl
        def configure(self, context: hookspecs.PluginContext) -> None:
            raise ValueError("colour must be a colour")

    with pytest.raises(StartupError, match="plugin 'plugin-1': colour must be a colour"):
        hooks_of(Strict())


def test_close_reaches_every_plugin_though_one_raises() -> None:
    closed: list[str] = []

    class Clean(Plugin):
        @hookimpl
        def close(self) -> None:
            closed.append("clean")

    class Dirty(Plugin):
        @hookimpl
        def close(self) -> None:
            raise OSError("stuck")

    hooks = hooks_of(Clean(), Dirty(), Clean())
    hooks.close()
    assert closed == ["clean", "clean"]
    assert hooks.failures == {"plugin-2": 1}


def test_collect_metrics() -> None:
    class Metered(Plugin):
        @hookimpl
        def collect_metrics(self) -> list[Metric]:
            return [Metric(name="things", help="Things.", value=3)]

    class Broken(Plugin):
        @hookimpl
        def collect_metrics(self) -> list[Metric]:
            raise RuntimeError

    assert [metric.value for metric in hooks_of(Metered(), Broken()).collect_metrics()] == [3]


# --- KIP-257 ---


class Teams(Plugin):
    """Groups users by the part of their name before the dash."""

    limit: float | None = 100.0

    @hookimpl
    def quota_metric_tags(self, key: QuotaKey, user: str) -> Mapping[str, str] | None:
        return {"team": user.partition("-")[0]} if "-" in user else None

    @hookimpl
    def quota_limit(self, tags: Mapping[str, str]) -> float | None:
        return self.limit if "team" in tags else None


def test_a_custom_callback_replaces_the_choice_of_tags_and_the_limit() -> None:
    hooks = hooks_of(Teams())
    hooks.update_quota(KEY, QuotaEntity(user="solo"), Quota(value=7))
    assert hooks.quotas is not None
    hooks.quotas.quotas_changed()
    ann, bob = hooks.quotas.bucket(KEY, "blue-ann", "c"), hooks.quotas.bucket(KEY, "blue-bob", "d")
    assert ann is bob
    assert ann is not None
    assert ann.limit == 100
    solo = hooks.quotas.bucket(KEY, "solo", "c")
    assert solo is not None
    assert (solo.limit, solo.entity) == (7, "user=solo")


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_infinite_or_not_above_zero_is_the_plugins_error(limit: float) -> None:
    teams = Teams()
    teams.limit = limit
    hooks = hooks_of(teams)
    assert hooks.quota_limit(KEY, {"team": "blue"}) is None
    assert hooks.failures == {"plugin-1": 1}


def test_tags_of_a_plugin_that_raises_are_passed_over() -> None:
    class Broken(Plugin):
        @hookimpl
        def quota_metric_tags(self) -> Mapping[str, str]:
            raise RuntimeError

    hooks = hooks_of(Broken())
    hooks.update_quota(KEY, QuotaEntity(user="u"), Quota(value=7))
    assert hooks.quota_metric_tags(KEY, "u", "c") == {"user": "u", "client-id": ""}


def test_update_and_remove_quota_reach_every_callback() -> None:
    seen: list[tuple[Any, ...]] = []

    class Listening(Plugin):
        @hookimpl
        def update_quota(self, key: QuotaKey, entity: QuotaEntity, value: float) -> bool:
            seen.append(("update", key, entity, value))
            return False

        @hookimpl
        def remove_quota(self, key: QuotaKey, entity: QuotaEntity) -> bool:
            seen.append(("remove", key, entity))
            return False

    hooks = hooks_of(Listening())
    alice = QuotaEntity(user="alice")
    hooks.update_quota(KEY, alice, Quota(value=5))
    hooks.remove_quota(KEY, alice)
    assert seen == [("update", KEY, alice, 5), ("remove", KEY, alice)]
    assert hooks.quota_metric_tags(KEY, "alice", "c") is None


@pytest.mark.parametrize("changed", [True, False])
def test_update_cluster_metadata_may_change_limits(changed: bool) -> None:
    class Aware(Plugin):
        @hookimpl
        def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
            return changed

    hooks = hooks_of(Aware())
    assert hooks.quotas is not None
    before = hooks.quotas.generation
    hooks.update_cluster_metadata(ClusterMetadata(cluster_id="k", controller_id=1, brokers=()))
    assert (hooks.quotas.generation > before) is changed


def test_quota_reset_required_is_polled_for_every_request() -> None:
    polled: list[QuotaKey] = []

    class Restless(Plugin):
        @hookimpl
        def quota_reset_required(self, key: QuotaKey) -> bool:
            polled.append(key)
            return key is KEY

        @hookimpl
        def request_received(self) -> None: ...

    from headrace.quota_callbacks.requests import Request

    hooks = hooks_of(Restless())
    assert hooks.quotas is not None
    before = hooks.quotas.generation
    request = Request(Connection(connection_id=1, peer=Address(host="h", port=1)), ApiKey.METADATA, 0, 0, "c", 9, 0.0)
    for _ in range(2):
        hooks.request_received(hooks.request_callbacks(ApiKey.METADATA), request, 0)
    assert polled == [*QuotaKey, *QuotaKey]
    assert hooks.quotas.generation == before + 2


# --- other hooks ---


def test_the_first_plugin_that_decides_authorizes() -> None:
    asked: list[QuotaOperation] = []

    def authorizing(answer: object) -> Plugin:
        class Authorizing(Plugin):
            @hookimpl
            def authorize_quotas(self, operation: QuotaOperation) -> Any:
                asked.append(operation)
                if answer == "raises":
                    raise RuntimeError("no list of administrators")
                return answer

        return Authorizing()

    client = Connection(connection_id=1, peer=Address(host="h", port=1))
    for answers, expected in (
        ((None,), None),
        ((True, None), True),  # the plugin that was registered last is asked first
        ((False, True), True),
        ((True, False), False),
        ((True, "yes"), False),
        ((True, "raises"), False),
    ):
        hooks = hooks_of(*map(authorizing, answers))
        assert hooks.authorize_quotas(client, QuotaOperation.ALTER) is expected, answers
    assert set(asked) == {QuotaOperation.ALTER}


def test_enforced_quotas_are_collected() -> None:
    class Enforcing(Plugin):
        @hookimpl
        def enforced_quotas(self) -> frozenset[QuotaKey]:
            return frozenset({QuotaKey.PRODUCER_IDS_RATE})

    assert hooks_of(Enforcing()).enforced.keys == {QuotaKey.PRODUCER_IDS_RATE}


def test_request_interest_narrows_what_a_plugin_hears() -> None:
    from headrace.quota_callbacks.requests import Detail, Interest

    class Narrow(Plugin):
        @hookimpl
        def request_interest(self) -> list[Interest]:
            return [Interest(api_key=ApiKey.METADATA), Interest(api_key=ApiKey.CREATE_TOPICS, detail=Detail.BODY)]

        @hookimpl
        def request_received(self) -> None: ...

        @hookimpl
        def response_received(self) -> None: ...

        @hookimpl
        def request_completed(self) -> None: ...

    hooks = hooks_of(Narrow())
    for callbacks in (hooks.request_callbacks, hooks.response_callbacks):
        assert [key for key in range(100) if callbacks(key)] == [ApiKey.METADATA, ApiKey.CREATE_TOPICS]
    assert hooks.completions == {ApiKey.METADATA, ApiKey.CREATE_TOPICS}
    assert hooks.bodies == {ApiKey.CREATE_TOPICS}


def test_connection_opened_and_closed_are_called() -> None:
    calls: list[Any] = []

    class Watching(Plugin):
        @hookimpl
        def connection_opened(self, connection: Connection) -> None:
            calls.append(connection.connection_id)

        @hookimpl
        def connection_closed(self, connection: Connection, reason: str | None) -> None:
            calls.append((connection.connection_id, reason))

    hooks = hooks_of(Watching())
    connection = Connection(connection_id=4, peer=Address(host="h", port=1))
    hooks.connection_opened(connection)
    hooks.connection_closed(connection, "gone")
    assert calls == [4, (4, "gone")]
