"""Running the commands in this process, and what they print."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from headrace.proxy.cli import main
from tests.clients.fronts import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command has printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output as JSON."""
        return json.loads(self.out)


def run(*arguments: object, stdin: str = "", environment: Mapping[str, str] | None = None) -> Ran:
    """Run ``headrace`` with these arguments. Its exceptions are raised."""
    result = CliRunner().invoke(
        main, [str(each) for each in arguments], input=stdin, env=dict(environment or {}), catch_exceptions=False
    )
    return Ran(status=result.exit_code, out=result.stdout, err=result.stderr)


@dataclass(frozen=True, slots=True)
class Commands:
    """``headrace quotas`` for one cluster."""

    server: str

    def __call__(self, command: str, *arguments: object, stdin: str = "") -> Ran:
        """Run a command."""
        return run("quotas", command, "--bootstrap-server", self.server, *arguments, stdin=stdin)

    def done(self, command: str, *arguments: object, stdin: str = "") -> str:
        """Run a command that must succeed, and return its output."""
        ran = self(command, *arguments, stdin=stdin)
        assert ran.status == 0, ran.err
        return ran.out

    def described(self, *arguments: object, as_: str) -> None:
        """Wait until a description is this one: a broker learns of a change from its controller."""
        eventually(lambda: self.done("describe", *arguments) == as_ or None, f"describe {arguments} is {as_!r}")
