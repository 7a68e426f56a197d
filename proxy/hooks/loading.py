"""Finding and registering plugins: by entry point, and by import path from the configuration.

Built-in plugins are registered in the same way as any other. Called by the server once, at its start, and by the check
of configuration files; tests register instances directly.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

import pluggy

from headrace.proxy.errors import StartupError
from headrace.quota_callbacks import hookspecs
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ENTRY_POINT_GROUP: Final = "headrace.plugins"
VERSION_ATTRIBUTE: Final = "headrace_hooks"
BARE_NAMES: Final = frozenset({"config", "pipeline", "plugins", "proxy", "quota_callbacks"})
"""Top-level names of the packages in earlier versions, which are now subpackages of ``headrace``."""


def new_plugin_manager() -> pluggy.PluginManager:
    """Return a plugin manager with the hook specifications and without plugins."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def load_plugins(manager: pluggy.PluginManager, *, disabled: Iterable[str], load: Iterable[str]) -> None:
    """Register the plugins of all entry points, except ``disabled``, and then every import path of ``load``.

    Raises `StartupError` with the plugin's name if it cannot be imported, requires another version of the hooks, or
    implements a hook that does not exist.
    """
    for name, plugin in imported_plugins(disabled=disabled, load=load):
        register(manager, name, plugin)


def imported_plugins(*, disabled: Iterable[str], load: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Import the plugins of all entry points, except ``disabled``, and of ``load``; yield each with its name.

    Raises `StartupError` for a plugin that cannot be imported, and for an unknown name in ``disabled``.
    """
    disabled_names = set(disabled)
    points = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)
    unknown = disabled_names - {point.name for point in points}
    if unknown:
        known = ", ".join(point.name for point in points)
        raise StartupError(f"plugins.disabled names {min(unknown)!r}, but there is no such plugin; installed: {known}")
    for point in points:
        if point.name not in disabled_names:
            yield point.name, _import(point.name, point.value)
    for path in load:
        yield path, _import(path, path)


def installed_plugins() -> tuple[str, ...]:
    """Return the names of all installed plugins without importing them."""
    return tuple(sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP)))


def register(manager: pluggy.PluginManager, name: str, plugin: Any) -> None:
    """Register one plugin: a module, an instance, or a class that is instantiated without arguments.

    Raises `StartupError` if the plugin does not fit this version of the hooks.
    """
    required = getattr(plugin, VERSION_ATTRIBUTE, None)
    if required is None:
        raise StartupError(
            f"plugin {name!r} does not declare the version of the hooks that it requires:"
            f" set {VERSION_ATTRIBUTE} = {HOOK_VERSION}"
        )
    if required != HOOK_VERSION:
        raise StartupError(
            f"plugin {name!r} requires version {required!r} of the hooks; this headrace has version {HOOK_VERSION}."
            " Install a release of the plugin for this version, or list it in plugins.disabled"
        )
    instance = _instance(name, plugin)
    try:
        manager.register(instance, name=name)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        raise StartupError(f"plugin {name!r} was rejected: {_joined_lines(error)}") from error
    _check_hook_names(manager, name, instance)


def _instance(name: str, plugin: Any) -> Any:
    if not inspect.isclass(plugin):
        return plugin
    try:
        return plugin()
    except Exception as error:
        raise StartupError(f"plugin {name!r} cannot be instantiated: {type(error).__name__}: {error}") from error


def _check_hook_names(manager: pluggy.PluginManager, name: str, plugin: Any) -> None:
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is not None and (options.get("wrapper") or options.get("hookwrapper")):
            raise StartupError(f"plugin {name!r} wraps {attribute!r}; hooks of headrace do not support wrappers")
        if options is not None and not hasattr(hookspecs, options.get("specname") or attribute):
            raise StartupError(f"plugin {name!r} implements {attribute!r}, which is not a hook of headrace")


def _import(name: str, path: str) -> Any:
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
        return getattr(module, attribute) if attribute else module
    except ModuleNotFoundError as error:
        raise StartupError(_missing_module(name, module_name, error)) from error
    except Exception as error:
        raise StartupError(f"plugin {name!r} cannot be loaded: {type(error).__name__}: {error}") from error


def _missing_module(name: str, module: str, error: ModuleNotFoundError) -> str:
    """Return the message for a plugin whose module does not exist, or which imports one that does not exist."""
    missing = error.name or ""
    package = missing.partition(".")[0]
    if package not in BARE_NAMES:
        if package in ("", "headrace"):
            return f"plugin {name!r} cannot be loaded: {type(error).__name__}: {error}"
        is_itself = module == missing or module.startswith(f"{missing}.")
        problem = f"there is no module {missing!r}" if is_itself else f"it imports {missing!r}, which is not installed"
        return f"plugin {name!r} cannot be loaded: {problem}; {_module_search_help()}"
    return (
        f"plugin {name!r} cannot be loaded: it imports {missing!r}, but this version of headrace has its packages as"
        f" headrace.{package} and so on; change the plugin's imports, or install a release of it for this version"
    )


def _module_search_help() -> str:
    """Return where Python searches for modules and how to add one, without listing all of ``sys.path``."""
    kind = "virtual environment" if sys.prefix != sys.base_prefix else "installation of Python"
    variable = os.environ.get("PYTHONPATH")
    return (
        f"Python searches headrace's {kind}, {sys.prefix}, and the directories of PYTHONPATH, which is"
        f" {variable or 'not set'}: install the package with {sys.executable} -m pip install PACKAGE, or"
        " add the module's directory to PYTHONPATH"
    )


def _joined_lines(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
