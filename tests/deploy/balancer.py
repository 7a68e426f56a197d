"""HAProxy with the sample of docs/deploy, on ports of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from testbed.processes.programs import content
from testbed.processes.supervised import start_program
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[2]
SAMPLE: Final = ROOT / "docs" / "deploy" / "haproxy-tls.cfg"
HAPROXY: Final = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


class Balancer:
    """A running HAProxy with the text of a configuration; a context manager, which kills it at its exit.

    The constructor returns when ``address``, which the configuration binds, is open.
    """

    def __init__(self, config: str, address: tuple[str, int], folder: Path) -> None:
        assert HAPROXY is not None
        file = folder / "haproxy.cfg"
        file.write_text(config, encoding="ascii")
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        with Path(os.devnull).open("rb") as nothing:
            self._program = start_program(
                [HAPROXY, "-db", "-f", str(file)],
                environment=os.environ,
                stdin=nothing.fileno(),
                stdout=self._output.fileno(),
                stderr=self._output.fileno(),
            )
        try:
            wait_until(lambda: self._is_open(address), "HAProxy listens")
        except BaseException:
            self.close()
            raise

    def _is_open(self, address: tuple[str, int]) -> bool:
        assert self._program.poll() is None, self.log
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(address, timeout=5):
            return True
        return False

    @property
    def log(self) -> str:
        return content(self._output.fileno())

    def wait_for(self, server: str, state: str, *, times: int = 1) -> None:
        """Wait until the checks of a server have found ``state``, UP or DOWN, for that number of times."""
        found = re.compile(rf"Server headrace/{server} is {state}")
        wait_until(lambda: len(found.findall(self.log)) >= times, f"{server} is {state}, {times} times", 30)

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        self._program.kill()
        self._output.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def with_replaced(text: str, replaced: Mapping[str, str]) -> str:
    """Return a sample with other values; each of the old ones has to be in it."""
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
