"""Valid ``[[quotas]]`` tables, and invalid ones with their error messages."""

from dataclasses import dataclass
from typing import Final

from headrace.quota_callbacks.entities import DEFAULT, LONG_MAX, QuotaEntity, QuotaKey

ALICE: Final = QuotaEntity(user="alice")
BYTES: Final = (
    f"expected whole bytes a second, above 0 and at most {LONG_MAX}, "
    'or a size such as "2MiB" (B, kB, KiB, MB, MiB, GB, GiB)'
)
POSITIVE: Final = "expected a finite number above 0"
ENTITY: Final = 'expected a user, a client-id or both, such as { user = "alice", client-id = "<default>" }, or an ip'
NAME: Final = 'expected a name, or "<default>" for the default entity'
RESERVED: Final = f'{NAME}; a name in angle brackets is written as a table: {{{{ name = "{{}}" }}}}'
ADDRESS: Final = 'expected an IP address, or "<default>" for the default entity'
KEYS: Final = ", ".join((*(key.value for key in QuotaKey), "connection_creation_rate"))

POLICY_KEYS: Final = "enforcement, observe, burst, longest_throttle, new_connections"

PRODUCE, FETCH, REQUEST, MUTATION, PRODUCER_IDS = QuotaKey

GOOD_ENTITIES: Final = (
    ('{ user = "alice" }', ALICE),
    ('{ client-id = "app 1" }', QuotaEntity(client_id="app 1")),
    ('{ user = "CN=a,O=b", client-id = "c" }', QuotaEntity(user="CN=a,O=b", client_id="c")),
    ('{ user = "<default>" }', QuotaEntity(user=DEFAULT)),
    ('{ client-id = "<default>", user = "<default>" }', QuotaEntity(user=DEFAULT, client_id=DEFAULT)),
    ('{ user = "<a", client-id = "b>" }', QuotaEntity(user="<a", client_id="b>")),
    ('{ user = { name = "<default>" } }', QuotaEntity(user="<default>")),
    ('{ user = { name = "alice" }, client-id = { name = "<>" } }', QuotaEntity(user="alice", client_id="<>")),
)

GOOD_LIMITS: Final = (
    (PRODUCE, "1", 1),
    (PRODUCE, "1048576.0", 1048576),
    (PRODUCE, str(LONG_MAX), LONG_MAX),
    (PRODUCE, '"2MiB"', 2097152),
    (PRODUCE, '"500kB"', 500_000),
    (FETCH, '"1.5GiB"', 1610612736),
    (REQUEST, "0.01", 0.01),
    (REQUEST, "800", 800.0),
    (MUTATION, "2.5", 2.5),
    (PRODUCER_IDS, "10", 10.0),
)


@dataclass(frozen=True, slots=True)
class BadQuota:
    """The lines of an invalid table, the line of the error (from 1), and the message after file and line."""

    lines: str
    line: int
    message: str
    schema_sees: bool = True


def _limits(key: QuotaKey, rule: str, *values: str, schema_sees: bool = True) -> tuple[BadQuota, ...]:
    return tuple(
        BadQuota(
            f'entity = {{ user = "alice" }}\n{key} = {value}', 3, f"quotas[0].{key} = {value}: {rule}", schema_sees
        )
        for value in values
    )


def _entities(*cases: tuple[str, str, str], schema_sees: bool = True) -> tuple[BadQuota, ...]:
    return tuple(
        BadQuota(f"entity = {written}\nrequest_percentage = 1", 2, f"quotas[0].entity{blamed}: {rule}", schema_sees)
        for written, blamed, rule in cases
    )


_ODD: Final = ("0", "-1", "true", "[]", "{}", "1979-05-27")
_PAIR: Final = 'entity = { user = "alice", client-id = "a" }\nproducer_ids_rate = 1'
_CLIENT: Final = 'entity = { client-id = "<default>" }\nproducer_ids_rate = 1'
_USERS: Final = (
    "quotas[0].producer_ids_rate = 1: for users only (KIP-936), not for {}; the entity must have no client-id"
)

BAD_QUOTAS: Final = (
    *(
        bad
        for key in (PRODUCE, FETCH)
        for bad in _limits(key, BYTES, *_ODD, "1.5", '"2Mb"', '"fast"', "9223372036854775808")
    ),
    *_limits(PRODUCE, BYTES, "nan", "inf"),
    *_limits(PRODUCE, BYTES, '"0MiB"', '"0.5B"', '"9000000000GiB"', schema_sees=False),
    *(bad for key in (REQUEST, MUTATION, PRODUCER_IDS) for bad in _limits(key, POSITIVE, *_ODD, '"1%"')),
    *(
        bad
        for key in (REQUEST, MUTATION, PRODUCER_IDS)
        for bad in _limits(key, POSITIVE, "inf", "nan", schema_sees=False)
    ),
    *_limits(REQUEST, POSITIVE, "-inf"),
    *_entities(
        ("{}", " = {}", ENTITY),
        ('"alice"', ' = "alice"', ENTITY),
        ('[{ user = "alice" }]', ' = [{ user = "alice" }]', ENTITY),
        ('{ user = "" }', '.user = ""', NAME),
        ('{ user = "alice", client-id = "" }', '.client-id = ""', NAME),
        ("{ user = 7 }", ".user = 7", NAME),
        ('{ client-id = "<defaults>" }', '.client-id = "<defaults>"', RESERVED.format("<defaults>")),
        ('{ user = "<DEFAULT>" }', '.user = "<DEFAULT>"', RESERVED.format("<DEFAULT>")),
        ('{ user = "<anyone>" }', '.user = "<anyone>"', RESERVED.format("<anyone>")),
        ('{ user = "<>" }', '.user = "<>"', RESERVED.format("<>")),
        ('{ user = { name = "" } }', '.user = { name = "" }', NAME),
        ('{ user = { name = "a", of = "b" } }', '.user = { name = "a", of = "b" }', NAME),
    ),
    *_entities(
        ('{ host = "10.0.0.1" }', ".host", "unknown entity type; known: user, client-id, ip"),
        ('{ client_id = "a" }', ".client_id", "unknown entity type; did you mean client-id?"),
        ('{ user = "a", Client-ID = "a" }', ".Client-ID", "unknown entity type; did you mean client-id?"),
    ),
    BadQuota("request_percentage = 1", 1, f"quotas[0].entity: required; {ENTITY}"),
    BadQuota(
        'entity = { user = "alice" }\nobserve = true', 1, f"quotas[0]: no limit is set; expected at least one of {KEYS}"
    ),
    BadQuota(
        'entity = { user = "alice" }\nproducer_byte_rate = 1\nburst = "1s"',
        4,
        'quotas[0].burst = "1s": only with enforcement = "paced"; otherwise the window determines the burst',
        schema_sees=False,
    ),
    BadQuota(
        'entity = { user = "alice" }\nproducer_byte_rate = 1\nenforcement = "pace"',
        4,
        'quotas[0].enforcement = "pace": expected "kafka" or "paced"; did you mean "paced"?',
    ),
    BadQuota(
        'entity = { user = "alice" }\nproducer_byte_rate = 1\nobserve = 1',
        4,
        "quotas[0].observe = 1: expected true or false",
    ),
    BadQuota('entity = { user = "alice" }', 1, f"quotas[0]: no limit is set; expected at least one of {KEYS}"),
    BadQuota(
        'entity = { user = "alice" }\nproducer_byterate = 1',
        3,
        "quotas[0].producer_byterate: unknown key; did you mean producer_byte_rate?",
    ),
    BadQuota(
        'entity = { user = "alice" }\nquota_of_files = 1\nrequest_percentage = 1',
        3,
        f"quotas[0].quota_of_files: unknown key; known here: entity, {KEYS}, {POLICY_KEYS}",
    ),
    BadQuota(
        'entity = { user = "alice" }\nconnection_creation_rate = 1',
        3,
        "quotas[0].connection_creation_rate = 1: for an ip only, not for user=alice",
    ),
    BadQuota(
        'entity = { ip = "10.0.0.1" }\nrequest_percentage = 1',
        3,
        "quotas[0].request_percentage = 1: for users and client ids only, not for ip=10.0.0.1",
    ),
    BadQuota(
        'entity = { ip = "kafka.example.com" }\nconnection_creation_rate = 1',
        2,
        f'quotas[0].entity.ip = "kafka.example.com": {ADDRESS}',
        schema_sees=False,
    ),
    BadQuota(
        'entity = { ip = "10.0.0.1", user = "a" }\nconnection_creation_rate = 1',
        2,
        'quotas[0].entity.ip = "10.0.0.1": an ip stands alone, without a user and a client-id',
    ),
    BadQuota(_PAIR, 3, _USERS.format("user=alice, client-id=a")),
    BadQuota(_CLIENT, 3, _USERS.format("client-id=<default>")),
)
