"""Finding and registering plugins: by entry point, and by name or import path from the configuration.

Built-in plugins are registered in the same way as any other. Called by the server once, at its start, and by the check
of configuration files; tests register instances directly. Whatever a plugin raises, also ``SystemExit``, becomes a
`StartupError` with the plugin's name.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, entry_points, packages_distributions
from typing import TYPE_CHECKING, Any, Final

import pluggy
import structlog

from headrace.proxy.errors import StartupError
from headrace.quota_callbacks import hookspecs
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import EntryPoint

log = structlog.get_logger("headrace.plugins")

ENTRY_POINT_GROUP: Final = "headrace.plugins"
VERSION_ATTRIBUTE: Final = "headrace_hooks"
BARE_NAMES: Final = frozenset({"config", "pipeline", "plugins", "proxy", "quota_callbacks"})
"""Top-level names of the packages in earlier versions, which are now subpackages of ``headrace``."""


def new_plugin_manager() -> pluggy.PluginManager:
    """Return a plugin manager with the hook specifications and without plugins."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which plugins to load: the keys ``autoload``, ``disabled`` and ``load`` of the table ``plugins``."""

    autoload: bool = True
    disabled: Iterable[str] = ()
    load: Iterable[str] = ()


def load_plugins(manager: pluggy.PluginManager, choice: Choice) -> None:
    """Import and register the chosen plugins.

    Raises `StartupError` with the plugin's name if it cannot be imported, requires another version of the hooks, or
    implements a hook that does not exist.
    """
    for name, plugin in imported_plugins(choice):
        register(manager, name, plugin)


def imported_plugins(choice: Choice) -> Iterator[tuple[str, Any]]:
    """Import the chosen plugins; yield each with its name.

    Raises `StartupError` for a plugin that cannot be imported, for an unknown name in ``disabled``, and for a name that
    two distributions use.
    """
    for name, path, _ in _chosen(choice):
        yield name, _import(name, path)


def implements(choice: Choice, hook: str) -> bool:
    """Return whether one of the chosen plugins implements a hook. Imports them, and raises as `imported_plugins`."""
    manager = new_plugin_manager()
    return any(
        hook == (options.get("specname") or attribute)
        for _, plugin in imported_plugins(choice)
        for attribute in dir(plugin)
        if (options := manager.parse_hookimpl_opts(plugin, attribute)) is not None
    )


def log_plugins(choice: Choice) -> None:
    """Log the name of each chosen plugin, with the distribution that it comes from and its version."""
    by_origin: dict[tuple[str, str | None], list[str]] = {}
    for name, path, point in _chosen(choice):
        found = _distribution_of(path) if point is None else point.dist
        origin = ("none", None) if found is None else (found.name, found.version)
        by_origin.setdefault(origin, []).append(name)
    for (name, version), plugins in by_origin.items():
        log.info("plugins loaded", distribution=name, version=version, plugins=", ".join(plugins))


def installed_plugins() -> tuple[str, ...]:
    """Return the names of all installed plugins without importing them."""
    return tuple(sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP)))


def _chosen(choice: Choice) -> Iterator[tuple[str, str, EntryPoint | None]]:
    """Yield name, import path and entry point of the plugins to load; ``None`` for those of an import path."""
    points = _entry_points()
    disabled, load = set(choice.disabled), tuple(choice.load)
    if unknown := disabled - points.keys():
        raise StartupError(
            f"plugins.disabled names {min(unknown)!r}, but there is no such plugin; installed: {', '.join(points)}"
        )
    for name, point in points.items():
        if name not in disabled and (choice.autoload or name in load):
            yield name, point.value, point
    for path in load:
        if path not in points:
            yield path, path, None


def _entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of all plugins by name, in the order of names."""
    points: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        if (other := points.setdefault(point.name, point)) is not point:
            both = " and ".join(f"{each.dist.name} {each.dist.version}" for each in (other, point) if each.dist)
            raise StartupError(f"two plugins are called {point.name!r}: those of {both}; uninstall one of them")
    return points


def _distribution_of(path: str) -> Distribution | None:
    """Return the distribution that contains a module; ``None`` for one that is in a folder of the search path."""
    package = path.partition(":")[0].partition(".")[0]
    names = packages_distributions().get(package, ())
    return distribution(names[0]) if names else None


def register(manager: pluggy.PluginManager, name: str, plugin: Any) -> None:
    """Register one plugin: a module, an instance, or a class that is instantiated without arguments.

    Raises `StartupError` if the plugin does not fit this version of the hooks.
    """
    try:
        _register(manager, name, plugin)
    except StartupError:
        raise
    except BaseException as error:
        raise StartupError(f"plugin {name!r} cannot be registered: {type(error).__name__}: {error}") from error  # noqa: ASYNC104


def _register(manager: pluggy.PluginManager, name: str, plugin: Any) -> None:
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
    except BaseException as error:
        raise StartupError(f"plugin {name!r} cannot be instantiated: {type(error).__name__}: {error}") from error  # noqa: ASYNC104


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
    except ImportError as error:
        raise StartupError(_missing_module(name, module_name, error)) from error
    except BaseException as error:
        raise StartupError(f"plugin {name!r} cannot be loaded: {type(error).__name__}: {error}") from error  # noqa: ASYNC104


def _missing_module(name: str, module: str, error: ImportError) -> str:
    """Return the message for a plugin whose module does not exist, or which imports what does not exist."""
    missing = error.name or ""
    package = missing.partition(".")[0]
    is_itself = module == missing or module.startswith(f"{missing}.")
    if package in BARE_NAMES and not is_itself:
        return (
            f"plugin {name!r} cannot be loaded: it imports {missing!r}, but this version of headrace has its packages"
            f" as headrace.{package} and so on; change the plugin's imports, or install a release of it for this"
            " version"
        )
    if package in ("", "headrace") or not isinstance(error, ModuleNotFoundError):
        return f"plugin {name!r} cannot be loaded: {type(error).__name__}: {error}"
    problem = f"there is no module {missing!r}" if is_itself else f"it imports {missing!r}, which is not installed"
    return f"plugin {name!r} cannot be loaded: {problem}; {_module_search_help()}"


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
