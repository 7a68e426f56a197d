"""The commands without a cluster: help, wrong arguments, completion, settings, and clusters that do not answer."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import ShellComplete

from headrace.proxy.cli import IMPORTED_LATER, main
from headrace.proxy.quota_tools.cluster import BATCH_CHANGES
from headrace.proxy.quota_tools.plan_commands import show_progress
from tests.proxy.quota_tools.commands import run

if TYPE_CHECKING:
    from pathlib import Path

UNREACHABLE = "127.0.0.1:1"
PASSWORD = "correct-horse"


def test_the_help_imports_no_client_and_nothing_that_relays() -> None:
    commands = ("", "run", "why", "quotas", "quotas apply", "client-quotas")
    unwanted = ("trio", "headrace.proxy.kafka_client", "headrace.proxy.network", "headrace.proxy.server")
    code = (
        "import sys; from headrace.proxy.cli import main\n"
        "for command in sys.argv[1:]:\n"
        "    main([*command.split(), '--help'], standalone_mode=False)\n"
        f"    assert not [each for each in sys.modules if each.startswith({unwanted})], command"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *commands], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Usage: ") == len(commands)


def test_running_the_proxy_imports_no_quota_commands() -> None:
    code = "import sys, headrace.proxy.cli; print([each for each in sys.modules if 'quota_tools' in each])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "[]\n"


def test_commands_that_are_imported_later_have_their_names() -> None:
    context = click.Context(main)
    for name in IMPORTED_LATER:
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["client-quotas"], "exactly one of --describe, --resolve and --alter is needed"),
        (["client-quotas", "--describe", "--alter"], "exactly one of --describe, --resolve and --alter is needed"),
        (["client-quotas", "--describe", "--add", "x=1"], "--add, --delete and --validate-only are for --alter only"),
        (["client-quotas", "--resolve", "--validate-only"], "are for --alter only"),
        (["client-quotas", "--alter", "--add", "x=1"], "no entity is given"),
        (["client-quotas", "--describe", "--json"], "No such option"),
        (["quotas", "describe", "--names", "alice"], "a comma that belongs to a name is written \\,"),
        (["quotas", "describe", "--strict"], "--strict needs --names, --defaults or --any"),
        (["quotas", "describe", "--timeout", "soon"], "expected a duration from 1ms to 1d, such as 30s"),
        (["quotas", "describe", "--timeout", "0"], "expected a duration from 1ms to 1d, such as 30s"),
        (["quotas", "resolve"], "no entity is given"),
        (["quotas", "alter", "--names", "user=a", "--add", "producer_byte_rate=fast"], "expected a number, or a size"),
        (["quotas", "alter", "--names", "user=a\nb\x1b", "--names", "user=c"], "user is given twice"),
        (["quotas", "apply", "-"], "--yes is required if the file is standard input"),
        (["quotas", "import"], "--from is needed"),
        (["quotas", "audit", "--newest", "0"], "--newest"),
        (["quotas", "audit", "--before", "0"], "--before"),
        (["quotas", "audit", "--names", "alice"], "--names: expected TYPE=NAME"),
    ],
)
def test_wrong_arguments(arguments: list[str], error: str) -> None:
    ran = run(*arguments)
    assert ran.status == 2
    assert error in " ".join(ran.err.split())
    assert not ran.out


@pytest.mark.parametrize("command", ["describe", pytest.param("export", marks=pytest.mark.exhaustive)])
def test_a_cluster_that_cannot_be_reached(command: str) -> None:
    ran = run("quotas", command, "--bootstrap-server", UNREACHABLE, "--timeout", "4s")
    assert ran.status == 1
    assert ran.err.startswith(f"headrace: {UNREACHABLE}: DescribeClientQuotas timed out after ")
    assert f"cannot connect to {UNREACHABLE}: connection refused" in ran.err
    assert ran.err.count("\n") == 1


def test_a_diff_that_fails_has_the_status_of_diff(tmp_path: Path) -> None:
    assert run("quotas", "diff", tmp_path / "missing.toml").status == 2
    (tmp_path / "quotas.toml").touch()
    arguments = ("--bootstrap-server", UNREACHABLE, "--timeout", "0.05")
    assert run("quotas", "diff", tmp_path / "quotas.toml", *arguments).status == 2


def test_a_file_with_errors(tmp_path: Path) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text('[[quotas]]\nentity = { user = "a\\u001bb" }\nproducer_byte_rate = "fast"\nx = {}\n')
    ran = run("quotas", "apply", file, "--bootstrap-server", UNREACHABLE)
    assert ran.status == 1
    first, second = ran.err.splitlines()
    assert (
        first
        == f'headrace: {file}:3: quotas[0].producer_byte_rate = "fast": expected a number, or a size such as "2MiB"'
    )
    assert second == f"headrace: {file}:4: quotas[0].x = {{}}: expected a finite number"


def settings_file(folder: Path, *lines: str) -> Path:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    file = folder / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={module} required username="admin" password="{PASSWORD}";\n' + "".join(lines)
    )
    return file


def test_where_the_server_comes_from(tmp_path: Path) -> None:
    """The option, the file, the variable, the default."""
    with_server, without = tmp_path / "with", tmp_path / "without"
    for folder in (with_server, without):
        folder.mkdir()
    file = settings_file(with_server, "bootstrap.servers=127.0.0.1:2\n")
    other = settings_file(without)
    variable = {"HEADRACE_BOOTSTRAP_SERVER": "127.0.0.1:3"}
    for arguments, environment, expected in (
        (["--bootstrap-server", UNREACHABLE, "--command-config", file], variable, UNREACHABLE),
        (["--command-config", file], variable, "127.0.0.1:2"),
        (["--command-config", other], variable, "127.0.0.1:3"),
        ([], variable, "127.0.0.1:3"),
    ):
        ran = run("quotas", "describe", "--timeout", "20ms", *arguments, environment=environment)
        assert ran.err.startswith(f"headrace: {expected}: "), ran.err
    assert "127.0.0.1:9192]" in " ".join(run("quotas", "describe", "--help").out.split())


def test_the_variable_does_not_stop_the_proxy(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(
        '[upstream]\nbootstrap_servers = ["127.0.0.1:1"]\n[listen]\naddress = "127.0.0.1:9192"\nadvertised_host = "x"\n'
    )
    ran = run("check-config", tmp_path / "headrace.toml", environment={"HEADRACE_BOOTSTRAP_SERVER": "127.0.0.1:3"})
    assert ran.status == 0, ran.err


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("bootstrap.servers=x\n", "'x' is not an address; expected host:port"),
        ("sasl.mechanism=GSSAPI\n", "sasl.mechanism = GSSAPI"),
        ("request.timeout.ms=soon\n", "expected a whole number of milliseconds"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, line: str, error: str) -> None:
    ran = run("quotas", "describe", "--command-config", settings_file(tmp_path, line))
    assert ran.status == 1
    assert error in ran.err
    assert PASSWORD not in ran.err


def test_settings_that_have_no_effect_are_named(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "acks=all\n")
    arguments = ("--bootstrap-server", UNREACHABLE, "--timeout", "20ms", "--command-config", file)
    ran = run("quotas", "describe", *arguments)
    assert "headrace: warning: acks is ignored" in ran.err
    assert PASSWORD not in ran.err + ran.out


def completed(*words: str) -> list[str]:
    *arguments, incomplete = words
    shell = ShellComplete(main, {}, "headrace", "_HEADRACE_COMPLETE")
    return [each.value for each in shell.get_completions(list(arguments), incomplete)]


def test_completion() -> None:
    assert completed("quotas", "des") == ["describe"]
    assert completed("quotas", "describe", "--names", "") == ["user=", "client-id=", "ip="]
    assert completed("quotas", "describe", "--names", "user=alice,c") == ["user=alice,client-id="]
    assert completed("quotas", "describe", "--names", "user=alice,u") == []
    assert completed("quotas", "describe", "--any", "user,") == ["user,client-id", "user,ip"]
    assert completed("quotas", "alter", "--add", "producer_b") == ["producer_byte_rate="]
    assert completed("client-quotas", "--delete", "req") == ["request_percentage"]
    assert "--validate-only" in completed("quotas", "alter", "--")


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    show_progress(BATCH_CHANGES, 2 * BATCH_CHANGES)
    assert capsys.readouterr().err == "", "no terminal"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show_progress(500, 500)
    assert capsys.readouterr().err == "", "one request"
    show_progress(1500, 2500)
    show_progress(2500, 2500)
    assert capsys.readouterr().err == "\r1,500 of 2,500 entities\r2,500 of 2,500 entities\n"
