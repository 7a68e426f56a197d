"""Who reaches the admin server of a real proxy: with a token, and over a Unix socket."""

from __future__ import annotations

import os
import signal
import stat
from typing import TYPE_CHECKING, Final

import pytest
from click.testing import CliRunner

from headrace.config.tables.admin import UnixPath
from headrace.proxy.admin.listening import bind_admin
from headrace.proxy.cli import main
from headrace.proxy.errors import StartupError
from testbed.errors import TestbedError
from testbed.preloaded_command import run_headrace
from testbed.proxy_process import ProxyProcess
from tests.faults.waiting import wait_until
from tests.security.admin.admin_client import ask, send, switch_off

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNREACHABLE: Final = "127.0.0.1:1"
TOKENS: Final = ("0123456789abcdef-operators", "fedcba9876543210-prometheus")
JSON: Final = {"Content-Type": "application/json"}
SECRET_PAGES: Final = ("/metrics", "/decisions", "/enforcement")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# --- tokens ---


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("token") / "admin-token"
    file.write_text("\n".join(TOKENS) + "\n")
    return file


@pytest.fixture(scope="module")
def guarded(token_file: Path) -> Iterator[ProxyProcess]:
    """A proxy with tokens, which other machines could reach."""
    arguments = ("--admin", "0.0.0.0:0", "--admin-token-file", str(token_file))
    with ProxyProcess(UNREACHABLE, arguments=arguments) as process:
        yield process
        assert "Traceback" not in process.log
        assert not any(token in process.log for token in TOKENS)


def address(proxy: ProxyProcess) -> str:
    return proxy.admin.replace("0.0.0.0", "127.0.0.1")


def enforced(proxy: ProxyProcess) -> bool:
    return bool(ask(address(proxy), "/enforcement", headers=bearer(TOKENS[0])).json["enabled"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("0123456789abcdef-operator"),
        bearer("0123456789abcdef-operators2"),
        bearer(""),
        bearer("\xff" * 20),
        {"Authorization": TOKENS[0]},
        {"Authorization": f"Basic {TOKENS[0]}"},
        {"Authorization": f"Bearer {TOKENS[0]}, Bearer {TOKENS[1]}"},
    ],
    ids=repr,
)
def test_without_a_token_nothing_is_told_and_nothing_changes(guarded: ProxyProcess, headers: dict[str, str]) -> None:
    for path in SECRET_PAGES:
        reply = ask(address(guarded), path, headers=headers)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), path
        assert "admin.token_file" in reply.error
    assert switch_off(address(guarded), JSON | headers).status == 401
    assert enforced(guarded)


def test_with_a_token_everything_is_answered(guarded: ProxyProcess) -> None:
    for token in TOKENS:
        for path in SECRET_PAGES:
            assert ask(address(guarded), path, headers=bearer(token)).status == 200
    assert switch_off(address(guarded), JSON | bearer(TOKENS[0]) | {"Origin": "http://evil.example"}).status == 403
    assert switch_off(address(guarded), JSON | bearer(TOKENS[0])).status == 200
    assert not enforced(guarded)
    assert ask(
        address(guarded), "/enforcement", method="PUT", headers=JSON | bearer(TOKENS[0]), body=b'{"enabled": true}'
    ).json == {"enabled": True}


def test_probes_need_no_token_and_no_name(guarded: ProxyProcess) -> None:
    """An orchestrator's probe comes with the address of the machine, a load balancer's check without a Host."""
    assert ask(address(guarded), "/livez", headers={"Host": "192.0.2.7:9190"}).status == 200
    assert ask(address(guarded), "/readyz", headers={"Host": "[2001:db8::1]:9190"}).status == 503
    assert send(address(guarded), b"GET /livez HTTP/1.0\r\n\r\n").status == 200
    assert ask(address(guarded), "/livez", headers={"Host": "evil.example"}).status == 403


def test_the_command_line_sends_the_token(guarded: ProxyProcess, token_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("another-token-that-is-wrong\n")
    cases: list[tuple[list[str], dict[str, str], int]] = [
        (["--token-file", str(token_file)], {}, 0),
        ([], {"HEADRACE_ADMIN__TOKEN_FILE": str(token_file)}, 0),
        ([], {"HEADRACE_ADMIN_TOKEN": TOKENS[1]}, 0),
        ([], {}, 1),
        (["--token-file", str(other)], {}, 1),
        (["--token-file", str(tmp_path / "missing")], {}, 1),
        ([], {"HEADRACE_ADMIN_TOKEN": f"{TOKENS[0]}\r\nX: y"}, 1),
    ]
    for command in ("enforcement", "why"):
        for arguments, environment, status in cases:
            named = {"HEADRACE_ADMIN__LISTEN": guarded.admin, **environment}
            result = CliRunner().invoke(main, [command, *arguments], env=named)
            assert result.exit_code == status, (arguments, environment, result.output)
            assert not any(token in result.output for token in TOKENS)
            assert isinstance(result.exception, SystemExit | None), result.exception
    result = CliRunner().invoke(main, ["why", "--admin", guarded.admin])
    assert "--token-file" in result.output


def test_a_token_is_replaced_while_the_proxy_runs(guarded: ProxyProcess, token_file: Path) -> None:
    def replace(content: str) -> None:
        new = token_file.with_name("new")
        new.write_text(content)
        new.rename(token_file)

    def is_valid(token: str) -> bool:
        return ask(address(guarded), "/decisions", headers=bearer(token)).status == 200

    assert is_valid(TOKENS[0])
    try:
        replace("a-new-token-of-operators\n")
        wait_until(lambda: is_valid("a-new-token-of-operators"), "the new token is valid")
        assert not is_valid(TOKENS[0])
        replace("short\n")
        wait_until(
            lambda: is_valid("a-new-token-of-operators") and "has 5 characters and is not a token" in guarded.log,
            "an error is logged, and the token remains valid",
        )
    finally:
        replace("\n".join(TOKENS) + "\n")
    wait_until(lambda: is_valid(TOKENS[0]), "the first token is valid again")


def test_a_file_without_a_token_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "empty"
    file.write_text("\n\n")
    with pytest.raises(TestbedError, match=f"headrace: admin.token_file: {file} contains no token\n"):
        ProxyProcess(UNREACHABLE, arguments=("--admin-token-file", str(file)))


# --- a Unix socket ---


def test_a_unix_socket_is_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    unix = f"unix:{path}"
    with ProxyProcess(UNREACHABLE, arguments=("--admin", unix)) as process:
        assert process.admin == unix
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert ask(unix, "/livez").status == 200
        assert ask(unix, "/livez", headers={"Host": "evil.example"}).status == 403
        assert run_headrace("enforcement", "off", "--admin", unix).stdout == "enforcement is off\n"
        process.wait_for_log(f"uid {os.getuid()}")
        assert CliRunner().invoke(main, ["ready", "--admin", unix]).output.startswith("headrace: not ready: ")
        assert CliRunner().invoke(main, ["why", "--admin", unix]).output == (
            "enforcement is off: no request is throttled or refused until it is on again\n"
            "no request was throttled or refused\n"
        )
        with pytest.raises(StartupError, match="another process listens on it"):
            bind_admin(UnixPath(path=str(path)))
        assert ask(unix, "/livez").status == 200
        process.signal(signal.SIGKILL)
        process.wait(20)
    assert path.is_socket(), "of a proxy that was killed"
    with ProxyProcess(UNREACHABLE, arguments=("--admin", unix)) as process:
        assert ask(unix, "/livez").status == 200
        assert process.stop() == 0
    assert not path.exists()
