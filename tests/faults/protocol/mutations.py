"""Breaking valid frames, at random but repeatably."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.apis import APIS, request_header_version, response_header_version
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import ApiKey
from tests.faults import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

EXTREMES: Final = (0, 1, -1, 2, 127, 128, 255, 256, 32_767, -32_768, 65_535, 2**31 - 1, -(2**31))

# A mutated one of these may end the broker's own life, which is not what is tested.
DANGEROUS: Final = frozenset(
    {
        ApiKey.UNREGISTER_BROKER,
        ApiKey.UPDATE_FEATURES,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
    }
)
REQUESTABLE: Final = [api for api in APIS.values() if not api.controller_only and api.key not in DANGEROUS]


def valid_request(random: Random, correlation_id: int, client_id: str = "fuzz") -> bytes:
    """A request of any API and version, with every field at its default."""
    api = random.choice(REQUESTABLE)
    version = random.randint(api.min_version, api.max_version)
    body = encode(f"{api.name}Request", version, {})
    if request_header_version(api.key, version) == 2:
        body = b"\0" + body
    return messages.request(api.key, version, correlation_id, body, client_id)


def valid_reply(api_key: int, version: int, correlation_id: int) -> bytes:
    """The reply to a request, with every field at its default."""
    tags = b"\0" if response_header_version(api_key, version) else b""
    body = encode(f"{APIS[api_key].name}Response", version, {})
    return messages.frame(struct.pack(">i", correlation_id) + tags + body)


def _flip_a_bit(random: Random, data: bytearray) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set_a_byte(random: Random, data: bytearray) -> None:
    data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))


def _set_a_number(random: Random, data: bytearray) -> None:
    number = struct.pack(">q", random.choice(EXTREMES))[-random.choice((2, 4, 8)) :]
    at = random.randrange(len(data))
    data[at : at + len(number)] = number


def _cut_off(random: Random, data: bytearray) -> None:
    del data[random.randrange(len(data)) :]


def _cut_out(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.randint(1, 8)]


def _put_in(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    data[at:at] = random.randbytes(random.randint(1, 300))


def _repeat(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    data[at:at] = data[at : at + random.randint(1, 64)]


MUTATIONS: Final[Sequence[Callable[[Random, bytearray], None]]] = (
    _flip_a_bit,
    _set_a_byte,
    _set_a_number,
    _cut_off,
    _cut_out,
    _put_in,
    _repeat,
)


def mutated(random: Random, frame: bytes) -> bytes:
    """A frame with one to four mutations; mostly its length is made to fit again, so that its body is what is wrong."""
    data = bytearray(frame)
    for _ in range(random.randint(1, 4)):
        if data:
            random.choice(MUTATIONS)(random, data)
    if random.random() < 0.7:
        data[:4] = struct.pack(">i", max(len(data) - 4, 0))
    return bytes(data)
