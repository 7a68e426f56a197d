"""The page about deploying and the files beside it: every block is loaded or run, every number follows from the code.

What needs a program that this machine may lack (hadolint, haproxy, promtool, nft, systemd-analyze) is skipped with its
name; the files are read here all the same.
"""

from __future__ import annotations

import contextlib
import fnmatch
import http.server
import json
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config.keys import keys
from headrace.config.loading import loads
from headrace.config.schema import Config, Shutdown
from headrace.config.tables.limits import Limits
from headrace.proxy.network.overload import connections_with
from headrace.proxy.network.topology import Topology
from headrace.proxy.output_queue import END_TIMEOUT_S
from headrace.proxy.server.server import CLOSE_TIMEOUT_S
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.tools import Tool, run_tool
from testbed.proxy_process import ProxyProcess
from tests.faults.metrics import series
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
PAGE = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
UNIT = (DEPLOY / "headrace.service").read_text(encoding="utf-8")
HAPROXY = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
RULES = (DEPLOY / "headrace.rules.yml").read_text(encoding="utf-8")
KUBERNETES = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
SCRAPE = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent

FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
ADMIN = "127.0.0.1:9190"
STOPPED_AFTER_S = Shutdown().drain_timeout_s + CLOSE_TIMEOUT_S + END_TIMEOUT_S
OPENED = 100
"""Descriptors that a proxy has open before it serves a client."""
API_VERSIONS = struct.pack(">ihhih3s", 13, ApiKey.API_VERSIONS, 0, 1, 3, b"abc")


def blocks(language: str) -> list[str]:
    return [textwrap.dedent(text) for _, found, text in FENCE.findall(PAGE) if found == language]


def block(language: str, word: str) -> str:
    return next(each for each in blocks(language) if word in each)


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def table(head: str) -> list[list[str]]:
    """The rows of the table whose first line begins with ``head``."""
    lines = PAGE[PAGE.index(f"| {head} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def example() -> Config:
    return loads(blocks("toml")[0])


def ports(config: Config) -> list[int]:
    listen = config.listen
    return [listen.address.port, *(listen.address.port + 1 + node_id for node_id in listen.node_ids)]


def run(*command: str | Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT)


def needs(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path=str(BIN))
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


# --- the page ---


def test_the_page_has_no_block_that_nothing_tests() -> None:
    assert {language for _, language, _ in FENCE.findall(PAGE)} == {"toml", "sh", "nft", "ini", "properties", ""}


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_configuration_loads(text: str) -> None:
    assert loads(text).listen.advertised_host == "headrace.example.com"


def test_mapped_ports_agree_with_the_comment() -> None:
    listen = loads(block("toml", "advertised_port")).listen
    host, port = listen.advertised.host, listen.advertised.port
    topology = Topology(advertised_host=host, advertised_port=port, node_ids=listen.node_ids)
    stated = re.search(r"brokers 0, 1, 2 are advertised at (\d+), (\d+), (\d+)", PAGE)
    assert stated is not None
    assert [topology.advertised(node_id) for node_id in range(3)] == [(host, int(each)) for each in stated.groups()]


TABLES = "upstream|listen|limits|shutdown|admin|log|enforcement|plugins"


@pytest.mark.parametrize("key", sorted(set(re.findall(rf"`((?:{TABLES})(?:\.[a-z_]+)+)[` =*]", PAGE))))
def test_every_key_that_is_named_exists(key: str) -> None:
    assert key in {leaf.key for leaf in keys(Config)}


def test_the_table_of_ports_is_that_of_the_example() -> None:
    numbers = [int(each) for row in table("port") for each in row[0].split(", ")]
    admin = example().admin.listen
    assert admin is not None
    assert numbers == [*ports(example()), admin.port]


def test_what_a_reload_changes_agrees_with_the_schema() -> None:
    rows = [(re.findall(r"`([^`]+)`", keys), "restart" in when) for keys, when in table("keys")]
    for leaf in keys(Config):
        restarts = [restart for patterns, restart in rows for each in patterns if fnmatch.fnmatch(leaf.key, each)]
        assert restarts == [leaf.about.restart], leaf.key


def test_every_log_line_is_one_that_is_logged() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "proxy").rglob("*.py"))
    rows = table("line")
    assert len(rows) > 5
    for line, level, _ in rows:
        call = "(?:error|exception)" if level == "error" else level
        assert re.search(rf"log\.{call}\((?:\s|#.*\n)*\"{re.escape(line.strip('`'))}", source), line
    assert '"configuration change waits for a restart"' in source


# --- numbers that follow from others ---


def test_every_sample_gives_a_stop_the_time_it_may_take() -> None:
    assert float(unit("TimeoutStopSec")[0].removesuffix("s")) > STOPPED_AFTER_S
    assert int(option(podman_run(), "--stop-timeout")) > STOPPED_AFTER_S
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", KUBERNETES)
    pause = re.search(r"sleep:\n +seconds: (\d+)", KUBERNETES)
    assert grace is not None
    assert pause is not None
    assert int(grace[1]) > int(pause[1]) + STOPPED_AFTER_S


def test_descriptors_are_enough_for_the_default_limit() -> None:
    needed = 3 * Limits().max_connections + 1000
    assert "three times `limits.max_connections`, plus 1,000" in PAGE
    assert connections_with(needed, OPENED) >= Limits().max_connections
    assert connections_with(int(unit("LimitNOFILE")[0]), OPENED) >= Limits().max_connections
    assert option(podman_run(), "--ulimit") == f"nofile={unit('LimitNOFILE')[0]}:{unit('LimitNOFILE')[0]}"


def test_every_sample_has_the_ports_of_the_example() -> None:
    first, last = min(ports(example())), max(ports(example()))
    assert f"bind :{first}-{last}\n" in HAPROXY
    assert f"--publish {first}-{last}:{first}-{last} --publish {ADMIN}:9190 " in block("sh", "podman run")
    everything = ports(
        loads('upstream.bootstrap_servers = ["a:1"]\nlisten = {address = "h:9192", advertised_host = "h"}')
    )
    assert f"\nEXPOSE 9190 {min(everything)}-{max(everything)}\n" in CONTAINERFILE


def test_the_balancer_waits_longer_than_the_proxy() -> None:
    for side in ("client", "server"):
        found = re.search(rf"timeout {side} (\d+)h", HAPROXY)
        assert found is not None
        assert int(found[1]) * 3600 > Limits().idle_timeout_s
    check = re.search(r"timeout check (\d+)s", HAPROXY)
    assert check is not None
    assert int(check[1]) > 2 * example().upstream.connect_timeout_s


def test_kubernetes_sample() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    objects: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all(KUBERNETES)}
    config = loads(objects["ConfigMap"]["data"]["headrace.toml"])
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    admin = config.admin.listen
    assert isinstance(admin, Address)
    assert [each["containerPort"] for each in container["ports"]] == [admin.port, *ports(config)]
    names = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert [(each["port"], names[each["targetPort"]]) for each in objects["Service"]["spec"]["ports"]] == [
        (each, each) for each in ports(config)
    ]
    clients, monitoring = objects["NetworkPolicy"]["spec"]["ingress"]
    assert clients["ports"] == [{"port": min(ports(config)), "endPort": max(ports(config))}]
    assert monitoring["ports"] == [{"port": admin.port}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "admin"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    assert container["readinessProbe"]["timeoutSeconds"] > 2 * config.upstream.connect_timeout_s
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}\n" in CONTAINERFILE


def test_the_token_of_the_kubernetes_sample_is_where_it_is_read() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    objects: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all(KUBERNETES)}
    token_file = loads(objects["ConfigMap"]["data"]["headrace.toml"]).admin.token_file
    assert token_file is not None
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if token_file.startswith(each["mountPath"]))
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
    created = next(each for each in commands(block("sh", "create secret")) if "secret" in each)
    assert volume["secret"]["secretName"] == created[created.index("generic") + 1]
    assert f"--from-file={Path(token_file).name}=" in " ".join(created)
    assert volume["secret"]["defaultMode"] == 0o440, "readable by fsGroup"
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_the_scrape_job_is_that_of_the_alerts() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    (job,) = yaml.safe_load(SCRAPE)["scrape_configs"]
    assert f'job="{job["job_name"]}"' in RULES
    assert job["authorization"].keys() == {"type", "credentials_file"}
    admin = example().admin.listen
    assert isinstance(admin, Address)
    (group,) = job["static_configs"]
    assert {each.rpartition(":")[2] for each in group["targets"]} == {str(admin.port)}
    assert all(each.rpartition(":")[0] in PAGE for each in group["targets"])


# --- the container ---


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in CONTAINERFILE.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line]


def test_containerfile() -> None:
    by_name: dict[str, list[str]] = {}
    for name, value in instructions():
        by_name.setdefault(name, []).append(value)
    assert by_name["FROM"] == ["rust:1.95-slim AS rust", "python:3.11 AS build", "python:3.11-slim"]
    assert json.loads(by_name["ENTRYPOINT"][0]) == ["headrace"]
    assert json.loads(by_name["CMD"][0]) == ["run", "--config", "/etc/headrace/headrace.toml"]
    assert by_name["STOPSIGNAL"] == ["SIGTERM"]
    assert "--require-hashes -r requirements/run.txt" in by_name["RUN"][0]
    assert "--no-deps ." in by_name["RUN"][0]
    copied = [source for value in by_name["COPY"] if "--from" not in value for source in value.split()[:-1]]
    assert all((ROOT / each).exists() for each in copied)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = set(re.findall(r'"([a-z_]+)\*"', project)) - {"testbed", "examples"}
    assert packages < set(copied)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (None, False)])
def test_the_health_check_succeeds_for_a_live_proxy_only(status: int | None, healthy: bool) -> None:
    check = next(value for name, value in instructions() if name == "HEALTHCHECK")
    program, *arguments = json.loads(check.split("CMD ", 1)[1])
    assert program == "python"

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response((status or 500) if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        if status is None:
            server.socket.close()
        result = run(sys.executable, *(each.replace("9190", str(server.server_port)) for each in arguments))
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert (result.returncode == 0) is healthy, result.stderr


def test_hadolint_accepts_the_containerfile() -> None:
    result = run(needs("hadolint"), DEPLOY / "Containerfile")
    assert result.returncode == 0, result.stdout


# --- systemd ---


def unit(key: str) -> list[str]:
    found = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    assert found, key
    return found


def verifiable_unit(folder: Path) -> Path:
    """The unit with programs that are on this machine, since systemd looks for them."""
    text = UNIT.replace("/opt/headrace/bin/headrace", str(BIN / "headrace"))
    path = folder / "headrace.service"
    path.write_text(text.replace("/bin/kill", shutil.which("kill") or sys.executable), encoding="utf-8")
    return path


def test_unit() -> None:
    sections = re.findall(r"^\[(.*)\]$", UNIT, re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
    lines = [line for line in UNIT.splitlines() if line and line[0] not in "#["]
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+=.*", line) for line in lines)
    wanted = {
        "Type": "notify",
        "WatchdogSec": "30s",
        "ExecStart": "/opt/headrace/bin/headrace run --config /etc/headrace/headrace.toml",
        "KillSignal": "SIGTERM",
        "Restart": "on-failure",
        "RestartForceExitStatus": "SIGHUP",
        "EnvironmentFile": "-/etc/headrace/environment",
        "DynamicUser": "yes",
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
    }
    assert {key: unit(key)[-1] for key in wanted} == wanted
    assert unit("ExecReload") == [
        "/opt/headrace/bin/headrace check-config /etc/headrace/headrace.toml",
        "/bin/kill -HUP $MAINPID",
    ]


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    result = run(needs("systemd-analyze"), "verify", verifiable_unit(tmp_path))
    assert not [line for line in result.stderr.splitlines() if "headrace" in line]
    assert result.returncode == 0, result.stderr


def test_the_unit_exposes_little(tmp_path: Path) -> None:
    analyze = needs("systemd-analyze")
    result = run(analyze, "security", "--no-pager", "--offline=true", "--threshold=15", verifiable_unit(tmp_path))
    if "unrecognized option" in result.stderr:
        pytest.skip("systemd-analyze is older than 250 and has no --offline")
    assert result.returncode == 0, result.stdout[-300:] + result.stderr


# --- checkers of others ---


def test_haproxy_accepts_its_sample() -> None:
    result = run(needs("haproxy"), "-c", "-f", DEPLOY / "haproxy.cfg")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "warning" not in (result.stdout + result.stderr).lower()


def test_prometheus_accepts_the_alerts() -> None:
    result = run(needs("promtool"), "check", "rules", DEPLOY / "headrace.rules.yml")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("text", blocks("nft"))
def test_nftables_accepts_the_rules(text: str, tmp_path: Path) -> None:
    (tmp_path / "rules.nft").write_text(text, encoding="utf-8")
    result = run(needs("nft"), "--check", "--file", tmp_path / "rules.nft")
    if "Operation not permitted" in result.stderr:
        pytest.skip("nft may not ask this kernel")
    assert result.returncode == 0, result.stderr


def test_the_environment_has_variables_of_opentelemetry() -> None:
    from opentelemetry.sdk import environment_variables

    names = [line.split("=", 1)[0] for line in block("ini", "OTEL").splitlines()]
    assert names
    assert not [name for name in names if not hasattr(environment_variables, name)]


# --- a running proxy ---


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, has_token=True) as running:
        yield running


def test_every_metric_that_is_named_exists(proxy: ProxyProcess) -> None:
    there = set(re.findall(r"^# TYPE (\S+)", proxy.get("/metrics")[1], re.MULTILINE))
    named = set(re.findall(r"\b((?:headrace|process)_[a-z_]+)", "\n".join(re.findall(r"`([^`\n]+)`", PAGE))))
    alerts = set(re.findall(r"\b((?:headrace|process)_[a-z_]+)", "\n".join(re.findall(r"expr: (.*)", RULES))))
    assert len(named) > 15
    assert len(alerts) > 7
    assert (named | alerts) - there == set()
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    unnamed = {name for name in there if name.startswith("headrace_") and f"`{name}" not in pages}
    assert unnamed == set()


def test_the_proxy_protocol_is_refused_as_documented(proxy: ProxyProcess) -> None:
    assert "`does not accept the PROXY protocol`" in PAGE
    version_1, version_2 = b"PROXY TCP4 192.0.2.1 192.0.2.2 5 6\r\n", b"\r\n\r\n\0\r\nQUIT\n" + bytes(16)
    for host, header in (("127.0.0.1", version_1), ("127.0.0.2", version_2)):  # a line a minute is logged for each host
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10, source_address=(host, 0)) as client:
            client.sendall(header)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
    wait_until(lambda: proxy.log.count("does not accept the PROXY protocol") == 2, "the reason is logged for both")


def test_a_tcp_check_that_ends_with_a_reset_is_counted_and_not_logged(proxy: ProxyProcess) -> None:
    counter, resets = 'headrace_errors_total{fault="client"}', proxy.log.count("connection reset")
    before = series(proxy, counter)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: series(proxy, counter) > before, "the reset is counted")
    assert proxy.log.count("connection reset") == resets


STUBS = ("python3", "systemctl", "journalctl", "podman", "kubectl", "sysctl")
"""Programs that would change this machine or need another one: their calls are written down instead."""

REAL = ("headrace", "curl", "install", "haproxy")


def podman_run() -> list[str]:
    return next(each for each in commands(block("sh", "podman run")) if each[1] == "run")


def put_stubs(folder: Path) -> Path:
    calls = folder / "calls"
    for path in [*(folder / "bin" / name for name in STUBS), folder / "opt" / "headrace" / "bin" / "pip"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >> {calls}\n', encoding="utf-8")
        path.chmod(0o755)
    return calls


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", [each for each in blocks("sh") if "kafka-" not in each])
def test_every_command_runs(text: str, proxy: ProxyProcess, tmp_path: Path) -> None:
    calls = put_stubs(tmp_path)
    programs = {Path(each[0]).name for each in commands(text)}
    assert programs <= {*STUBS, *REAL, "pip", "export"}
    for program in programs.intersection(REAL):
        needs(program)
    file = tmp_path / "etc" / "headrace" / "headrace.toml"
    file.parent.mkdir(parents=True)
    file.write_text(blocks("toml")[0], encoding="utf-8")
    file.with_name("admin-token").write_text(proxy.token_file.read_text(encoding="ascii"), encoding="ascii")
    script = (
        text.replace("/etc/", f"{tmp_path}/etc/")
        .replace("/opt/", f"{tmp_path}/opt/")
        .replace(ADMIN + "/", proxy.admin + "/")
    )
    script = script.replace(f"--admin {ADMIN}", f"--admin {proxy.admin}")
    path = f"{tmp_path / 'bin'}:{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    variables = f"export PATH={path} HEADRACE_ADMIN__TOKEN_FILE={file.with_name('admin-token')}"
    result = run("bash", "-euo", "pipefail", "-c", f"{variables}\n{script}")
    assert result.returncode == 0, result.stdout + result.stderr
    for call in calls.read_text(encoding="utf-8").splitlines() if calls.exists() else ():
        assert all((ROOT / each).is_file() for each in call.split() if each.startswith("docs/")), call
    if "install" in programs:
        assert (tmp_path / "etc" / "systemd" / "system" / "headrace.service").read_text(encoding="utf-8") == UNIT
        loads(file.read_text(encoding="utf-8"))
    if "--request PUT" in text:
        assert proxy.metric("headrace_enforcement_enabled") == 0
    if "enforcement on" in text:
        assert proxy.metric("headrace_enforcement_enabled") == 1


# --- the brokers' side ---

KAFKA_TOOLS = {"kafka-acls.sh": Tool.ACLS, "kafka-configs.sh": Tool.CONFIGS}


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """A broker with ACLs, of our own since its configuration is changed."""
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": True,
    }
    with KafkaCluster(config=config) as cluster:
        yield cluster


def answered(address: tuple[str, int], source: str) -> tuple[socket.socket, bool]:
    """A connection from ``source``, and whether a broker answered on it."""
    client = socket.create_connection(address, timeout=10, source_address=(source, 0))
    client.sendall(API_VERSIONS)
    try:
        return client, bool(client.recv(4))
    except ConnectionResetError:
        return client, False


def two_clients(address: tuple[str, int]) -> list[bool]:
    """Whether two clients from different addresses are served at the same time."""
    clients = [answered(address, source) for source in ("127.0.0.2", "127.0.0.3")]
    for client, _ in clients:
        client.close()
    return [served for _, served in clients]


@pytest.mark.exhaustive
def test_the_commands_for_the_brokers_and_what_they_are_for(guarded: KafkaCluster, tmp_path: Path) -> None:
    server = guarded.bootstrap_servers
    output = ""
    for text in [each for each in blocks("sh") if "kafka-" in each]:
        for program, *arguments in commands(text):
            there = [each.replace("kafka-1.internal:9092", server) for each in arguments]
            output += run_tool(KAFKA_TOOLS[program], there).stdout
    assert all(f"User:orders, host=192.0.2.{last}, operation=WRITE" in output for last in (11, 12))
    described = run_tool(Tool.CONFIGS, ["--bootstrap-server", server, "--describe", "--entity-type", "ips"]).stdout
    assert described.count("connection_creation_rate=1000.0") == 2
    brokers = ["--bootstrap-server", server, "--entity-type", "brokers", "--entity-default"]
    assert "overrides=192.0.2.11:10000,192.0.2.12:10000" in run_tool(Tool.CONFIGS, [*brokers, "--describe"]).stdout

    with ProxyProcess(server, config=f'[client_quotas]\nfile = "{tmp_path / "quotas.sqlite"}"\n') as running:
        quota = ["--alter", "--entity-type", "clients", "--entity-name", "x", "--add-config", "producer_byte_rate=1000"]
        run_tool(Tool.CONFIGS, ["--bootstrap-server", running.bootstrap_servers, *quota])
        of_clients = ["--describe", "--entity-type", "clients"]
        described = [
            run_tool(Tool.CONFIGS, ["--bootstrap-server", each, *of_clients]).stdout
            for each in (running.bootstrap_servers, server)
        ]
        assert ["producer_byte_rate=1000" in each for each in described] == [True, False]

        direct, proxied = (guarded.brokers[0].host, guarded.brokers[0].port), ("127.0.0.1", running.broker_port(0))
        assert two_clients(proxied) == [True, True]
        run_tool(Tool.CONFIGS, [*brokers, "--alter", "--add-config", "max.connections.per.ip=1"])
        deadline = time.monotonic() + 20
        while two_clients(proxied) != [True, False]:  # the broker takes a moment to heed it, and to notice a close
            assert time.monotonic() < deadline
        assert two_clients(direct) == [True, True]
