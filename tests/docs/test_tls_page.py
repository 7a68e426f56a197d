"""The page about TLS: its configurations load, and its tables, numbers and log lines are those of the code."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.config.keys import keys
from headrace.config.loading import loads
from headrace.config.overrides import environment_overrides
from headrace.config.schema import Config
from headrace.config.tables.limits import Limits
from headrace.config.tables.tls import ClientCertificates, ListenTls
from headrace.proxy.admin.http import PROBES
from headrace.proxy.cli import main
from headrace.proxy.data_plane.native import is_installed
from headrace.proxy.network.broker_names import BrokerNames
from headrace.proxy.network.tls import failures
from headrace.proxy.network.tls.contexts import DEFAULT_CIPHERS, EXPIRES_SOON, server_context
from headrace.proxy.network.tls.failures import failure_of, plaintext_failure
from headrace.proxy.network.tls.kernel import support
from headrace.proxy.network.tls.renewal import CERTIFICATES_S
from headrace.proxy.network.tls.subjects.mapping_patterns import StepBudget
from headrace.proxy.network.tls.subjects.pattern_syntax import MAX_STATES, compile_pattern
from headrace.proxy.network.tls.subjects.principals import MAX_RULES, PrincipalRules
from headrace.proxy.network.upstream import other_protocol_of_broker
from headrace.proxy.server.command import tls_library_text
from headrace.proxy.wire.other_protocols import TLS
from headrace.proxy.wire.proxy_protocol import MAX_HEADER_BYTES
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from testbed.kafka.certificates import Authority
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls
from tests.pages import blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tls.md").read_text(encoding="utf-8")
blocks = partial(blocks_of, PAGE)
WORDS = " ".join(PAGE.split())
SOURCE = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "proxy").rglob("*.py"))


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> list[str]:
    """The first cells of the tables, without their heads."""
    rows = re.findall(r"^\| (.*?) \|.*\|$", text, re.MULTILINE)
    return [
        cell for cell in rows if cell.startswith("`") and cell not in ("`reason` contains", "`client_certificates`")
    ]


def known_keys() -> set[str]:
    return {leaf.key for leaf in keys(Config)}


# --- configurations and commands ---


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_configuration_loads(text: str) -> None:
    config = loads(text)
    assert config.admin.tls.certificate_file or any(
        each.listen.tls.certificate_file or each.upstream.tls.enabled or each.listen.proxy_protocol_from
        for each in config.all_listeners()
    )


def test_every_kind_of_configuration_is_there() -> None:
    configs = [loads(text) for text in blocks("toml")]
    assert len(configs) == 8
    (admin,) = [each.admin for each in configs if each.admin.tls.certificate_file is not None]
    assert admin.tls.authorizes
    assert admin.token_file is None
    shown = ClientCertificates.REQUIRED
    (mutual,) = [each for each in configs if each.listen.tls.client_certificates is shown]
    assert mutual.upstream.tls.certificate_file is not None
    user = PrincipalRules(mutual.listen.tls.principal_mapping_rules).principal("CN=Orders,OU=Services,O=Example")
    assert [entity.user for entity in mutual.entity_quotas()] == [user]
    one_port, external = [
        each.listen for config in configs for each in config.all_listeners() if each.listen.broker_host is not None
    ]
    assert external.broker_host == one_port.broker_host
    assert one_port.broker_host is not None
    wildcard = "*.kafka.example.com"
    assert BrokerNames(one_port.broker_host).host_of(0).partition(".")[2] == wildcard.removeprefix("*.")
    assert f"`{wildcard}`" in PAGE
    assert f"{wildcard}. " in PAGE, "the record of the DNS"
    assert one_port.advertised.host.partition(".")[2] == wildcard.removeprefix("*.")


def test_the_commands_are_of_known_programs() -> None:
    lines = [line for text in blocks("sh") for line in text.splitlines()]
    assert {line.split()[0] for line in lines} == {"headrace", "keytool", "openssl", "curl"}
    assert {line.split()[1] for line in lines if line.startswith("openssl")} == {"x509", "s_client"}
    check, *others = [line.split()[1:] for line in lines if line.startswith("headrace")]
    assert check == ["check-config", "/etc/headrace/headrace.toml"]
    for name, *arguments in others:
        main.commands[name].make_context(name, arguments).close()
    assert {name for name, *_ in others} == {"why", "ready"}


def test_the_options_of_the_admin_server_are_those_of_the_commands() -> None:
    listed = dict(
        re.findall(r"^\| `(--admin-[a-z-]+) [A-Z]+` \| `([A-Z_]+)` \|", section("The admin server"), re.MULTILINE)
    )
    options = {option.opts[0]: option for option in main.commands["ready"].params}
    assert listed == {
        name: option.envvar for name, option in options.items() if name.startswith("--admin-") and option.envvar
    }
    assert len(listed) == 4
    assert not environment_overrides(dict.fromkeys(listed.values(), "x"), {})[1], "variables that the proxy ignores"


def test_the_yaml_is_for_probes_and_for_prometheus() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    probes, scrape = map(yaml.safe_load, blocks("yaml"))
    assert {each["httpGet"]["scheme"] for each in probes.values()} == {"HTTPS"}
    assert [each["httpGet"]["path"] for each in probes.values()] == [*PROBES]
    assert scrape["scrape_configs"][0]["tls_config"].keys() == {"ca_file", "cert_file", "key_file"}


def test_every_setting_exists() -> None:
    tables = "upstream|listen|limits|log|admin"
    named = set(re.findall(rf"`((?:{tables})(?:\.[a-z_0-9]+)+)[` =]", PAGE)) - {
        "listen.tls",
        "upstream.tls",
        "admin.tls",
    }
    assert len(named) > 15
    assert named <= known_keys()
    short = set(re.findall(r"`(certificate_file|key_file|ca_file|key_password|min_version|ciphers|[a-z]+_from)`", PAGE))
    assert all(any(key.endswith(f".{each}") for key in known_keys()) for each in short)


def test_every_value_of_client_certificates_is_explained() -> None:
    assert [each.strip("`") for each in first_cells(section("Certificates on both sides"))] == [*ClientCertificates]


# --- mapping rules ---


def test_the_examples_of_mapping_rules() -> None:
    text = section("Mapping rules")
    (rules,) = re.findall(r"^For the rules `(.*)`:$", text, re.MULTILINE)
    mapped = re.findall(r"^\| `(CN=[^`]*)` \| `([^`]*)` \|$", text, re.MULTILINE)
    assert len(mapped) == 3
    assert mapped == [(subject, PrincipalRules(rules).principal(subject)) for subject, _ in mapped]


@pytest.mark.parametrize(
    "pattern",
    [
        *("a(?=b)", "a(?!b)", "(?<=a)b", "(?<!a)b", r"(a)\1", "a*+", "(?>a)", "((a)|b)*", "(?:a*)*", r"\bcn", r"\p{L}"),
        *(r"\Qa\E", r"\011", "[a[b]]", "(?s)a"),
    ],
)
def test_what_is_said_to_be_refused_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="supported"):
        compile_pattern(pattern)


@pytest.mark.parametrize("pattern", ["((?:a)|b)*", "a*", "[A-Za-z0-9]", "(?i)a"])
def test_what_is_said_to_work_instead_does(pattern: str) -> None:
    assert f"`{pattern}`".replace("|", r"\|") in PAGE or pattern == "(?i)a"
    assert compile_pattern(pattern).matches("a", StepBudget())


# --- numbers and log lines ---


def test_the_numbers_are_those_of_the_code() -> None:
    limits = Limits()
    assert f"| `limits.max_tls_handshakes` | {limits.max_tls_handshakes} |" in PAGE
    assert f"| `limits.tls_handshake_timeout` | {limits.tls_handshake_timeout_s:g} s |" in PAGE
    assert f"looks at its files every {CERTIFICATES_S:g} seconds" in WORDS
    assert f"from {EXPIRES_SOON.days} days before" in WORDS
    assert f"- time() < {EXPIRES_SOON.days} * 86400" in PAGE
    assert f"There can be {MAX_RULES} rules, of {MAX_STATES} states each" in WORDS
    assert f"may have {MAX_PRINCIPAL_CHARACTERS:,} characters" in WORDS
    assert f"may have {MAX_HEADER_BYTES:,} bytes" in WORDS
    assert DEFAULT_CIPHERS == "ECDHE+AESGCM:ECDHE+CHACHA20"
    assert "ECDHE with AES-GCM or ChaCha20" in WORDS


def test_every_log_line_is_logged() -> None:
    for line in (
        "connection closed",
        "the cluster cannot be reached",
        "TLS files loaded again",
        "the new TLS files cannot be used; the old ones stay in use",
        "kernel TLS is not used",
    ):
        assert f"`{line}`" in PAGE
        assert re.search(rf'log\.[a-z]+\(\s*"{re.escape(line)}"', SOURCE), line


def test_the_end_of_a_certificate_is_logged_as_documented(tmp_path: Path) -> None:
    certificate = Authority(tmp_path).broker_certificate()
    tls = ListenTls.model_validate({"certificate_file": str(certificate.keystore_file)})
    context = server_context(tls, "listen.tls", lambda _: True)
    assert context.identity is not None
    expires = context.identity.expires
    with capture_logs() as logged:
        for now in (expires - EXPIRES_SOON - timedelta(minutes=1), expires - EXPIRES_SOON, expires + timedelta(days=1)):
            context.check_expiry(now.astimezone(UTC))
    assert [each["event"] for each in logged] == ["the certificate expires soon", "the certificate has expired"]
    assert "`the certificate authority expires soon`" in PAGE
    assert all(f"`{each['event']}`" in PAGE for each in logged)


def test_the_metrics_are_there(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = listen_tls(authority.broker_certificate(), clients=authority.ca_file)
    with ProxyProcess("127.0.0.1:1", config=config) as proxy:
        page = proxy.get("/metrics")[1]
        openssl = " ".join(ssl.OPENSSL_VERSION.split()[:2])
        library = f"rustls, or {openssl} where it is needed" if is_installed() else openssl
        assert f", TLS by {library}, without kernel TLS" in proxy.output
    assert set(re.findall(r"`(headrace_[a-z_]+)`", PAGE)) <= set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    labelled = re.findall(r"^(headrace_tls_\w+){(\w+)=\"([\w.]+)\"}", page, re.MULTILINE)
    assert {name for name, _, _ in labelled} == set(re.findall(r"^\| `(headrace_tls_[a-z_]+)` \|", PAGE, re.MULTILINE))
    rows = dict(re.findall(r"^\| `(headrace_tls_[a-z_]+)` \| (.*?) \|", PAGE, re.MULTILINE))
    assert all(f"`{label}`" in rows[name] and f"`{value}`" in rows[name] for name, label, value in labelled)


@pytest.mark.parametrize("problem", [None, "the kernel does not offer it, or its module tls is not loaded"])
def test_the_report_of_kernel_tls(monkeypatch: pytest.MonkeyPatch, problem: str | None) -> None:
    monkeypatch.setattr(support, "_problem_of_system", lambda: problem)
    config = next(each for each in map(loads, blocks("toml")) if each.upstream.tls.kernel)
    report = "kernel TLS to brokers if OpenSSL supports it" if problem is None else "without kernel TLS, since"
    assert f"`{report}`" in WORDS
    assert tls_library_text(config).endswith(f", {report}{f' {problem}' if problem else ''}")


def test_the_alerts_are_those_of_the_rules() -> None:
    alerts = re.findall(r"^(headrace_tls_.* < .*)$", PAGE, re.MULTILINE)
    rules = (ROOT / "docs" / "deploy" / "headrace.rules.yml").read_text(encoding="utf-8")
    assert alerts == re.findall(r"^        expr: (headrace_tls_.*)$", rules, re.MULTILINE)
    assert len(alerts) == 2


# --- failures ---

FAILURES = section("When a connection fails")
BESIDES, VERIFIED, FOUND, SENT = (
    FAILURES.split(f"{heading}", 1)[1].split("\n\n", 2)[1]
    for heading in (
        "such as plaintext at a listener with TLS, or the PROXY protocol:",
        "Certificates that the proxy does not accept, of a client or of a broker:",
        "Other reasons that the proxy itself finds in a handshake:",
        "`listen.tls.certificate_file` or `upstream.tls.certificate_file`:",
    )
)


def found(reason: str) -> Iterator[str]:
    """What is logged for a reason of OpenSSL, about a client and about a broker."""
    error = ssl.SSLError(1, "")
    error.reason = reason
    yield failure_of(error, "listen.tls", server_side=True).removeprefix("TLS: ")
    yield failure_of(error, "upstream.tls", server_side=False).removeprefix("TLS: ")


def test_every_failure_that_the_proxy_finds_is_listed() -> None:
    listed = {text for cell in first_cells(FOUND) for text in re.findall(r"`([^`]+)`", cell)}
    possible = set()
    for reason in failures._FOUND_HERE:
        texts = set(found(reason))
        assert texts & listed, reason
        possible |= texts
    ended = '"TLS: the {peer} closed the connection in the handshake"'
    assert ended in SOURCE
    assert listed - possible == {"the client closed the connection in the handshake"}


def test_every_alert_is_listed() -> None:
    listed = [cell.strip("`") for cell in first_cells(SENT)]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(failures._SENT_BY_PEER.values())
    assert "`sent the alert`" in FAILURES
    assert "the client sent the alert no such alert" in set(found("SSLV3_ALERT_NO_SUCH_ALERT"))


def test_what_is_wrong_with_certificates_has_the_advice_of_the_log() -> None:
    for cell in first_cells(VERIFIED):
        (row,) = [line for line in VERIFIED.splitlines() if line.startswith(f"| {cell} |")]
        error = ssl.SSLCertVerificationError(1, "")
        error.verify_message = cell.strip("`")
        for setting, server_side in (("listen.tls", True), ("upstream.tls", False)):
            text = failure_of(error, setting, server_side=server_side)
            assert cell.strip("`") in text
            advised = re.findall(r"(?:listen|upstream)\.tls\.\w+", text)
            assert all(f"`{each}" in row or "as above" in row for each in advised), text


def test_every_other_failure_is_logged() -> None:
    logged = [
        plaintext_failure(b"\0\0\0\x1f\0", "listen.tls"),
        plaintext_failure(b"GET /", "listen.tls"),
        plaintext_failure(b"\r\n\r\n\0", "listen.tls"),
        other_protocol_of_broker("kafka-1:9093", TLS, "upstream"),
        SOURCE,
    ]
    cells = first_cells(BESIDES)
    assert len(cells) > 10
    for cell in cells:
        for text in re.findall(r"`([^`]+)`", cell):
            assert any(text in each for each in logged), text
    assert all(any(cell.strip("`") in each for cell in cells) for each in logged[:-1])
