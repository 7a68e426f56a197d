"""Typical inputs of targets that read decisions (`tests.fuzzing.choices`), written so that each reaches its subject.

`tests.fuzzing.seeds` adds them to the corpus.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.hooks.decisions import Kind
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaKey
from tests.fuzzing.targets.authorization import CLIENT_APIS
from tests.fuzzing.targets.configuration import LEAVES, VALUES
from tests.fuzzing.targets.native import APIS, PADDINGS
from tests.fuzzing.targets.opening import RULE_PARTS, TYPES
from tests.fuzzing.targets.relays import SASL
from tests.fuzzing.wire_messages import RAW, VALID

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS: Final = tuple(QuotaKey)
KINDS: Final = tuple(Kind)
PLAIN_TOKEN: Final = b"\0alice\0secret"
SCRAM_TOKENS: Final = (b"n,,n=alice,r=abc", b"r=abcdef,s=c2FsdA==,i=4096", b"c=biws,r=abcdef,p=cA==", b"v=c2ln")
OAUTH_TOKEN: Final = b"n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.\x01\x01"


def _sized(content: bytes) -> bytes:
    """Return bytes behind a length of one byte."""
    return bytes([len(content)]) + content


def _long(content: bytes) -> bytes:
    """Return bytes behind a length of two bytes."""
    return struct.pack(">H", len(content)) + content


def _numbers(*values: int) -> bytes:
    return struct.pack(f">{len(values)}H", *values)


# --- quotas ---


def _arguments(*lists: str) -> bytes:
    return b"".join(b"\1" + _sized(each.encode()) if each else b"\0\0" for each in lists) + b"\1"


def _table(name: str, key: QuotaKey, value: int, *, of_user: bool = True) -> bytes:
    return _sized(name.encode()) + bytes([of_user, KEYS.index(key)]) + _numbers(value - 1)


QUOTAS_TOML: Final = b"""[[quotas]]
entity = { user = "alice", client-id = "<default>" }
producer_byte_rate = "2MiB"
request_percentage = 0.5

[[quotas]]
entity = { ip = "192.0.2.1" }
connection_creation_rate = 7
"""
QUOTAS_JSON: Final = json.dumps(
    {"quotas": [{"entity": {"user": "alice", "client-id": None}, "values": {"producer_byte_rate": 1024.0}}]}
).encode()


# --- logins ---


def _login(*chunks: bytes) -> bytes:
    """Return an input of ``logins``: no quotas, no cuts, and up to four chunks, each with its answer."""
    return bytes([0, 0, 0, len(chunks) - 1]) + b"".join(chunks)


def _answer(body: bytes) -> bytes:
    return _long(bytes([0, RAW]) + body)


def _handshake(mechanism: int, *, older: int) -> bytes:
    """Return a SaslHandshake of v1 minus ``older`` with the mechanism of this number, and an answer that accepts it."""
    accepted = struct.pack(">hih", 0, 1, 5) + b"PLAIN"
    return bytes([0, SASL.index(ApiKey.SASL_HANDSHAKE), older, 0, mechanism, 2]) + _answer(accepted)


def _authenticate(token: bytes, answer: bytes) -> bytes:
    """Return a SaslAuthenticate v1, and its answer."""
    body = bytes([RAW]) + struct.pack(">i", len(token)) + token
    accepted = struct.pack(">hhi", 0, -1, len(answer)) + answer + struct.pack(">q", 0)
    return bytes([0, SASL.index(ApiKey.SASL_AUTHENTICATE), 1]) + _long(body) + b"\2" + _answer(accepted)


def _headerless(token: bytes) -> bytes:
    return bytes([220]) + _sized(token) + _long(bytes([240]))


# --- SASL tokens and observers ---


def _observed(mechanism: int, *exchanges: tuple[bytes, bytes], ends_empty: int = 0) -> bytes:
    pairs = b"".join(
        b"\1" + _long(token) + b"\1" + _long(answer) + bytes([number + 1 == len(exchanges)])
        for number, (token, answer) in enumerate(exchanges)
    )
    return bytes([0, ends_empty, mechanism, len(exchanges)]) + pairs


def _after_handshake(mechanism: bytes, window: bytes) -> bytes:
    """Return an input of ``tokens``: the body of a SaslHandshake, and the bytes that follow."""
    return _sized(struct.pack(">h", len(mechanism)) + mechanism) + b"\4" + window


# --- the native data plane ---


def native_request(key: int, newest: bytes, body: bytes, *, padding: int = 0, cuts: bytes = b"\0") -> bytes:
    """Return an input of ``native_requests``: one request, whose batches are read, within the credit."""
    padded = bytes([230, PADDINGS.index(padding)]) if padding else b"\0"
    message = bytes([RAW]) + body
    frame = bytes([0, APIS.index(ApiKey(key))]) + newest + padded + _long(message) + b"\0\0"
    return cuts + b"\1\0\0\0" + frame


def native_reply(key: int, newest: bytes, body: bytes, *, padding: int = 0, cuts: bytes = b"\0") -> bytes:
    """Return an input of ``native_replies``: the reply to one request, within the credit."""
    padded = bytes([220, PADDINGS.index(padding)]) if padding else b"\0"
    message = bytes([RAW]) + body
    return cuts + bytes([0, 0, APIS.index(ApiKey(key))]) + newest + b"\0" + padded + _long(message)


# --- tokens that the proxy verifies ---


def _changed(at: int, removed: int, added: bytes) -> bytes:
    """Return one change of a text, for the targets in ``oauth``."""
    return b"\1" + _numbers(at) + _sized(added) + bytes([removed])


# --- configuration ---


def _variables(*values: tuple[str, str]) -> bytes:
    """Return an input of ``environment``: variables of keys, over the smallest document."""
    paths = [".".join(key.path) for key in LEAVES]
    found = b"".join(bytes([0, VALUES.index(value), paths.index(key)]) for key, value in values)
    return bytes([len(values)]) + found + b"\0\0"


# --- what precedes the first request ---


def _subject(*attributes: tuple[int, bytes]) -> bytes:
    """Return an input of ``certificates``: a subject with one attribute in each relative name."""
    encoded = b"".join(bytes([0, 0, number, 0, len(value)]) + value for number, value in attributes)
    return bytes([0, len(attributes)]) + encoded + b"\1"


def _rules(*parts: str, name: str) -> bytes:
    """Return an input of ``mapping_rules``."""
    return bytes([len(parts), *map(RULE_PARTS.index, parts)]) + name.encode()


_IPV4: Final = bytes.fromhex("c0000201c6336407dc042385")
_CHECKSUM: Final = bytes.fromhex("030004")

# --- usage records and decisions ---


def _text(text: str) -> bytes:
    return _sized(text.encode()) + b"\0"


def _requests(senders: Sequence[tuple[str, str]]) -> bytes:
    """Return an input of ``usage_rows``: a Produce of each sender, within one second and with one topic."""
    requests = b"".join(
        bytes([1 + number % len(KEYS)])
        + (_text(user) + _numbers(500) + _text(client_id) + b"\0" + _numbers(1000, 60))
        + bytes([1, 1, 1, 2, 0, 0, number % 3])
        + _numbers(250)
        for number, (user, client_id) in enumerate(senders)
    )
    topics = b"".join(bytes([number % 3, 1, 1]) + _text("topic-1") + bytes([90]) for number in range(len(senders)))
    return bytes([4, 1, len(senders)]) + requests + topics + _text("the queue was full")


def _row(kind: Kind, key: QuotaKey, user: str, client_id: str) -> bytes:
    texts = _text(f"user={user}") + bytes([KEYS.index(key)]) + _text(user) + _text(client_id)
    return bytes([KINDS.index(kind)]) + texts + _numbers(15, 1500, 800, 3000, 1023, 700) + b"\1"


def _page(waiting: Sequence[bytes], decisions: Sequence[bytes]) -> bytes:
    return bytes([len(waiting)]) + b"".join(waiting) + bytes([len(decisions)]) + b"".join(decisions)


_ROWS: Final = [
    _row(kind, KEYS[number % len(KEYS)], "alice", client_id)
    for number, (kind, client_id) in enumerate((kind, client_id) for kind in KINDS for client_id in ("app", "\x1b[2J"))
]

_COMMIT: Final = bytes(20)
"""A body of which the data plane reads nothing."""

TYPICAL: Final[dict[str, dict[str, bytes]]] = {
    "native_requests": {
        f"seed padded-{padding}": native_request(ApiKey.OFFSET_COMMIT, b"\0", _COMMIT, padding=padding, cuts=b"\1\xff")
        for padding in PADDINGS[1:]
    },
    "native_replies": {
        f"seed padded-{padding}": native_reply(ApiKey.OFFSET_COMMIT, b"\0", _COMMIT, padding=padding, cuts=b"\1\xff")
        for padding in PADDINGS[1:]
    },
    "quota_arguments": {
        "seed alter": _arguments("user=alice", "client-id", "producer_byte_rate=5", "consumer_byte_rate"),
        "seed names": _arguments(r"user=a\,b,client-id=c\\", "", "request_percentage=5", ""),
        "seed ip": _arguments("ip=192.0.2.1", "", "", ""),
    },
    "quota_files": {"seed toml": b"\2" + QUOTAS_TOML, "seed json": b"\2" + QUOTAS_JSON},
    "quota_tables": {
        "seed user": _table("alice", QuotaKey.PRODUCER_BYTE_RATE, 1024),
        "seed client-id": _table('a "quoted" \\ name', QuotaKey.REQUEST_PERCENTAGE, 50, of_user=False),
    },
    "tokens": {
        "seed plain": _after_handshake(b"PLAIN", struct.pack(">i", len(PLAIN_TOKEN)) + PLAIN_TOKEN),
        "seed scram": _after_handshake(b"SCRAM-SHA-256", struct.pack(">i", 16) + SCRAM_TOKENS[0]),
        "seed oauth": _after_handshake(b"OAUTHBEARER", struct.pack(">i", len(OAUTH_TOKEN)) + OAUTH_TOKEN),
        "seed gssapi": _after_handshake(b"GSSAPI", struct.pack(">i", 4) + b"\x60\x82\x02\x01"),
        "seed request": _after_handshake(b"GSSAPI", struct.pack(">ihhih", 13, 3, 1, 7, 1) + b"c\0\0\0\0"),
    },
    "sasl_observers": {
        "seed plain": _observed(0, (PLAIN_TOKEN, b"")),
        "seed scram": _observed(1, SCRAM_TOKENS[:2], SCRAM_TOKENS[2:]),
        "seed oauth": _observed(2, (OAUTH_TOKEN, b"")),
        "seed gssapi": _observed(3, (b"\x60\x82", b"\x60\x83"), (b"", b""), ends_empty=1),
    },
    "sasl_servers": {
        "seed plain": bytes([0, 0, 0]),
        "seed plain-changed": bytes([0, 0, 1, 0, 8, 0]),
        "seed scram": bytes([1, 1, 0, 0]),
        "seed scram-changed": bytes([2, 1, 0, 1, 0, 60, 65]),
        "seed scram-again": bytes([1, 3, 0, 0, 0, 0]),
        "seed parts": bytes([1, 0, 3, 3, 0, 5, 8]),
    },
    "sasl_clients": {
        "seed right": bytes([0, 0, 0]),
        "seed changed": bytes([1, 1, 0, 22, 65, 0]),
        "seed parts": bytes([0, 3, 4, 9, 28, 25, 26]),
    },
    "logins": {
        "seed plain": _login(_handshake(0, older=0), _authenticate(PLAIN_TOKEN, b"")),
        "seed scram": _login(
            _handshake(1, older=0), _authenticate(*SCRAM_TOKENS[:2]), _authenticate(*SCRAM_TOKENS[2:])
        ),
        "seed headerless": _login(_handshake(0, older=1), _headerless(PLAIN_TOKEN)),
    },
    "oauth_messages": {
        "seed genuine": b"\0\0",
        "seed authorization-id": b"\0" + _changed(2, 0, b"a=alice"),
        "seed scheme": b"\0" + _changed(9, 6, b"Basic"),
        "seed whole": b"\1" + OAUTH_TOKEN,
    },
    "oauth_tokens": {
        "seed genuine": b"\0\0\0",
        "seed algorithm": _changed(8, 5, b"HS256") + b"\0\0",
        "seed claims": b"\0\1" + b'{"sub":"alice","exp":1800000300,"iat":1800000000,"aud":["kafka"]}',
        "seed nested": b"\0\1" + b"[" * 300,
        "seed user": b"\0\0" + _changed(9, 5, b"\\ud800"),
    },
    "oauth_answers": {
        "seed genuine": b"\0\0\0\0",
        "seed lifetime": b"\0\0" + _changed(59, 3, b"-1"),
        "seed whole": b"\1" + b'{"access_token":"a","expires_in":1e400}',
    },
    "environment": {
        "seed limits": _variables(("limits.max_connections", "1"), ("limits.request_timeout", '"10s"')),
        "seed admin": _variables(("admin.listen", '"127.0.0.1:9092"'), ("admin.max_connections_per_ip", "0x10")),
        "seed wrong": _variables(("workers", "-1"), ("log.level", '"off"'), ("quota.window.num", "true")),
    },
    "usage_rows": {
        "seed one": _requests([("alice", "app")]),
        "seed many": _requests([("alice", "app"), ("", "app\x1b"), ("alice", "other"), ("bob", "app")]),
    },
    "proxy_header": {
        "seed ipv4": b"\1\x21\x11\0\x0c" + _IPV4,
        "seed ipv6": b"\1\x21\x21\0\x24" + bytes(36),
        "seed tlvs": b"\1\x21\x11\0\x17" + _IPV4 + b"\1\0\2h2\4\0\3abc",
        "seed checksum": b"\1\x21\x11\0\x13" + _IPV4 + _CHECKSUM + bytes(4),
        "seed local": b"\1\x20\0\0\0hello",
        "seed unix": b"\1\x21\x31\0\xd8" + bytes(216),
        "seed version-1": b"\0PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "seed tls": b"\0\x16\x03\x01\x02\0",
    },
    "authorization": {
        f"seed {name}{known}": bytes([CLIENT_APIS.index(key), 0, 1, 0, 0, 3, 0, 0, known, 0, 120, VALID])
        + bytes(range(1, 240))
        for known in (0, 1)
        for name, key in (
            ("Produce", ApiKey.PRODUCE),
            ("Fetch", ApiKey.FETCH),
            ("Metadata", ApiKey.METADATA),
            ("OffsetFetch", ApiKey.OFFSET_FETCH),
            ("CreateTopics", ApiKey.CREATE_TOPICS),
            ("ListGroups", ApiKey.LIST_GROUPS),
        )
    },
    "server_names": {"seed same": b"\0\1\0", "seed digits": b"\0\1\x080", "seed dot": b"\3\xe9\0."},
    "certificates": {
        "seed subject": _subject(*((number % len(TYPES), b"a, b") for number in range(4))),
        "seed usual": _subject((1, b"DE"), (4, b"State"), (5, b"Example"), (6, b"IT"), (0, b"alice")),
        "seed random": b"\1\x30\x04\x30\x02\xa0\0",
        "seed set": b"\2\x30\x02\x31\0",
    },
    "mapping_rules": {
        "seed one": _rules("RULE:", "^", "CN=", "(", ".", "*", "?", ")", "$", "/", "$1", "/L", name="CN=a"),
        "seed default": _rules("DEFAULT", ",", "RULE:", "[^", "a", "]", "+", "/", "/", name="b"),
        "seed name": _rules("RULE:", "(?<n>", "\\w", "{2,3}", ")", "|", "a", "/", "${n}", "/", name="abc"),
    },
    "why": {"seed waiting": _page(_ROWS[:2], []), "seed decisions": _page([], _ROWS[:6]), "seed none": _page([], [])},
}
