"""Secrets that the configuration refers to, and where they are read from: a file, a variable, or a command's output.

    key_password = { file = "/run/secrets/key-password" }
    key_password = { env = "KEY_PASSWORD" }
    key_password = { command = ["/usr/bin/vault", "read", "-field=password", "secret/headrace"] }

The configuration holds the source and never the secret, so neither a dump nor an error message can contain it. Sources
are read when the secret is needed, and again when it may have changed; those in a table of a Kafka client's settings
are read with the table. Reading blocks: call it in a thread.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import IO, Final

from pydantic import SecretStr, ValidationError

from headrace.quota_callbacks.files import reason_of
from headrace.quota_callbacks.options import LONGEST_SECRET_BYTES, Fault, Parsed, read_secret, validation_error
from headrace.quota_callbacks.value_texts import dotted

COMMAND_TIMEOUT_S: Final = 30.0
"""Time after which a command is killed. Reading happens at the start and beside the event loop."""

_KINDS: Final = ("file", "env", "command")

_SECRET_SETTING: Final = re.compile(r"(password|secret|passphrase|key\.pem)$")
"""The names of librdkafka's settings whose values are secrets."""


class SecretError(ValueError):
    """A secret cannot be read. ``str()`` names the source and the reason, and contains nothing of the secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSource:
    """Where a secret is read from: exactly one of the three is set."""

    file: str | None = None
    env: str | None = None
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.file is not None:
            return f"the file {self.file}"
        return f"the variable {self.env}" if self.env is not None else f"the command {self.command[0]}"

    def read(self) -> str:
        """Return the secret, without a newline at its end; blocks, a command for at most `COMMAND_TIMEOUT_S`.

        Raises `SecretError`.
        """
        try:
            secret = self._read()
        except ValueError as error:
            raise SecretError(f"{self}: {error}") from None
        if not secret:
            raise SecretError(f"{self}: the secret is empty")
        return secret

    def _read(self) -> str:
        if self.file is not None:
            return read_secret(self.file)
        if self.env is not None:
            if self.env not in os.environ:
                raise ValueError("the variable is not set")
            try:
                return os.environ[self.env].encode("utf-8", "surrogateescape").decode()
            except UnicodeDecodeError:
                raise ValueError("the variable is not UTF-8") from None  # the cause contains the secret
        return _output_of(self.command)

    def as_table(self) -> dict[str, object]:
        """Return the source in the form of the file."""
        if self.file is not None:
            return {"file": self.file}
        return {"env": self.env} if self.env is not None else {"command": list(self.command)}


def _output_of(command: tuple[str, ...]) -> str:
    """Return what a command prints. What it writes to standard error is discarded: it may contain the secret.

    A command that prints too much is killed at once.
    """
    printed = bytearray()

    def read(pipe: IO[bytes]) -> None:
        with pipe:  # which a process that the command has started may keep open
            printed.extend(pipe.read(LONGEST_SECRET_BYTES + 1))
        if len(printed) <= LONGEST_SECRET_BYTES:
            process.wait()

    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise ValueError(f"the command cannot be run: {reason_of(error)}") from None
    reader = threading.Thread(target=read, args=(process.stdout,), name="headrace-secret", daemon=True)
    reader.start()
    try:
        reader.join(COMMAND_TIMEOUT_S)
        timed_out = reader.is_alive()
    finally:
        process.kill()  # does nothing if the command has ended
        process.wait()
    if timed_out:
        raise ValueError(f"the command did not end within {COMMAND_TIMEOUT_S:g} s")
    if len(printed) > LONGEST_SECRET_BYTES:
        raise ValueError(f"the command printed more than {LONGEST_SECRET_BYTES} bytes")
    if process.returncode:
        raise ValueError(f"the command failed with status {process.returncode}")
    try:
        secret = printed.decode()
    except UnicodeDecodeError:
        raise ValueError("the command did not print UTF-8") from None
    return secret.removesuffix("\n").removesuffix("\r")


def secret_source() -> Parsed:
    """Return the annotation for the source of a secret."""
    text = {"type": "string", "minLength": 1}
    return Parsed(
        'a table with one of file, env and command, such as { file = "/run/secrets/password" }',
        _parse,
        {
            "type": "object",
            "properties": {"file": text, "env": text, "command": {"type": "array", "items": text, "minItems": 1}},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
        SecretSource.as_table,
    )


def _parse(raw: object) -> SecretSource:
    if isinstance(raw, SecretSource):
        return raw
    if not isinstance(raw, Mapping):
        raise validation_error([Fault(rule=_RULE)])  # without the value, which may be the secret itself
    if len(raw) != 1 or not set(raw) <= set(_KINDS):
        raise validation_error(
            [Fault(rule=f"{_RULE}; found the keys {', '.join(map(str, raw)) or 'of an empty table'}")]
        )
    ((kind, value),) = raw.items()
    if kind == "command":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            raise validation_error(
                [Fault(path=(kind,), rule="expected a list of strings: the program and its arguments")]
            )
        return SecretSource(command=tuple(value))
    if not isinstance(value, str) or not value or "\0" in value:
        raise validation_error([Fault(path=(kind,), rule="expected a non-empty string")])
    return SecretSource(file=value) if kind == "file" else SecretSource(env=value)


_RULE: Final = (
    "a secret is not written into the configuration; expected a table with one of file, env and command, such as "
    '{ file = "/run/secrets/password" }'
)


def secrets_of(expected: str) -> Parsed:
    """Return the annotation for a table of librdkafka's settings, whose values are hidden in messages and ``repr``.

    A value may be the source of a secret, as a table (see `secret_source`); that of a password or private key must be.
    If a name ends with ``_file``, its value is the path of a file with the value of the setting without that suffix.
    A newline at the end of a secret is removed.
    """

    def parse(raw: object) -> dict[str, SecretStr]:
        if not isinstance(raw, Mapping) or not all(
            isinstance(each, str | int | float | Mapping) for each in raw.values()
        ):
            raise validation_error([Fault(rule=f"expected {expected}")])
        settings: dict[str, SecretStr] = {}
        faults: list[Fault] = []
        hidden = SecretStr("")  # in place of a value, which may be the secret itself
        for name, value in raw.items():
            setting = name.removesuffix("_file")
            if setting != name and setting in raw:
                faults.append(Fault(path=(name,), rule=f"expected either this or {dotted((setting,))}"))
            try:
                settings[setting] = SecretStr(_setting(name, value) if setting == name else read_secret(value))
            except ValidationError as error:
                found = [each["ctx"]["fault"] for each in error.errors()]
                faults += [replace(each, path=(name, *each.path), found=hidden) for each in found]
            except ValueError as error:
                faults.append(Fault(path=(name,), found=hidden, rule=str(error)))
        if faults:
            raise validation_error(faults)
        return settings

    return Parsed(expected, parse, {"type": "object"})


def _setting(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return _parse(value).read()
    if _SECRET_SETTING.search(name):
        raise ValueError(_RULE)
    return str(value).lower() if isinstance(value, bool) else str(value)
