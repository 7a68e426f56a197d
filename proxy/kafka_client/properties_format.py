"""The format of Java's properties files, and of the JAAS entry in ``sasl.jaas.config``.

Source: ``java.util.Properties.load``, ``org.apache.kafka.common.security.JaasConfig``.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.proxy.kafka_client.errors import SettingsError

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(u)|(.))", re.DOTALL)
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_BACKSLASHES: Final = re.compile(r"\\+$")
_LAST_BACKSLASH: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[\r\n]\Z")
"""A backslash before a line break of one character at the end of the file. Java ignores that line break."""
_BLANKS: Final = " \t\f"

_JAAS_WORD: Final = re.compile(r"""\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s"';=]+)|([;=]))""")


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties of a file in Java's format; if a key occurs several times, its last value counts.

    Raises `SettingsError` with the number of a line that is not valid. No error contains a value.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        matched = _KEY.fullmatch(line)
        if matched is None:
            raise SettingsError(f"line {number}: expected key=value")
        found[_unescaped(matched[1], number)] = _unescaped(matched[2], number)
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines with their numbers, without comments and blank lines. Continued lines are joined."""
    lines: list[tuple[int, str]] = []
    continued = False
    if _LAST_BACKSLASH.search(text):
        text = text[:-1]
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = raw.lstrip(_BLANKS)
        if continued and not lines[-1][1]:  # nothing but a backslash so far: a new line
            lines.pop()
            continued = False
        if not continued and (not line or line[0] in "#!"):
            continue
        ending = _BACKSLASHES.search(line)
        goes_on = ending is not None and len(ending[0]) % 2 == 1
        content = line[:-1] if goes_on else line
        if continued:
            first, before = lines[-1]
            lines[-1] = (first, before + content)
        else:
            lines.append((number, content))
        continued = goes_on
    return lines


def _unescaped(text: str, number: int) -> str:
    def replaced(found: re.Match[str]) -> str:
        code, malformed, letter = found.groups()
        if malformed:
            raise SettingsError(f"line {number}: \\u is not followed by four hexadecimal digits")
        return chr(int(code, 16)) if code else _ESCAPES.get(letter, letter)

    plain = _ESCAPED.sub(replaced, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Return the login module and the options of a JAAS entry: ``module required name="value" ...;``.

    Raises `SettingsError` for anything else. The text is in no error, since it has the password.
    """
    words = _jaas_words(text)
    if len(words) < 3 or words[-1] != (";", False):
        raise SettingsError('sasl.jaas.config: expected a login module, "required", options, and ";" at the end')
    (module, _), (flag, _), *rest = words[:-1]
    if flag.lower() not in ("required", "requisite", "sufficient", "optional"):
        raise SettingsError('sasl.jaas.config: expected "required" after the login module')
    options: dict[str, str] = {}
    for at in range(0, len(rest), 3):
        option = rest[at : at + 3]
        if len(option) < 3 or option[1] != ("=", False) or (";", False) in option:
            raise SettingsError('sasl.jaas.config: expected options such as username="alice"')
        options[option[0][0]] = option[2][0]
    return module, options


def _jaas_words(text: str) -> list[tuple[str, bool]]:
    """Return the words of the text, each with whether it was in quotes."""
    words = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _JAAS_WORD.match(text, at)
        if found is None:
            raise SettingsError("sasl.jaas.config: a quoted value is not closed")
        at = found.end()
        quoted = found[1] if found[1] is not None else found[2]
        if quoted is not None:
            words.append((re.sub(r"\\(.)", lambda each: _ESCAPES.get(each[1], each[1]), quoted, flags=re.DOTALL), True))
        else:
            words.append((found[3] or found[4], False))
    return words
