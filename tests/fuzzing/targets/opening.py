"""Targets: what precedes the first request of a connection: PROXY headers, server names, certificates."""

from __future__ import annotations

import contextlib
from typing import Final

from headrace.proxy.network.broker_names import BrokerNames
from headrace.proxy.network.tls.subjects.pattern_syntax import MAX_STATES
from headrace.proxy.network.tls.subjects.principals import NoPrincipal, PrincipalRules, distinguished_name
from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.proxy_protocol import (
    FIXED_BYTES,
    MAX_HEADER_BYTES,
    SIGNATURE,
    ProxyHeader,
    read_header,
    write_header,
)
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from tests.fuzzing.choices import Choices
from tests.proxy.network.tls.subjects.certificates import (
    KEYWORDS,
    SEQUENCE,
    SERIAL_NUMBER,
    SET,
    UTF8,
    certificate,
    der,
    oid,
)

NAMES: Final = BrokerNames("broker-$(node_id).kafka.example.com")
TYPES: Final = tuple(map(oid, (*KEYWORDS, SERIAL_NUMBER)))
RULES: Final = tuple(
    map(
        PrincipalRules,
        (
            "DEFAULT",
            (
                "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
                "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,DEFAULT"
            ),
            "RULE:^CN=((?:\\\\.|[^,\\\\])*)(,.*)?$/$1/",
            "RULE:(?:.*,)*(.*)=.*/$1$1$1/,RULE:.*/x$0/",
        ),
    )
)
RULE_PARTS: Final = (
    *("RULE:", "/", "$1", "/L", ",", "DEFAULT", "(", ")", "(?:", "(?<n>", "${n}", "[", "]", "[^", "-", "|", "*", "+"),
    *("?", "{2,3}", "\\", "^", "$", ".", "CN=", "a", "(?i)", "\\w", " ", "\\/", "\u2028", "&&", "{1,}", "\\x4", "1"),
)


def proxy_header(data: bytes) -> None:
    """Read a header from every beginning of the bytes: each needs more, or has the result of the whole."""
    choices = Choices(data)
    stream = (SIGNATURE if choices.flag() else b"") + choices.rest()
    whole = _read(stream)
    for size in {0, 3, 4, 12, 13, 15, 16, len(stream) // 2, max(0, len(stream) - 1)}:
        found = _read(stream[:size])
        assert found is None or found == whole
    if isinstance(whole, ProxyHeader):
        size = FIXED_BYTES + int.from_bytes(stream[FIXED_BYTES - 2 : FIXED_BYTES], "big")
        assert size <= min(len(stream), MAX_HEADER_BYTES)
        assert _read(stream[:size]) == whole
        assert read_header(write_header(whole.source, whole.source)) == whole


def _read(data: bytes) -> ProxyHeader | str | None:
    try:
        return read_header(data)
    except MalformedFrame as error:
        return str(error)


def server_names(data: bytes) -> None:
    """Read the node id from a server name, which is then the broker's name."""
    choices = Choices(data)
    node_id = choices.number()
    name = NAMES.host_of(node_id)
    assert NAMES.node_id_of(name) == node_id
    at, rest = choices.byte() % len(name), choices.rest().decode("utf-8", "replace")
    changed = name[:at] + rest + name[at:]
    found = NAMES.node_id_of(changed)
    assert found is None or NAMES.host_of(found) == changed.lower().removesuffix(".")


def certificates(data: bytes) -> None:
    """Read the subject of a certificate, and apply rules to it."""
    choices = Choices(data)
    kind = choices.byte() % 3
    if kind == 0:
        encoded = certificate(_subject(choices), version=choices.flag())
    else:
        encoded = choices.rest() if kind == 1 else certificate(choices.rest())
    try:
        name = distinguished_name(encoded)
    except NoPrincipal:
        return
    assert len(name) <= MAX_PRINCIPAL_CHARACTERS
    for rules in RULES:
        _apply(rules, name)


def _subject(choices: Choices) -> bytes:
    relative_names = []
    for _ in range(choices.byte() % 40):
        attributes = []
        for _ in range(1 + choices.byte() % 3):
            type_ = choices.pick(TYPES) if choices.byte() < 230 else der(6, choices.take(choices.byte()))
            tag = UTF8 if choices.byte() < 200 else choices.byte()
            attributes.append(der(SEQUENCE, type_, der(tag, choices.take(choices.byte() % 64))))
        relative_names.append(der(SET, *attributes))
    return der(SEQUENCE, *relative_names)


def _apply(rules: PrincipalRules, name: str) -> None:
    rules._found.clear()  # else rules would not be applied to a name of an earlier input
    with contextlib.suppress(NoPrincipal):
        assert len(rules.principal(name)) <= MAX_PRINCIPAL_CHARACTERS


def mapping_rules(data: bytes) -> None:
    """Read rules, and apply them to a name."""
    choices = Choices(data)
    text = "".join(
        RULE_PARTS[decision % len(RULE_PARTS)] if (decision := choices.byte()) < 230 else chr(choices.number() % 0x3000)
        for _ in range(choices.byte() % 60)
    )
    try:
        rules = PrincipalRules(text)
    except ValueError:
        return
    for rule in rules._rules:
        assert rule is None or len(rule.pattern._states) <= MAX_STATES
    _apply(rules, choices.rest().decode("utf-8", "replace"))
