"""The command line: output and exit status for valid and invalid arguments."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from headrace.config import loads
from headrace.config.editing import sample_text
from headrace.proxy.cli import main
from headrace.proxy.data_plane.native import EXTENSION
from headrace.proxy.server.command import ready_line
from headrace.proxy.server.preflight import warnings_of
from testbed.errors import TestbedError
from testbed.preloaded_command import SCRIPT, run_headrace
from testbed.processes.ports import free_port_block, reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
UNREACHABLE = "127.0.0.1:1"
REQUIRED = ("--bootstrap-servers", UNREACHABLE, "--advertised-host", "localhost")


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("check-config", "-h"), ("enforcement", "-h")])
def test_help(arguments: tuple[str, ...]) -> None:
    result = run_headrace(*arguments)
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: headrace")


@pytest.mark.parametrize("installed", [True, False])
def test_version(monkeypatch: pytest.MonkeyPatch, *, installed: bool) -> None:
    monkeypatch.setitem(sys.modules, EXTENSION, ModuleType(EXTENSION) if installed else None)
    result = CliRunner().invoke(main, ["--version"])
    expected = "native data plane installed" if installed else "no native data plane"
    assert (result.exit_code, result.output) == (0, f"headrace {version('headrace')} ({expected})\n")


def test_without_anything_every_missing_setting_is_named() -> None:
    result = run_headrace("run")
    assert result.returncode == 1
    for flag in ("--bootstrap-servers", "--listen"):
        assert flag in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wildcard_is_not_advertised() -> None:
    result = run_headrace(
        "run", "--bootstrap-servers", UNREACHABLE, "--listen", "0.0.0.0:9192", "--advertised-host", "0.0.0.0"
    )
    assert result.returncode == 1
    assert "--advertised-host" in result.stderr
    assert "wildcard" in result.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with reserve_ports(3) as block, socket.socket() as taken:
        taken.bind(("127.0.0.1", block.first + 2))
        taken.listen()
        result = run_headrace("run", *REQUIRED, "--listen", f"127.0.0.1:{block.first}", "--node-ids", "0-1")
    assert result.returncode == 1
    assert result.stderr == (
        f"headrace: cannot listen on 127.0.0.1:{block.first + 2} for broker 1: address already in use;"
        " change listen.address or listen.node_ids\n"
    )


def test_an_admin_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        admin = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TestbedError) as caught:
            ProxyProcess(UNREACHABLE, arguments=["--admin", admin])
    assert f"cannot listen on {admin} for the admin server: address already in use" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            "[[quotas]]\nentity = { user = 'a' }\nproducer_ids_rate = 5\n[plugins]\ndisabled = ['producer_ids']",
            "headrace.toml:3: quotas[0].producer_ids_rate: would not be enforced for user=a",
        ),
        ("[plugins]\nload = ['no_such_module']", "plugin 'no_such_module' cannot be loaded: there is no module"),
        ("[plugins]\ndisabled = ['byterate']", "plugins.disabled names 'byterate', but there is no such plugin"),
        ("[limits]\nmax_frames_bytes = 1", "headrace.toml:2: limits.max_frames_bytes"),
        ("[limits\n", "headrace.toml:1"),
    ],
)
def test_what_keeps_it_from_starting_is_one_sentence(config: str, message: str) -> None:
    with pytest.raises(TestbedError) as caught:
        ProxyProcess(UNREACHABLE, config=config)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_flags_win_over_the_file() -> None:
    with ProxyProcess(UNREACHABLE, config='[listen]\naddress = "127.0.0.1:1"\n[log]\nlevel = "error"\n') as proxy:
        assert proxy.output.startswith(f"headrace ready: bootstrap 127.0.0.1:{proxy.port} ")
        assert f" upstream {UNREACHABLE} (the cluster has not been reached yet)" in proxy.output
        assert proxy.get("/livez") == (200, '{"status":"ok"}')
        status, body = proxy.get("/readyz")
        assert (status, json.loads(body)["reasons"]) == (503, ["no bootstrap server answers"])
        assert proxy.stop() == 0
        assert proxy.log == ""


def test_check_config_of_the_sample(tmp_path: Path) -> None:
    file = tmp_path / "sample.toml"
    file.write_text(sample_text(), encoding="utf-8")
    result = run_headrace("check-config", file)
    assert result.returncode == 0
    assert result.stdout.startswith("ok: ")


def test_check_config_names_key_line_and_expectation(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(
        '[upstream]\nbootstrap_servers = "kafka"\n\n[listen]\naddres = "127.0.0.1:9192"\n', encoding="utf-8"
    )
    result = run_headrace("check-config", file)
    assert result.returncode == 1
    assert f"{file}:2: upstream.bootstrap_servers" in result.stderr
    assert f"{file}:5: listen.addres" in result.stderr
    assert "did you mean" in result.stderr


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            (
                "[[quotas]]\nentity = { client-id = 'a' }\nrequest_percentage = 5\n"
                "[plugins]\ndisabled = ['request_percentage']"
            ),
            "bad.toml:8: quotas[0].request_percentage: would not be enforced for client-id=a: ",
        ),
        ("[plugins]\ndisabled = ['byterate']", "plugins.disabled names 'byterate'"),
        ("tls.certificate_file = '/nowhere.pem'", 'listen.tls.certificate_file = "/nowhere.pem": cannot be read'),
        (
            "broker_host = 'broker_$(node_id).example.com'\ntls.certificate_file = '/nowhere.pem'",
            "bad.toml:6: listen.broker_host = ",
        ),
        (
            "[upstream.tls]\nenabled = true\nciphers = 'NONSENSE'",
            'upstream.tls.ciphers = "NONSENSE": OpenSSL knows none of these cipher suites',
        ),
        ("[plugins.options.tracing]\nsample_ratio = 7", "bad.toml:7: plugins.options.tracing.sample_ratio = 7: "),
    ],
)
def test_check_config_finds_what_would_keep_it_from_starting(tmp_path: Path, config: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    listen = "[listen]\naddress = '127.0.0.1:9192'\nadvertised_host = 'localhost'\n"
    file.write_text(f"[upstream]\nbootstrap_servers = ['kafka:9092']\n{listen}{config}", encoding="utf-8")
    result = run_headrace("check-config", file)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stdout == ""


COMPLETE = "[upstream]\nbootstrap_servers = ['127.0.0.1:9092']\n[listen]\naddress = '127.0.0.1:9192'\n"


def test_check_config_changes_nothing(tmp_path: Path) -> None:
    file, folder = tmp_path / "headrace.toml", tmp_path / "usage"
    options = f"[plugins.options.usage_records]\nfolder = '{folder}'\n[plugins.options.tracing]\nenabled = true\n"
    file.write_text(f"{COMPLETE}{options}[plugins.options.metrics]\notlp_endpoint = 'http://127.0.0.1:1'\n")
    result = run_headrace("check-config", file)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("ok: listening at 127.0.0.1:9192, advertised as 127.0.0.1:9192\n")
    assert list(tmp_path.iterdir()) == [file]


def test_check_config_names_the_line_of_options_that_no_plugin_has(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(f"{COMPLETE}[plugins.options.tracin]\nenabled = true\n")
    result = run_headrace("check-config", file)
    assert result.returncode == 1
    assert f"{file}:5: plugins.options.tracin: there is no such plugin; did you mean tracing?" in result.stderr


def test_check_config_lists_the_wrong_options_of_all_plugins(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    options = "[plugins.options.tracing]\nsample_ratio = 7\n[plugins.options.metrics]\nidle_s = -1\n"
    file.write_text(COMPLETE + options)
    result = run_headrace("check-config", file)
    assert (result.returncode, result.stdout) == (1, "")
    tracing, metrics, counted = result.stderr.splitlines()
    assert tracing.startswith(f"{file}:6: plugins.options.tracing.sample_ratio = 7: expected a number from 0")
    assert metrics.startswith(f"{file}:8: plugins.options.metrics.idle_s = -1: expected")
    assert counted == "2 problems"


@pytest.mark.parametrize("command", [("check-config",), ("run", "--config")])
def test_wrong_options_are_listed_with_the_errors_of_the_file(tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(f"{COMPLETE}backlog = 0\n[plugins.options.tracing]\nsample_ratio = 7\nspans = 2\n")
    result = run_headrace(*command, file)
    assert result.returncode == 1
    places = [line.removeprefix("headrace: ").partition(" ")[0] for line in result.stderr.splitlines()]
    assert places[:3] == [f"{file}:5:", f"{file}:7:", f"{file}:8:"]


def test_wrong_options_are_listed_beside_options_that_are_no_table(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(f"{COMPLETE}[plugins.options]\ntracing = 5\nusage_records.max_rows = 'x'\n")
    result = run_headrace("check-config", file)
    assert result.returncode == 1
    table, rows, counted = result.stderr.splitlines()
    assert table == f"{file}:6: plugins.options.tracing = 5: expected a table, headed [plugins.options.tracing]"
    assert rows.startswith(f"{file}:7: plugins.options.usage_records.max_rows = ")
    assert counted == "2 problems"


def test_check_config_heeds_variables(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(COMPLETE)
    result = run_headrace("check-config", file, environment={"HEADRACE_LISTEN__NODE_IDS": "0-2"})
    assert "ok: brokers 0-2 at ports 9193-9195" in result.stdout
    result = run_headrace("check-config", file, environment={"HEADRACE_LISTN__NODE_IDS": "0-2"})
    assert (result.returncode, result.stdout) == (1, "")
    assert "HEADRACE_LISTN__NODE_IDS: unknown variable; did you mean HEADRACE_LISTEN__NODE_IDS?" in result.stderr


def test_check_config_without_a_file_checks_the_variables() -> None:
    variables = {"HEADRACE_UPSTREAM__BOOTSTRAP_SERVERS": UNREACHABLE, "HEADRACE_LISTEN__ADDRESS": "127.0.0.1:9192"}
    result = run_headrace("check-config", environment=variables)
    assert (result.returncode, f"ok: upstream {UNREACHABLE}\n" in result.stdout) == (0, True)
    result = run_headrace("check-config")
    assert (result.returncode, result.stdout) == (1, "")
    assert "upstream.bootstrap_servers: required" in result.stderr


def test_a_repeated_flag_adds_to_the_first() -> None:
    again = ("--bootstrap-servers", "127.0.0.1:2,127.0.0.1:3")
    with ProxyProcess(UNREACHABLE, arguments=again) as proxy:
        assert "upstream 127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3 (" in proxy.output


def options_with_one_value(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the names of each command and of each of its options that has one value."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from () if name == "pipeline" else options_with_one_value(command, (*path, name))
        elif command is not None:
            options = [each for each in command.params if isinstance(each, click.Option)]
            yield from ((*path, name, each.opts[0]) for each in options if not (each.multiple or each.is_flag))


def test_no_command_drops_a_value_of_a_repeated_option() -> None:
    """Otherwise a command would act on another proxy or file than on the one that is named first."""
    found = list(options_with_one_value(main))
    assert {("run", "--listen"), ("why", "--admin"), ("quotas", "alter", "--bootstrap-server")} <= set(found)
    for *path, option in found:
        result = CliRunner().invoke(main, [*path, option, "1", f"{option}=2"])
        assert result.exit_code == 2, path
        assert f"'{option}': it has one value, and is given 2 times" in " ".join(result.output.split()), (path, option)


def test_variables_alone_start_a_proxy() -> None:
    port = free_port_block(3)
    variables = {
        "HEADRACE_UPSTREAM__BOOTSTRAP_SERVERS": UNREACHABLE,
        "HEADRACE_LISTEN__ADDRESS": f"127.0.0.1:{port}",
        "HEADRACE_LISTEN__NODE_IDS": "0-1",
    }
    command = [SCRIPT, "run"]
    with subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert line.startswith(f"headrace ready: bootstrap 127.0.0.1:{port} (advertised 127.0.0.1:{port}), brokers 0-1 ")


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ('data_plane = "python"', ""),
        ('data_plane = "auto"', ", no native data plane"),
        ('data_plane = "auto"\nworkers = 2', ", no native data plane"),
        ('data_plane = "native"', ", native data plane, 1 thread"),
        ('data_plane = "native"\ndata_plane_threads = 2', ", native data plane, 2 threads"),
        ('data_plane = "native"\nworkers = 2', ", native data plane, 2 threads"),
    ],
)
def test_the_native_data_plane_is_in_the_line(setting: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTENSION, None)
    servers = f'upstream.bootstrap_servers = ["{UNREACHABLE}"]\nlisten.address = "127.0.0.1:9192"'
    line = ready_line(loads(f"{setting}\n{servers}", "headrace.toml"), None, unreached=[])
    assert line.endswith(f", upstream {UNREACHABLE}{shown}")


def test_workers_are_threads_with_a_warning(tmp_path: Path) -> None:
    warning = "workers is deprecated; set data_plane_threads = 2 instead"
    file = tmp_path / "headrace.toml"
    file.write_text(f"workers = 2\n{COMPLETE}")
    checked = run_headrace("check-config", file)
    assert (checked.returncode, f"warning: {warning}\n" in checked.stderr) == (0, True)
    with ProxyProcess(UNREACHABLE, arguments=("--workers", "2"), config="[log]\nformat = 'json'\n") as proxy:
        proxy.wait_for_log(warning)
        proxy.signal(signal.SIGHUP)
        wait_until(lambda: proxy.log.count(warning) == 2, "it is repeated at a reload")


@pytest.mark.parametrize(
    ("data_plane", "reason"),
    [("python", 'data_plane is "python"'), ("auto", "no native data plane is installed"), ("native", None)],
)
def test_threads_without_a_native_data_plane_are_warned_about(
    data_plane: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, EXTENSION, None)
    config = loads(f'data_plane = "{data_plane}"\ndata_plane_threads = 2\n{COMPLETE}')
    effect = f"data_plane_threads = 2 has no effect: one thread relays, since {reason}"
    assert [*warnings_of(config)] == ([] if reason is None else [effect])


def test_exempting_the_default_entity_is_warned_about() -> None:
    exempt = '[enforcement]\nexempt_client_ids = ["etl", "<defaults>"]\nexempt_users = ["<default>"]\n'
    end = "exempts only what has exactly this name; it does not stand for the default entity"
    found = [each for each in warnings_of(loads(COMPLETE + exempt)) if end in each]
    assert found == [
        f"enforcement.exempt_users: <default> {end}",
        f"enforcement.exempt_client_ids: <defaults> {end}",
    ]


def test_a_usage_folder_that_cannot_be_written_stops_the_start() -> None:
    with pytest.raises(TestbedError, match=r'toml:\d+: plugins.*\.folder = "/proc": .*; expected a writable folder'):
        ProxyProcess(UNREACHABLE, config="[plugins.options.usage_records]\nfolder = '/proc'\n")


def test_check_config_warns_of_a_quota_that_holds_nobody(tmp_path: Path) -> None:
    file = tmp_path / "alice.toml"
    listen = "[listen]\naddress = '127.0.0.1:9192'\nadvertised_host = 'localhost'\n"
    quota = "[[quotas]]\nentity = { user = 'alice' }\nproducer_byte_rate = 5\n"
    disabled = "[plugins]\ndisabled = ['sasl_identity']\n"
    upstream = "[upstream]\nbootstrap_servers = ['kafka:9092']\n"
    file.write_text(f"{upstream}{listen}{quota}", encoding="utf-8")
    result = run_headrace("check-config", file)
    assert (result.returncode, result.stderr) == (0, "")
    file.write_text(f"{upstream}{listen}{disabled}{quota}", encoding="utf-8")
    result = run_headrace("check-config", file)
    assert result.returncode == 0
    assert result.stderr.startswith(
        "warning: quotas: user=alice applies to no client: no loaded plugin determines users"
    )
    assert "remove one that does from plugins.disabled (sasl_identity)" in result.stderr


@pytest.mark.parametrize(
    ("shell", "sign"), [("bash", "complete -o nosort"), ("zsh", "#compdef headrace"), ("fish", "complete --no-files")]
)
def test_the_completion_script_is_printed(shell: str, sign: str) -> None:
    result = run_headrace(environment={"_HEADRACE_COMPLETE": f"{shell}_source"})
    assert result.returncode == 0, result.stderr
    assert sign in result.stdout
    assert f"_HEADRACE_COMPLETE={shell}_complete" in result.stdout


def test_completion_offers_subcommands() -> None:
    words = {"COMP_WORDS": "headrace enf", "COMP_CWORD": "1", "_HEADRACE_COMPLETE": "bash_complete"}
    assert run_headrace(environment=words).stdout == "plain,enforcement\n"


def test_config_sample_is_the_file_that_ships() -> None:
    assert run_headrace("config-sample").stdout == sample_text()


def test_the_schema_has_the_options_of_the_installed_plugins() -> None:
    schema = json.loads(run_headrace("config-schema").stdout)
    options = schema["$defs"]["Plugins"]["properties"]["options"]["properties"]
    assert {"tracing", "metrics", "usage_records", "authorization", "request_percentage"} <= options.keys()
    validator = Draft202012Validator(schema)
    head = '[upstream]\nbootstrap_servers = ["a:1"]\n[listen]\naddress = "b:2"\n'
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    examples = [
        each for each in re.findall(r"```toml[^\n]*\n(.*?)```", pages, re.DOTALL) if "[plugins.options." in each
    ]
    assert len(examples) > 5
    for example in examples:
        document = tomllib.loads(head) | tomllib.loads(example)
        document.pop("quotas", None)  # of entity types that plugins define
        faults = [each.message for each in validator.iter_errors(document)]
        assert faults == [], example
    wrong = tomllib.loads(f"{head}[plugins.options.usage_records]\nrotate_s = 0\n[plugins.options.tracing]\nx = 1\n")
    assert len(list(validator.iter_errors(wrong))) == 2


def test_enforcement_without_a_proxy_reports_what_to_check() -> None:
    result = run_headrace("enforcement", "off", "--admin", UNREACHABLE)
    assert result.returncode == 1
    assert f"cannot reach an admin server at {UNREACHABLE}: connection refused; is the proxy running" in result.stderr
    assert "admin.listen" in result.stderr


OF_CERTIFICATES = """
[listen.tls]
certificate_file = "proxy.pem"
client_ca_file = "clients.pem"
client_certificates = "required"
[listeners.inside]
address = "127.0.0.1:9392"
[client_quotas]
file = "quotas.sqlite"
"""


@pytest.mark.parametrize(
    ("text", "is_warned"),
    [
        (OF_CERTIFICATES, True),
        (OF_CERTIFICATES + 'alter = "administrators"\n', False),
        (OF_CERTIFICATES.replace('[listeners.inside]\naddress = "127.0.0.1:9392"\n', ""), False),
        (OF_CERTIFICATES.replace('file = "quotas.sqlite"\n', ""), False),
    ],
)
def test_anonymous_changes_of_the_quotas_of_proved_users_are_warned_of(text: str, is_warned: bool) -> None:
    found = [each for each in warnings_of(loads(COMPLETE + text)) if each.startswith("client_quotas.alter")]
    text = (
        "client_quotas.alter = anonymous: clients of listeners.inside that do not authenticate may change the quotas of"
        " the users of listen; set client_quotas.alter to administrators"
    )
    assert found == ([text] if is_warned else [])


@pytest.mark.parametrize("has_effect", [False, True])
def test_keys_about_clients_that_have_no_effect_are_warned_of(*, has_effect: bool) -> None:
    shown = 'certificate_file = "p.pem"\nclient_ca_file = "c.pem"\n'
    shown += f'client_certificates = "{"required" if has_effect else "none"}"\n'
    text = (
        f'[listen.tls]\n{shown}principal_mapping_rules = "DEFAULT"\n[admin.tls]\n{shown}'
        f'[listen.sasl]\nmode = "{"terminate" if has_effect else "observe"}"\n'
        'mechanisms = ["PLAIN"]\nsession_lifetime = "1h"\n'
    )
    found = [each.split(" has no effect")[0] for each in warnings_of(loads(COMPLETE + text)) if "no effect" in each]
    keys = ["tls.client_ca_file", "tls.principal_mapping_rules", "sasl.mechanisms", "sasl.session_lifetime"]
    assert found == ([] if has_effect else [*(f"listen.{key}" for key in keys), "admin.tls.client_ca_file"])


@pytest.mark.parametrize("shown", ["none", "required"])
def test_the_certificate_of_the_proxy_for_clients_without_a_login_is_warned_of(shown: str) -> None:
    listen = f'[listen.tls]\ncertificate_file = "p.pem"\nclient_ca_file = "c.pem"\nclient_certificates = "{shown}"\n'
    upstream = '[upstream.tls]\nenabled = true\ncertificate_file = "u.pem"\n'
    found = [each for each in warnings_of(loads(COMPLETE + upstream + listen)) if "act as its user" in each]
    assert len(found) == (shown == "none")
