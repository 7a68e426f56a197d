"""Requests of the client-quota APIs as plain values: alterations and filters, valid and invalid."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

Part = tuple[str, str | None]
Op = tuple[str, float | None]
Entry: TypeAlias = "tuple[Sequence[Part], Sequence[Op]]"
Component = tuple[str, int, str | None]
Request = tuple[ApiKey, int, bytes]
"""API key, version and body."""

EXACT, DEFAULT, ANY = 0, 1, 2
PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"
PERCENT, MUTATIONS = "request_percentage", "controller_mutation_rate"
CONNECTIONS = "connection_creation_rate"


def alter(*entries: Entry, version: int = 1, validate_only: bool = False) -> Request:
    """An AlterClientQuotas request; ``None`` as a value removes the key."""
    rows = [
        {
            "entity": [{"entity_type": each, "entity_name": name} for each, name in entity],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
        }
        for entity, ops in entries
    ]
    return request(ApiKey.ALTER_CLIENT_QUOTAS, version, {"entries": rows, "validate_only": validate_only})


def describe(*components: Component, version: int = 1, strict: bool = False) -> Request:
    """A DescribeClientQuotas request."""
    rows = [{"entity_type": each, "match_type": match_type, "match": match} for each, match_type, match in components]
    return request(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, {"components": rows, "strict": strict})


def request(api_key: ApiKey, version: int, message: dict[str, Any]) -> Request:
    return api_key, version, encode(f"{API_NAMES[api_key]}Request", version, message)


# --- alterations ---

NAMES: Final = (
    "alice",
    "Alice",
    "two words",
    "<default>",
    "%2A",
    "*",
    "CN=a,O=b;C=c/d=e",
    "häufig",
    "ha\N{COMBINING DIAERESIS}ufig",
    "\N{GRINNING FACE}\N{SNOWMAN}",
    "\0",
    " ",
    "null",
    "n" * 300,
    "\N{SNOWMAN}" * 10_922,
)
UNKNOWN_TYPES: Final = ("", "User", "users", "team", "client_id", "clientid", "topic", "\N{SNOWMAN}", "Aa", "BB")
IPS: Final = ("192.0.2.1", "0.0.0.0", "2001:db8::1", "2001:DB8:0::1", "::", "::ffff:192.0.2.1", None)
NO_IPS: Final = (
    "256.0.0.1",
    "192.0.2.1.5",
    " 192.0.2.1",
    "192.0.2.1 ",
    "192.0.2.0/24",
    "2001:db8::1/64",
    "1:2",
    "::1::",
    "12345::",
    "fe80::1%no-such-interface",
    "0x7f.1",
    "<default>",
    "no.such.host.invalid",
    "a b",
    "999999999999",
)
VALUES: Final = (
    *(0.0, -0.0, 5e-324, 1e-7, 1e-6, 0.5, 0.9999999, 1.0, 1.0000001, 1.000002, 1.5, 1.9999999, 2.245, -2.0),
    *(2.0**31 - 1.5, 2.0**31 - 1, 2.0**31 - 0.5, 2.0**31, 2.0**53 + 2, 2.0**63, 2.0**63 * (1 + 2**-52), 3.7e19),
    *(1e300, -math.inf),
)


def entity_cases() -> Iterator[Request]:
    """One valid value for each kind of entity."""
    some = [(PRODUCE, 1024.0)]
    entities: list[list[Part]] = [[], [("user", None)], [("client-id", None)]]
    entities += [[(each, name)] for each in ("user", "client-id") for name in (*NAMES, "")]
    entities += [[("user", one), ("client-id", two)] for one in ("u", None, "") for two in ("c", None, "")]
    entities += [[("client-id", "c2"), ("user", "u2")]]
    entities += [[(each, "x")] for each in UNKNOWN_TYPES]
    entities += [[("user", "u"), (each, "")] for each in UNKNOWN_TYPES]
    entities += [
        list(parts) for parts in itertools.permutations((("user", "u"), ("team", "t"), ("Aa", ""), ("BB", "")))
    ]
    entities += [
        list(parts) for parts in itertools.permutations((("user", "u"), ("client-id", "c"), ("ip", "1.2.3.4")))
    ]
    entities += [[("ip", "192.0.2.1"), (each, "x")] for each in ("user", "client-id", "team")]
    entities += [[("ip", "no-address"), ("user", "u")], [("ip", ""), ("user", "")], [("user", ""), ("ip", "")]]
    entities += [[("user", "one"), ("user", "two")], [("user", ""), ("user", "three")], [("user", "x"), ("user", "")]]
    entities += [[("user", "x"), ("client-id", "c"), ("user", None)]]
    for version, entity in itertools.product((0, 1), entities):
        yield alter((entity, some), version=version)
    for name in (*IPS, *NO_IPS, ""):
        yield alter(([("ip", name)], [(CONNECTIONS, 7.0)]))
        yield alter(([("ip", name)], some))


def value_cases() -> Iterator[Request]:
    """Each key with each value, for each kind of entity."""
    entities: list[list[Part]] = [
        [("user", "v")],
        [("client-id", "v")],
        [("user", "v"), ("client-id", "v")],
        [("ip", "::7")],
    ]
    keys = (PRODUCE, CONSUME, PERCENT, MUTATIONS, CONNECTIONS, "unknown", "", "Producer_byte_rate", "SCRAM-SHA-256")
    for entity in entities:
        for key in keys:
            values = VALUES if entity[0][0] == "ip" or entity == entities[0] else VALUES[:8]
            for value in values:
                yield alter((entity, [(key, value)]), validate_only=value != VALUES[-4])
    for key in (PRODUCE, CONSUME, CONNECTIONS):
        yield alter((entities[0], [(key, math.inf)]))


def operation_cases() -> Iterator[Request]:
    """Several operations and several entries."""
    user, pair = [("user", "ops")], [("user", "ops"), ("client-id", "ops")]
    swapped = [("client-id", "ops"), ("user", "ops")]
    good, bad, removal = (PRODUCE, 5.0), (PRODUCE, -5.0), (PRODUCE, None)
    invalid = [(PRODUCE, 0.5), (CONSUME, -1.0), (PERCENT, 0.0), ("unknown", 1.0), (MUTATIONS, -3.0)]
    yield alter()
    for ops in (
        [],
        [good],
        [good],
        [good, (CONSUME, 6.0)],
        [good, bad],
        [good, good],
        [good, removal],
        [removal, removal],
    ):
        yield alter((user, ops))
    for ops in itertools.permutations(invalid, 3):
        yield alter((user, ops))
    yield alter((user, [good, *invalid]))
    yield alter((user, [(CONSUME, 77.0), ("unknown", None)]))
    yield alter((user, [(CONSUME, 78.0), ("unknown", 1.0)]))
    yield alter((user, [removal]), (pair, [(PERCENT, None)]))
    yield alter((user, [("unknown", None), (CONNECTIONS, None)]))
    for first, second in itertools.product((good, bad, removal, ("unknown", 1.0)), repeat=2):
        yield alter((user, [first]), (user, [second]))
        yield alter((pair, [first]), (swapped, [second]), (user, [first]))
    yield alter((user, []), (user, []))
    yield alter(([], [good]), ([], [good]), ([("team", None)], [good]), ([("team", None)], [good]))
    yield alter(([("user", "a"), ("user", "b")], [good]), ([("user", "b")], [good]))
    yield alter((user, [good, good]), (user, [good]), (pair, [good]))
    yield alter(*[([("user", f"many-{n}")], [good if n % 3 else bad]) for n in range(40)])
    yield alter(*[([("user", f"many-{n}")], [good]) for n in range(40)], validate_only=True)


def client_cases() -> Iterator[Request]:
    """The requests of Terraform's provider (sarama, v0) and of Strimzi's user operator (Java's Admin, v1)."""
    for entity in (
        [("client-id", "terraform")],
        [("user", "terraform")],
        [("user", "terraform"), ("client-id", "terraform")],
        [("user", None), ("client-id", "terraform")],
        [("client-id", None), ("user", "terraform")],
        [("ip", "198.51.100.7")],
    ):
        key = CONNECTIONS if entity[0][0] == "ip" else CONSUME
        components = [(each, DEFAULT if name is None else EXACT, name) for each, name in entity]
        yield alter((entity, [(key, 4e6)]), version=0)
        yield describe(*components, version=0, strict=True)
        yield alter((entity, [(key, 3e6)]), version=0)
        yield alter((entity, [(key, None)]), version=0)
        yield describe(*components, version=0, strict=True)
    strimzi = [("user", "CN=my-user")]
    yield describe(("user", EXACT, "CN=my-user"))
    yield alter((strimzi, [(PRODUCE, 1048576.0), (CONSUME, 2097152.0), (PERCENT, 55.0), (MUTATIONS, 10.0)]))
    yield alter((strimzi, [(PRODUCE, 1048576.0), (CONSUME, None), (PERCENT, 55.0), (MUTATIONS, None)]))
    yield describe()
    yield alter((strimzi, [(key, None) for key in (PRODUCE, CONSUME, PERCENT, MUTATIONS)]))
    yield describe()


def random_alterations(rng: Random, number: int) -> Iterator[Request]:
    """Alterations of few entities with few keys, so that many of them meet."""
    types = ("user", "user", "client-id", "client-id", "ip", "team", "")
    names = ("a", "b", None, "", "192.0.2.9")
    keys = (PRODUCE, CONSUME, PERCENT, MUTATIONS, CONNECTIONS, "unknown")
    values = (*VALUES, *(None,) * 8, *(8.0,) * 8, 9.0)

    def some(least: int, most: int) -> range:
        return range(rng.randint(least, most))

    for _ in range(number):
        entries = [
            (
                [(rng.choice(types), rng.choice(names)) for _ in some(1, 3)],
                [(rng.choice(keys), rng.choice(values)) for _ in some(0, 4)],
            )
            for _ in some(1, 4)
        ]
        yield alter(*entries, version=rng.randrange(2), validate_only=rng.randrange(5) == 0)


# --- filters ---


def matching_entities() -> Request:
    """The entities of Kafka's ``ClientQuotasRequestTest``."""
    pairs: tuple[tuple[str | None, str | None], ...] = (
        *(("user-1", "client-id-1"), ("user-2", "client-id-1"), ("user-3", "client-id-2"), (None, "client-id-1")),
        *(("user-1", None), ("user-3", None)),
    )
    entities: list[list[Part]] = [[("user", user), ("client-id", client)] for user, client in pairs]
    entities += [[("user", name)] for name in ("user-1", "user-2", "user-3", None)]
    entities += [[("client-id", "client-id-2")]]
    ips: list[list[Part]] = [[("ip", "1.2.3.4")], [("ip", "5.6.7.8")]]
    return alter(
        *((entity, [(PERCENT, 50.5 + number)]) for number, entity in enumerate(entities)),
        *((entity, [(CONNECTIONS, 10.0 + number)]) for number, entity in enumerate(ips)),
    )


def filter_cases() -> Iterator[Request]:
    """Every component alone, and every pair."""
    components: list[Component] = [
        *((each, match_type, None) for each in ("user", "client-id", "ip") for match_type in (EXACT, DEFAULT, ANY)),
        *(("user", EXACT, name) for name in ("user-1", "user-3", "nobody", "")),
        *(("client-id", EXACT, name) for name in ("client-id-1", "client-id-2")),
        *(
            ("ip", EXACT, "1.2.3.4"),
            ("user", DEFAULT, "x"),
            ("user", ANY, ""),
            ("client-id", 3, None),
            ("user", -1, "x"),
        ),
        *(("", EXACT, "x"), ("team", EXACT, "x"), ("User", 77, None)),
    ]
    filters: list[tuple[Component, ...]] = [(), *itertools.product(components), *itertools.permutations(components, 2)]
    filters += [(component, component) for component in components]
    for chosen, strict in itertools.product(filters, (False, True)):
        yield describe(*chosen, version=len(chosen) % 2, strict=strict)
    for name in NAMES:
        yield describe(("user", EXACT, name), strict=True)
