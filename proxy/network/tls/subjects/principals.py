"""The user that a client's certificate stands for: its subject, rewritten by mapping rules. Pure.

`distinguished_name` and `PrincipalRules` return what a broker with the same settings does, so that a client has the
same user at the proxy and at a broker. The certificate must have been verified before: nothing here checks a signature.
What a hostile certificate with a valid signature can cost is bounded by the constants below.

Source: ``DefaultKafkaPrincipalBuilder``, ``SslPrincipalMapper`` and ``ssl.principal.mapping.rules`` of Kafka 4.3;
``X500Principal.getName()`` of Java 17 and 21.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.proxy.errors import ClientFault
from headrace.proxy.network.tls.subjects.mapping_patterns import LINE_TERMINATORS, StepBudget, StepsExceededError
from headrace.proxy.network.tls.subjects.pattern_syntax import compile_pattern
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.proxy.network.tls.subjects.mapping_patterns import Pattern, Spans

MAX_SUBJECT_BYTES: Final = 8192
"""Maximum length of a subject, encoded: room for a name of `MAX_PRINCIPAL_CHARACTERS` with four bytes each."""
MAX_OID_BYTES: Final = 64
"""Maximum length of an attribute's type, encoded. Those in use have up to 20."""
MAX_RULES: Final = 64
"""Maximum number of rules. Kafka has no limit, but each is applied to each new subject until one matches."""
REMEMBERED_SUBJECTS: Final = 1024
"""Number of subjects whose users are remembered: at most 15 MiB, if all are as long as they may be and refused."""


class NoPrincipal(ClientFault):
    """No user follows from the client's certificate."""


class MalformedCertificate(NoPrincipal):
    """The subject of a certificate cannot be read."""


class NoMatchingRule(NoPrincipal):
    """No mapping rule matches the subject. A broker closes such a connection, too (``NoMatchingRule``)."""


# --- the subject of a certificate ---

_OBJECT_IDENTIFIER: Final = 0x06
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_EXPLICIT_VERSION: Final = 0xA0
_STRINGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString. Java 17 and 21 read each as UTF-8."""
_FIELDS_BEFORE_SUBJECT: Final = 5
"""Version, serial number, signature, issuer and validity (RFC 5280 section 4.1). The version can be absent."""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The types that RFC 2253 section 2.3 has names for."""
_ESCAPES: Final = str.maketrans({character: f"\\{character}" for character in ',=+<>#;"\\'} | {"\0": "\\00"})
_ESCAPED_OUTSIDE: Final = " \r"
"""Characters that are escaped at the ends of a value. RFC 2253 names the space alone."""
_ENCODED_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Element:
    """One element of DER within the certificate, whose content is from ``begin`` to ``end``."""

    tag: int
    start: int
    begin: int
    end: int


def _element(data: bytes, start: int, stop: int) -> _Element:
    """Return the element at ``start``, which ends at ``stop`` or before. Raises `MalformedCertificate`."""
    if stop - start < 2:
        raise MalformedCertificate(f"the certificate is cut off at byte {start}")
    tag, size, begin = data[start], data[start + 1], start + 2
    if tag & 0x1F == 0x1F:
        raise MalformedCertificate(f"a tag of several bytes at byte {start} of the certificate")
    if size >= 0x80:
        count = size - 0x80
        size = int.from_bytes(data[begin : min(begin + count, stop)], "big")
        begin += count
        if count not in (1, 2, 3, 4) or size < max(0x80, 1 << 8 * (count - 1)):
            raise MalformedCertificate(f"a length at byte {start + 1} of the certificate is not DER")
    if begin + size > stop:
        raise MalformedCertificate(f"an element at byte {start} of the certificate is longer than what contains it")
    return _Element(tag=tag, start=start, begin=begin, end=begin + size)


def _expected(data: bytes, start: int, stop: int, tag: int) -> _Element:
    found = _element(data, start, stop)
    if found.tag != tag:
        raise MalformedCertificate(
            f"an element of type {found.tag:#04x} in place of {tag:#04x} at byte {start} of the certificate"
        )
    return found


def _elements(data: bytes, within: _Element, tag: int) -> Iterator[_Element]:
    at = within.begin
    while at < within.end:
        found = _expected(data, at, within.end, tag)
        yield found
        at = found.end


def _subject(certificate: bytes) -> _Element:
    outer = _expected(certificate, 0, len(certificate), _SEQUENCE)
    signed = _expected(certificate, outer.begin, outer.end, _SEQUENCE)
    at, fields = signed.begin, _FIELDS_BEFORE_SUBJECT
    if _element(certificate, at, signed.end).tag != _EXPLICIT_VERSION:
        fields -= 1
    for _ in range(fields):
        at = _element(certificate, at, signed.end).end
    return _expected(certificate, at, signed.end, _SEQUENCE)


def _attribute_type(encoded: bytes) -> str:
    """Return an object identifier as numbers with dots (X.690 section 8.19)."""
    if not 0 < len(encoded) <= MAX_OID_BYTES or encoded[-1] & 0x80:
        raise MalformedCertificate(f"the type of an attribute is not valid, or longer than {MAX_OID_BYTES} bytes")
    numbers, number = [], 0
    for byte in encoded:
        if number == 0 and byte == 0x80:
            raise MalformedCertificate("an attribute's type has a number that begins with zero")
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _attribute(data: bytes, within: _Element) -> str:
    """Return a type and a value as RFC 2253 section 2.3 has them."""
    type_ = _expected(data, within.begin, within.end, _OBJECT_IDENTIFIER)
    value = _element(data, type_.end, within.end)
    if value.end != within.end:
        raise MalformedCertificate(f"bytes after an attribute's value at byte {value.end} of the certificate")
    name = _attribute_type(data[type_.begin : type_.end])
    keyword = _KEYWORDS.get(name)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or name}=#{data[value.start : value.end].hex()}"
    return f"{keyword}={_escaped(data[value.begin : value.end])}"


def _escaped(value: bytes) -> str:
    """Return a value with RFC 2253's escapes, as Java has them."""
    # Java replaces a surrogate as a whole, and Python each of its bytes.
    text = _ENCODED_SURROGATE.sub(_REPLACEMENT, value).decode("utf-8", "replace").translate(_ESCAPES)
    without_leading = text.lstrip(_ESCAPED_OUTSIDE)
    inner = without_leading.rstrip(_ESCAPED_OUTSIDE)
    leading = text[: len(text) - len(without_leading)]
    trailing = without_leading[len(inner) :]
    return "".join((*(f"\\{space}" for space in leading), inner, *(f"\\{space}" for space in trailing)))


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate in DER, as Java writes it: ``CN=alice,OU=Sales,O=Example``.

    It is empty for an empty subject. Of a value that is neither a UTF8String nor ASCII, and of each BMPString, Java 25
    writes another text than Java 17 and 21, which this function follows.

    Raises `MalformedCertificate`, also for encodings other than DER, some of which Java reads; and `NoPrincipal` for a
    subject of more than `MAX_SUBJECT_BYTES` or `MAX_PRINCIPAL_CHARACTERS`.
    """
    subject = _subject(certificate)
    if subject.end - subject.begin > MAX_SUBJECT_BYTES:
        raise NoPrincipal(f"the subject of the certificate is longer than {MAX_SUBJECT_BYTES} bytes")
    relative_names = [
        "+".join(_attribute(certificate, attribute) for attribute in _elements(certificate, relative_name, _SEQUENCE))
        for relative_name in _elements(certificate, subject, _SET)
    ]
    return _bounded(",".join(reversed(relative_names)), "the subject of the certificate")


def _bounded(name: str, description: str) -> str:
    if len(name) > MAX_PRINCIPAL_CHARACTERS:
        raise NoPrincipal(f"{description} has {len(name)} characters; the most is {MAX_PRINCIPAL_CHARACTERS}")
    return name


# --- mapping rules ---

_DEFAULT: Final = "DEFAULT"
_ANY: Final = rf"[^{LINE_TERMINATORS}]"
_PART: Final = rf"((?:\\{_ANY}|[^\\/])*)"
_RULE: Final = rf"(DEFAULT)|RULE:{_PART}/{_PART}/([LU]?){_ANY}*?|{_ANY}*?"
"""Matches any text that Kafka splits off as a rule. The last alternative is any other text, which is refused later."""
_RULE_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(?:,\s*|\Z)", re.ASCII)
_RULE_PARSER: Final = re.compile(_RULE, re.ASCII)
_REFERENCE: Final = re.compile(r"\$([0-9]+)")
_HIGHEST_REFERENCE: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One rule: a pattern, the parts of its replacement (texts, and the numbers of groups), and its flag."""

    pattern: Pattern
    replacement: tuple[str | int, ...]
    flag: str

    def apply(self, name: str, budget: StepBudget) -> str | None:
        """Return the user of this name, or ``None`` if the pattern does not match it as a whole.

        As in Kafka, each match of the pattern within the name is replaced then: that of ``.*`` twice, since it also
        matches the empty end. Changing the case of letters has the results of Java, except for a capital sigma after a
        digit.
        """
        if not self.pattern.matches(name, budget):
            return None

        def expanded(spans: Spans) -> str:
            texts = (
                part if isinstance(part, str) else name[spans[2 * part] or 0 : spans[2 * part + 1] or 0]
                for part in self.replacement
            )
            return "".join(texts)

        found = self.pattern.replace_all(name, expanded, budget)
        return found.lower() if self.flag == "L" else found.upper() if self.flag == "U" else found


class PrincipalRules:
    """The rules of ``ssl.principal.mapping.rules``: ``RULE:pattern/replacement/[L|U]`` and ``DEFAULT``, with commas.

    Immutable, but for the users of the latest `REMEMBERED_SUBJECTS`. The patterns are Java's, of which
    `headrace.proxy.network.tls.subjects.pattern_syntax` supports a part; so are the references of a replacement:
    ``$1``, ``${name}``, and a backslash before a literal character.
    """

    __slots__ = ("_found", "_rules", "_text")

    def __init__(self, text: str) -> None:
        """Raise `ValueError`, which names the rule, for rules that Kafka refuses and for patterns without support.

        Rules with which Kafka fails for each client, such as references to groups that do not exist, are also refused.
        """
        self._text = text
        found = _split(text)
        if not found:
            raise ValueError(f"no rule; without rewriting it is {_DEFAULT}")
        if len(found) > MAX_RULES:
            raise ValueError(f"{len(found)} rules; the most is {MAX_RULES}")
        self._rules = tuple(_parsed(number, rule) for number, rule in enumerate(found, 1))
        self._found: dict[str, str | NoPrincipal] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._text!r})"

    def principal(self, name: str) -> str:
        """Return the user of a distinguished name, by the first rule that matches it. It can be empty.

        Raises `NoMatchingRule`, and `NoPrincipal` for a name or a user of more than `MAX_PRINCIPAL_CHARACTERS`.
        """
        _bounded(name, "the subject of the certificate")
        if name not in self._found:
            if len(self._found) >= REMEMBERED_SUBJECTS:
                del self._found[next(iter(self._found))]
            self._found[name] = self._applied(name)
        found = self._found[name]
        if isinstance(found, NoPrincipal):
            raise type(found)(*found.args)
        return found

    def takes_long(self, name: str) -> bool:
        """Return whether `principal` may take long for this name: rules have to be applied to it."""
        return self._rules[0] is not None and name not in self._found

    def _applied(self, name: str) -> str | NoPrincipal:
        """Return the user, or the reason why there is none."""
        budget = StepBudget()
        for number, rule in enumerate(self._rules, 1):
            if rule is None:
                return name
            try:
                found = rule.apply(name, budget)
                if found is not None:
                    return _bounded(found, f"the user by mapping rule {number}")
            except StepsExceededError as error:
                return NoPrincipal(f"the mapping rules take too long for the subject {name!r}: {error}")
            except NoPrincipal as error:
                return error.with_traceback(None)
        return NoMatchingRule(f"no mapping rule matches the subject {name!r}")


def _split(text: str) -> list[str]:
    """Return the texts of the rules, without those that are empty, which Kafka ignores."""
    stripped = text.strip("".join(map(chr, range(33))))  # as Java's String.trim
    found, at = [], 0
    while at < len(stripped):
        match = _RULE_SPLITTER.match(stripped, at)
        if match is None:
            raise ValueError(f"invalid rule {stripped[at:].splitlines()[0]!r}: a line ends without a comma")
        found.append(match[1])
        at = match.end()
    return [rule for rule in found if rule]


def _parsed(number: int, rule: str) -> _Rule | None:
    """Return a rule, or ``None`` for ``DEFAULT``."""
    match = _RULE_PARSER.match(rule)
    if match is None or match.end() < len(rule):
        raise ValueError(f"rule {number}, {rule!r}, is neither DEFAULT nor RULE:pattern/replacement/ with L or U")
    if match[1] is not None:
        return None
    try:
        pattern = compile_pattern(match[2])
        replacement = tuple(_replacement(_without_missing_groups(match[3], pattern.groups), pattern))
    except ValueError as error:
        raise ValueError(f"rule {number}, {rule!r}: {error}") from None
    return _Rule(pattern=pattern, replacement=replacement, flag=match[4])


def _without_missing_groups(replacement: str, groups: int) -> str:
    """Return the replacement with a backslash before references to groups that do not exist.

    As ``Rule.escapeLiteralBackReferences`` does, with its limits: it does nothing for a pattern without groups, and
    from the second such reference on the backslash is misplaced.
    """
    found = replacement
    for match in _REFERENCE.finditer(replacement) if groups else ():
        digits = match[1]
        if digits.startswith("0"):
            continue
        number = int(digits) if len(digits) < 11 else _HIGHEST_REFERENCE + 1
        if number > _HIGHEST_REFERENCE:
            raise ValueError(f"the replacement has the reference ${digits}, which is too large")
        while number > groups and number >= 10:
            number //= 10
        if number > groups:
            at = match.start()
            found = f"{found[:at]}\\{found[at:]}"
    return found


def _replacement(text: str, pattern: Pattern) -> Iterator[str | int]:
    """Yield the parts of a replacement (``Matcher.appendReplacement``): texts, and the numbers of groups."""
    at = 0
    while at < len(text):
        character, following = text[at], text[at + 1 : at + 2]
        at += 1
        if character == "\\":
            if not following:
                raise ValueError("the replacement ends with a backslash")
            yield following
            at += 1
        elif character != "$":
            yield character
        elif following == "{":
            end = text.find("}", at)
            name = text[at + 1 : end] if end >= 0 else ""
            if name not in pattern.names:
                raise ValueError(f"the replacement refers to a group {name!r}, which the pattern does not have")
            yield pattern.names[name]
            at = end + 1
        elif following in set("0123456789"):
            number, at = _group_number(text, at, pattern.groups)
            yield number
        else:
            raise ValueError("the replacement has a $ without a group; a literal one is \\$")


def _group_number(text: str, at: int, groups: int) -> tuple[int, int]:
    """Return the number of the group at ``at``, of as many digits as there is a group for, and the position after."""
    number = int(text[at])
    if number > groups:
        raise ValueError(f"the replacement refers to group {number}, and the pattern has {groups}")
    at += 1
    while at < len(text) and text[at] in "0123456789" and number * 10 + int(text[at]) <= groups:
        number = number * 10 + int(text[at])
        at += 1
    return number, at
