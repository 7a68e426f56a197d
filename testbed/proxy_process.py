"""The command ``headrace run`` in a separate process, started as users do, for tests, the demo and the benchmarks.

Uses the command line, not the code. The proxy ends with this process, like every program that
`testbed.processes.supervised` starts. In quick tests it is a fork of a process that has imported the command
(`testbed.preloaded_command`).
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from testbed.errors import TestbedError, TestbedTimeoutError
from testbed.preloaded_command import template
from testbed.processes.ports import reserve_ports
from testbed.processes.programs import content
from testbed.processes.supervised import make_directory, start_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READY_TIMEOUT_S = 60.0
ADMIN_TIMEOUT_S = 40.0
STOP_TIMEOUT_S = 40.0
LOG_TIMEOUT_S = 40.0
POLL_S = 0.01
READY_LINE = "headrace ready"


class ProxyProcess:
    """A running proxy; a context manager, which kills the proxy at its exit.

    `config` is the TOML of the configuration file. The listeners, the upstream and the admin server are set by command
    line arguments, on reserved ports of 127.0.0.1, unless `arguments` has the same option. `python`
    must be able to import the proxy and its requirements, if necessary by variables in `environment`. The log goes to
    the file descriptor `log_to` if it is given, else to `log`. With `has_token`, the admin server requires the token in
    `token_file`, and accepts requests that switch enforcement off and on.
    Raises TestbedError, with the proxy's output, if it does not become ready.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        config: str = "",
        node_ids: str = "0-9",
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        command_prefix: Sequence[str] = (),
        log_to: int | None = None,
        has_token: bool = False,
        python: str = sys.executable,
    ) -> None:
        highest = max(int(each) for part in node_ids.split(",") for each in part.split("-"))
        self._block = reserve_ports(highest + 2)
        self._directory = make_directory("headrace-")
        self.config_file = self._directory.path / "headrace.toml"
        self.config_file.write_text(config, encoding="utf-8")
        self.token_file = self._directory.path / "admin-token"
        self._token = secrets.token_hex(32) if has_token else None
        self._write_token()
        self.port = self._block.first
        self._in = Path(os.devnull).open("rb")  # noqa: SIM115 - closed by `close`
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        argv = [*command_prefix, python, *self._run_command(bootstrap_servers, node_ids, arguments)]
        try:
            self._program = start_program(
                argv,
                template=template(argv, environment or {}),
                environment={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
                stdin=self._in.fileno(),
                stdout=self._out.fileno(),
                stderr=self._err.fileno() if log_to is None else log_to,
            )
        except BaseException:
            self._release()
            raise
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    def _write_token(self) -> None:
        if self._token is not None:
            self.token_file.touch(mode=0o600)
            self.token_file.write_text(self._token, encoding="ascii")

    def _run_command(self, bootstrap_servers: str, node_ids: str, arguments: Sequence[str]) -> list[str]:
        """Return the arguments of Python for ``headrace run``."""
        flags = {
            "--listen": f"127.0.0.1:{self.port}",
            "--advertised-host": "127.0.0.1",
            "--node-ids": node_ids,
            "--admin": "127.0.0.1:0",
        }
        if self._token is not None:
            flags["--admin-token-file"] = str(self.token_file)
        return [
            *("-m", "headrace.proxy.cli", "run", "--config", str(self.config_file)),
            *("--bootstrap-servers", bootstrap_servers),
            *(part for flag, value in flags.items() if flag not in arguments for part in (flag, value)),
            *arguments,
        ]

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients: "host:port"."""
        return f"127.0.0.1:{self.port}"

    def broker_port(self, node_id: int) -> int:
        """Return the port at which the proxy presents a broker."""
        return self.port + 1 + node_id

    @property
    def pid(self) -> int:
        """The proxy's process id."""
        return self._program.pid

    @property
    def resident_bytes(self) -> int:
        """The current resident memory in bytes."""
        rss: int = psutil.Process(self.pid).memory_info().rss
        return rss

    @property
    def cpu_s(self) -> float:
        """The CPU time used so far in seconds, user and system."""
        times = psutil.Process(self.pid).cpu_times()
        used: float = times.user + times.system
        return used

    @property
    def log(self) -> str:
        """The log output so far."""
        return content(self._err.fileno())

    @property
    def _log_end(self) -> str:
        return self.log[-4000:]

    @property
    def output(self) -> str:
        """The standard output so far."""
        return content(self._out.fileno())

    @property
    def admin(self) -> str:
        """The address of the admin server: "host:port"."""
        return self.output.split(", admin ")[1].split()[0]

    @property
    def authorization(self) -> dict[str, str]:
        """The header with the admin server's token; empty without `has_token`."""
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    def get(self, path: str) -> tuple[int, str]:
        """Send a GET request to the admin server, and return status and body."""
        request = urllib.request.Request(f"http://{self.admin}{path}", headers=self.authorization)
        try:
            with urllib.request.urlopen(request, timeout=ADMIN_TIMEOUT_S) as response:  # noqa: S310 -- the URL begins with http:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """Return the sum of a metric over all its series, 0 if it has none."""
        return self.metrics(name)[0]

    def metrics(self, *names: str) -> list[float]:
        """Return the sums of several metrics, of the same page."""
        sums = dict.fromkeys(names, 0.0)
        for line in self.get("/metrics")[1].splitlines():
            name = line.split("{")[0].split(" ")[0]
            if name in sums:
                sums[name] += float(line.rsplit(" ", 1)[1])
        return [*sums.values()]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the proxy."""
        os.kill(self.pid, number)

    def reload(self, config: str) -> None:
        """Write another configuration and send SIGHUP, without waiting for the reload."""
        self.config_file.write_text(config, encoding="utf-8")
        self.signal(signal.SIGHUP)

    def wait_for_log(self, text: str, timeout_s: float = LOG_TIMEOUT_S) -> str:
        """Wait until a line with ``text`` is logged, and return the first such line."""
        deadline = time.monotonic() + timeout_s
        while True:
            for line in self.log.splitlines():
                if text in line:
                    return line
            if time.monotonic() > deadline:
                raise TestbedTimeoutError(f"{text!r} was not logged within {timeout_s:g} s; the log:\n{self._log_end}")
            time.sleep(POLL_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, wait for the end, and return the exit status."""
        if self._program.poll() is None:
            self.signal(signal.SIGTERM)
        return self._program.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Wait until the proxy ends by itself or by a signal, and return the exit status."""
        return self._program.wait(timeout_s)

    def close(self) -> None:
        """Kill the proxy if it is still running, and release its ports and files."""
        self._program.kill()
        self._directory.remove()
        self._release()

    def _release(self) -> None:
        self._block.release()
        self._in.close()
        self._out.close()
        self._err.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            sys.stderr.write(f"The last lines of the log of the proxy:\n{self._log_end}\n")
        self.close()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while READY_LINE not in self.output:
            status = self._program.poll()
            if status is not None:
                raise TestbedError(f"headrace ended with status {status} before it was ready: {self._log_end}")
            if time.monotonic() > deadline:
                raise TestbedTimeoutError(f"headrace was not ready within {READY_TIMEOUT_S:g} s: {self._log_end}")
            time.sleep(POLL_S)
