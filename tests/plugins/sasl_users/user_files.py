"""Files of users for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.plugins.sasl_users.lookups import SALT_BYTES
from headrace.plugins.sasl_users.user_file import UserFile
from headrace.proxy.sasl.scram import MIN_ITERATIONS, ScramMechanism, scram_verifier

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headrace.plugins.sasl_users.lookups import Verifiers


def verifiers(
    password: str,
    mechanisms: Iterable[ScramMechanism] = ScramMechanism,
    *,
    iterations: int = MIN_ITERATIONS,
    salt: bytes = bytes(range(SALT_BYTES)),
) -> Verifiers:
    """Return what the file has of a user with this password."""
    return {each: scram_verifier(each, password, salt, iterations) for each in mechanisms}


def write_users(path: Path, **passwords: str) -> str:
    """Create the file if it is missing, add users with these passwords, and return its path."""
    with UserFile.open(str(path), create=True) as file:
        for name, password in passwords.items():
            file.put(name, verifiers(password))
    return str(path)
