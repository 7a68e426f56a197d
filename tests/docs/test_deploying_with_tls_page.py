"""The page about deploying with TLS: its files, commands and numbers are those of the samples and of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from headrace.config.loading import loads
from headrace.config.schema import Shutdown
from headrace.proxy.output_queue import END_TIMEOUT_S
from headrace.proxy.server.server import CERTIFICATES_S, CLOSE_TIMEOUT_S
from headrace.quota_callbacks.requests import Address
from testbed.errors import HelmUnavailableError
from testbed.helm import helm
from tests.deploy.chart import CHART, RENDERED, manifests, render_text

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
PAGE = (ROOT / "docs" / "deploying-with-tls.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
CONFIG = loads((DEPLOY / "headrace-tls.toml").read_text(encoding="utf-8"))
FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
PROGRAMS = {
    *("chgrp", "curl", "groupadd", "haproxy", "headrace", "helm", "install", "kubectl", "openssl", "podman"),
    "systemctl",
}


def blocks(language: str) -> list[str]:
    return [text for _, found, text in FENCE.findall(PAGE) if found == language]


def commands() -> list[list[str]]:
    lines = [line for text in blocks("sh") for line in text.replace("\\\n", " ").splitlines()]
    return [shlex.split(part) for line in lines for part in line.split(" | ") if part.strip()]


def command(*words: str) -> list[str]:
    (found,) = [each for each in commands() if set(words) <= set(each)]
    return found


def test_the_page_has_no_block_that_nothing_tests() -> None:
    assert {language for _, language, _ in FENCE.findall(PAGE)} == {"sh", "yaml", ""}
    assert {each[0] for each in commands()} == PROGRAMS


def test_the_files_that_are_named_exist() -> None:
    named = {word for each in commands() for word in each if word.startswith(("docs/", "deploy/"))}
    assert named == {
        "docs/deploy/headrace-tls.toml",
        "docs/deploy/headrace-tls.conf",
        "docs/deploy/haproxy-tls.cfg",
        "docs/deploy/kubernetes-tls.yaml",
        "deploy/helm/headrace",
    }
    assert all((ROOT / name).exists() for name in named)


def test_the_table_has_the_files_that_the_configuration_names() -> None:
    files = set(re.findall(r"^\| `(/etc/[^`]+)` \|", PAGE, re.MULTILINE)) - {"/etc/headrace/headrace.toml"}
    tls, upstream = CONFIG.listen.tls, CONFIG.upstream.tls
    assert files == {tls.certificate_file, tls.key_file, upstream.ca_file, CONFIG.admin.token_file}
    private = re.findall(r"^\| `(\S+)` \|.*0640, group `headrace-files` \|$", PAGE, re.MULTILINE)
    assert private == [tls.key_file, CONFIG.admin.token_file]
    installed = {each[-2] for each in commands() if each[0] == "install" and "0640" in each}
    assert installed == {"kafka.example.com.key", "admin-token", "$RENEWED_LINEAGE/privkey.pem"}
    assert command("chgrp")[2:] == private
    assert "SupplementaryGroups=headrace-files\n" in (DEPLOY / "headrace-tls.conf").read_text(encoding="utf-8")


def test_a_renewed_certificate_replaces_the_files_of_the_configuration() -> None:
    renewed = [each for each in commands() if "$RENEWED_LINEAGE" in " ".join(each)]
    assert [each[-1] for each in renewed] == [CONFIG.listen.tls.certificate_file, CONFIG.listen.tls.key_file]
    assert f"every {CERTIFICATES_S:g} seconds" in WORDS


def test_names_and_addresses_are_those_of_the_samples() -> None:
    listen = CONFIG.listen
    assert listen.broker_host == "broker-$(node_id).kafka.example.com"
    assert f"`{listen.advertised}`" in PAGE
    balancer = (DEPLOY / "haproxy-tls.cfg").read_text(encoding="ascii")
    for address in re.findall(r"server proxy-\d (\S+)", balancer):
        assert address in PAGE
    assert [f"balancer {network.network_address}:" in PAGE for network in listen.proxy_protocol_from] == [True]
    interval = re.search(r"inter (\d)s", balancer)
    assert interval is not None
    assert f"HAProxy checks every {interval[1]} seconds" in WORDS


def test_the_container_has_the_ports_and_the_time_to_stop() -> None:
    run = command("podman", "run")
    assert isinstance(CONFIG.admin.listen, Address)
    published = [run[index + 1].split(":")[1:] for index, word in enumerate(run) if word == "--publish"]
    ports = [str(CONFIG.listen.address.port), str(CONFIG.admin.listen.port)]
    assert published == [[port, port] for port in ports]
    stopped_after_s = Shutdown().drain_timeout_s + CLOSE_TIMEOUT_S + END_TIMEOUT_S
    assert int(run[run.index("--stop-timeout") + 1]) > stopped_after_s
    assert "wait 45 seconds for its end" in WORDS


def test_the_times_of_the_chart() -> None:
    found = manifests(RENDERED.read_text(encoding="utf-8"))
    pause_s = found.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    ready_s = found.one("Deployment")["spec"]["minReadySeconds"]
    assert f"ready for {ready_s} seconds before an old one stops" in WORDS
    assert f"accepts connections for {pause_s} seconds" in WORDS
    token, certificate = (command("create", "secret", kind) for kind in ("generic", "tls"))
    mounted = {volume["secret"]["secretName"] for volume in found.pod["volumes"] if "secret" in volume}
    assert mounted == {token[token.index("generic") + 1], certificate[certificate.index("tls") + 1]}


@pytest.mark.exhaustive
@pytest.mark.timeout(2000)
def test_the_values_are_rendered(tmp_path: Path) -> None:
    """Those of this page, and those of the chart's own."""
    try:
        program = helm()
    except HelmUnavailableError as error:
        pytest.skip(str(error))
    (values,) = blocks("yaml")
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    whole, *parts = [text for _, language, text in FENCE.findall(readme) if language == "yaml"]
    assert len(parts) == 4
    for text in (values, whole, *(f"{whole}{part}" for part in parts)):
        file = tmp_path / "values.yaml"
        file.write_text(text, encoding="utf-8")
        config = manifests(render_text(program, file)).configuration
        assert loads(config).listen.advertised.host == "bootstrap.kafka.example.com"
