"""The table ``[plugins]``: which plugins are loaded, and their options."""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from headrace.config.keys import Key, Section
from headrace.quota_callbacks.options import TRUE_OR_FALSE, Fault, Parsed, choice, list_of, text, validation_error
from headrace.quota_callbacks.units import duration

IMPORT_PATTERN: Final = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?"


class OnError(StrEnum):
    """What happens to a request if `request_received` of a plugin raises."""

    OPEN = "open"
    """The request is processed as if the plugin had returned ``None``."""
    CLOSED = "closed"
    """The request is refused, or its connection is closed if the protocol has no error for it."""


def _parse_options(raw: object) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(raw, Mapping):
        raise ValueError  # noqa: TRY004  reported like every invalid value
    faults = [
        Fault(path=(name,), found=options, rule=f"expected a table, headed [plugins.options.{name}]")
        for name, options in raw.items()
        if not isinstance(options, Mapping)
    ]
    if faults:
        raise validation_error(faults)
    return {name: dict(options) for name, options in raw.items()}


_OPTIONS: Final = Parsed(
    "a table for each plugin, headed [plugins.options.NAME]",
    _parse_options,
    {"type": "object", "additionalProperties": {"type": "object"}},
)


class Plugins(Section):
    """Which plugins are loaded, and their options. All installed plugins are loaded unless they are disabled."""

    autoload: Annotated[
        bool,
        TRUE_OR_FALSE,
        Key(
            "Whether all installed plugins are loaded; if false, only those that plugins.load names, built-in ones "
            "included.",
            restart=True,
        ),
    ] = True
    disabled: Annotated[
        tuple[Annotated[str, text("a plugin's name")], ...],
        list_of("a list of plugin names"),
        Key("Names of installed plugins (entry points headrace.plugins) that are not loaded.", restart=True),
    ] = ()
    load: Annotated[
        tuple[
            Annotated[
                str, text('an import path, such as "my_package.my_module:MyPlugin" or "my_module"', IMPORT_PATTERN)
            ],
            ...,
        ],
        list_of("a list of import paths"),
        Key("Import paths of further plugins (module, or module:object), and names of installed ones.", restart=True),
    ] = ()
    on_error: Annotated[
        OnError, choice(OnError), Key("What happens if a plugin raises: open forwards the request, closed refuses it.")
    ] = OnError.OPEN
    slow_call_s: Annotated[
        float,
        duration("1ms", "1h"),
        Key("Time after which a call of a plugin is logged and counted, since it stalls all clients meanwhile."),
    ] = 0.1
    options: Annotated[
        Mapping[str, Mapping[str, Any]],
        _OPTIONS,
        Key("A table of options for each plugin, which validates them.", restart=True),
        Field(repr=False),  # secrets may be among them
    ] = {}
