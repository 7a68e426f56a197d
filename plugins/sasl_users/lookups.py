"""Which verifier a name is checked against. Pure.

A name that is not known gets a verifier, too, which no password matches. It is derived from the name by a key of the
file, so that the name gets the same salt and number of iterations each time, as a known one does. Otherwise clients
could find out which users there are (RFC 5802, section 9).
"""

from __future__ import annotations

import hmac
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.sasl.scram import MIN_ITERATIONS, ScramMechanism, ScramVerifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Verifiers: TypeAlias = "Mapping[ScramMechanism, ScramVerifier]"
"""The verifiers of one user; there is at least one."""

SALT_BYTES: Final = 16
"""Size of all salts. Salts must differ, and 128 random bits do."""
DEFAULT_ITERATIONS: Final = MIN_ITERATIONS
"""Default of ``headrace users add``, as of ``kafka-configs``: each new connection of a client takes so many."""
_MOST_KINDS: Final = 16
"""Numbers of iterations among which those of an unknown name are chosen: the most frequent ones."""

Kind: TypeAlias = "tuple[ScramMechanism, int]"
"""A mechanism and a number of iterations."""


class KnownUsers:
    """The users at one instant. ``unknown_user_key`` is the key from which verifiers of unknown names are derived."""

    __slots__ = ("_key", "_kinds", "_plain_kinds", "_users")

    def __init__(self, users: Mapping[str, Verifiers], unknown_user_key: bytes) -> None:
        self._users = users
        self._key = unknown_user_key
        self._kinds = {
            mechanism: _most_frequent(
                ((mechanism, each[mechanism].iterations) for each in users.values() if mechanism in each),
                otherwise=mechanism,
            )
            for mechanism in ScramMechanism
        }
        firsts = (_first_of(each) for each in users.values())
        self._plain_kinds = _most_frequent(
            ((mechanism, verifier.iterations) for mechanism, verifier in firsts), otherwise=ScramMechanism.SHA_256
        )

    def __len__(self) -> int:
        return len(self._users)

    def scram_verifier(self, mechanism: ScramMechanism, name: str) -> ScramVerifier:
        """Return the verifier of a name for SCRAM. Takes as long whether the name is known or not."""
        unknown = self._unknown(name, self._kinds[mechanism])[1]
        return self._users.get(name, {}).get(mechanism, unknown)

    def plain_verifier(self, name: str) -> tuple[ScramMechanism, ScramVerifier]:
        """Return the verifier of a name for PLAIN: that of the first mechanism that the user has."""
        unknown = self._unknown(name, self._plain_kinds)
        return _first_of(verifiers) if (verifiers := self._users.get(name)) else unknown

    def _unknown(self, name: str, kinds: Sequence[Kind]) -> tuple[ScramMechanism, ScramVerifier]:
        """Return what an unknown name gets.

        Each kind gets a number from the name, and the highest one is chosen. So the choice changes for few names when
        a kind is added, and for no other names when one is removed.
        """
        mechanism, iterations = max(kinds, key=lambda kind: self._derived(f"{kind[0]} {kind[1]}", name))
        return mechanism, ScramVerifier(
            salt=self._derived(f"{mechanism} salt", name)[:SALT_BYTES],
            iterations=iterations,
            stored_key=self._derived(f"{mechanism} stored key", name)[: mechanism.digest_bytes],
            server_key=self._derived(f"{mechanism} server key", name)[: mechanism.digest_bytes],
        )

    def _derived(self, purpose: str, name: str) -> bytes:
        return hmac.digest(self._key, f"{purpose}\0{name}".encode(), "sha512")


def _first_of(verifiers: Verifiers) -> tuple[ScramMechanism, ScramVerifier]:
    """Return the verifier that PLAIN uses: any would do, and SHA-256 takes the least time."""
    return next((mechanism, verifiers[mechanism]) for mechanism in ScramMechanism if mechanism in verifiers)


def _most_frequent(kinds: Iterable[Kind], *, otherwise: ScramMechanism) -> list[Kind]:
    """Return the kinds that most users have; the default kind of ``otherwise`` if there are no users."""
    counts = Counter(kinds)
    return sorted(counts, key=lambda kind: (-counts[kind], kind))[:_MOST_KINDS] or [(otherwise, DEFAULT_ITERATIONS)]
