"""Values of a configuration and their paths as text for messages, in which secrets are hidden.

Used by `headrace.quota_callbacks.options` and by modules that report a value to an operator. Knows no declared keys: a
value is secret by the name of its setting.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from pydantic import SecretStr

Path: TypeAlias = tuple[str | int, ...]
"""The path of a value from the root of a document: names of tables and keys, and indices of arrays."""

LONGEST_VALUE: Final = 80
"""Maximum length of a value in an error message, in characters, so that the message stays on one line."""
HIDDEN: Final = "***"
"""Replaces secret values in messages."""

_SECRET: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|private|bearer|authorization|jaas|(api|access)[._-]?key|\.pem\b",
    re.IGNORECASE,
)
_USER_INFO: Final = re.compile(r"(?<=://)[^\s\"']*@|[^\s/@:\"']+:[^\s@\"']+@")
"""User name and password in a URL, or in an address without a scheme."""
_OPTIONS_OF_PLUGINS: Final = ("plugins", "options")
_OPTIONS: Final = "options"
"""The name of tables whose keys only a plugin knows. Those of a login (`_LOGIN`) may have secrets under any name."""
_LOGIN: Final = "sasl"
_SHORTEST_SECRET_NUMBER: Final = 4
"""Digits of a number that can be a secret; replacing a shorter one would distort the other numbers of a message."""
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def dotted(path: Path) -> str:
    """Return a path as a dotted TOML key, with array indices in brackets: ``quotas[2].entity.client-id``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if _BARE_KEY.fullmatch(step) else json.dumps(step, ensure_ascii=False)
            text += f".{name}" if text else name
    return text


def is_secret(name: object) -> bool:
    """Return whether the value of a setting with this name is a secret, or the path of a file with a secret.

    A path is treated as a secret, since the secret itself is easily written in its place.
    """
    return isinstance(name, str) and _SECRET.search(name) is not None


def value_text(path: Path, value: object) -> str:
    """Return the value at ``path`` as `toml_text`, or `HIDDEN` if it is or may contain a secret.

    Text in place of the options of plugins, or of one plugin, is hidden: it may be a whole table. So are the options of
    a login, and a table or a list in place of a key of it.
    """
    of_plugins = path == _OPTIONS_OF_PLUGINS[:1] or path[:-1] == _OPTIONS_OF_PLUGINS or path == _OPTIONS_OF_PLUGINS
    of_login = _LOGIN in path and (_OPTIONS in path[path.index(_LOGIN) :] or isinstance(value, Mapping))
    of_login |= path[-2:] == (_LOGIN, "user") and isinstance(value, list)
    if of_login or any(map(is_secret, path)) or (of_plugins and value and isinstance(value, str | list)):
        return HIDDEN
    return toml_text(value)


def without_secrets(message: str, settings: Mapping[str, object]) -> str:
    """Return a message in which the secrets among ``settings``, a table with tables in it, are replaced by `HIDDEN`."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            message = without_secrets(message, value)
        elif is_secret(name):
            for each in value if isinstance(value, list | tuple) else (value,):
                if (isinstance(each, str) and each) or len(str(each)) >= _SHORTEST_SECRET_NUMBER:
                    message = message.replace(str(each), HIDDEN)
    return without_user_info(message)


def without_user_info(text: str) -> str:
    """Return a text in which the user name and password of URLs and addresses are replaced by `HIDDEN`."""
    return _USER_INFO.sub(f"{HIDDEN}@", text) if "@" in text else text


def toml_text(value: object) -> str:
    """Return a value as TOML on one line, truncated to `LONGEST_VALUE` characters; secrets in tables are hidden."""
    toml = _toml(value)
    return toml if len(toml) <= LONGEST_VALUE else toml[: LONGEST_VALUE - 3] + "..."


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case SecretStr():
            return HIDDEN
        case str():
            return json.dumps(without_user_info(value), ensure_ascii=False)
        case Mapping():
            inside = ", ".join(
                f"{dotted((name,))} = {HIDDEN if is_secret(name) or name == _OPTIONS else _toml(item)}"
                for name, item in value.items()
            )
            return f"{{ {inside} }}" if inside else "{}"
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case dt.date() | dt.time():
            return value.isoformat()
        case int() if abs(value) >= 10**LONGEST_VALUE:  # str() refuses integers of over 4,300 digits
            return f"{value:#x}"
        case _:
            return str(value)
