"""The chart of Helm: what it renders is valid for Kubernetes, and `headrace check-config` accepts its configuration.

Helm is built by Go if it is not installed, which takes minutes; so tests that render are exhaustive. The quick ones
read the chart's files and docs/deploy/kubernetes-tls.yaml, which Helm has rendered.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from click.testing import CliRunner

from headrace.config.loading import loads
from headrace.proxy.cli import main
from headrace.proxy.output_queue import END_TIMEOUT_S
from headrace.proxy.server.server import CLOSE_TIMEOUT_S
from headrace.quota_callbacks.requests import Address
from testbed.errors import HelmError, HelmUnavailableError
from testbed.helm import existing_helm, run_helm
from testbed.helm import helm as find_helm
from tests.deploy.chart import (
    CHART,
    RENDERED,
    RENDERED_VALUES,
    ROOT,
    VALUES,
    Manifests,
    manifests,
    render_text,
    with_secrets,
)

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config.schema import Config
    from testbed.kafka.certificates import Authority

CONTAINERFILE = (ROOT / "docs" / "deploy" / "Containerfile").read_text(encoding="utf-8")
OLDEST_KUBERNETES = "1.30"
BUILD_TIMEOUT_S = 2000
CUSTOM = {"Certificate", "ServiceMonitor"}
"""Kinds that Kubernetes itself does not have."""
PLUGIN = "class MyPlugin:\n    headrace_hooks = 1\n"

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


@pytest.fixture(scope="module")
def helm() -> Path:
    try:
        return find_helm()
    except HelmUnavailableError as error:
        pytest.skip(str(error))


def rendered() -> Manifests:
    return manifests(RENDERED.read_text(encoding="utf-8"))


def check(found: Manifests, authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Let ``headrace check-config`` read the configuration as in the pod, and return it."""
    (folder / "my_plugin.py").write_text(PLUGIN, encoding="ascii")
    monkeypatch.syspath_prepend(str(folder))
    file = folder / "headrace.toml"
    file.write_text(with_secrets(found, authority, folder / "secrets"), encoding="utf-8")
    result = CliRunner().invoke(main, ["check-config", str(file)])
    assert result.exit_code == 0, result.output
    return loads(file.read_text(encoding="utf-8"))


def check_against_kubernetes(found: Manifests) -> None:
    """Check the objects with the schemas of the oldest version that the chart supports, and of the newest one."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for version in (OLDEST_KUBERNETES, kubernetes.latest_version()):
        for each in found.objects:
            if each["kind"] not in CUSTOM:
                kubernetes.validate(each, version, strict=True)


# --- the files of the chart ---


def test_the_version_is_that_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert chart["appVersion"] == project["version"]
    assert chart["kubeVersion"] == f">={OLDEST_KUBERNETES}.0-0"


def test_the_schema_has_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(defaults, schema, cls=jsonschema.Draft7Validator)

    def compare(values: dict[str, Any], properties: dict[str, Any]) -> None:
        assert values.keys() == properties.keys()
        for key, value in values.items():
            if "properties" in properties[key] and key != "resources":
                compare(value, properties[key]["properties"])

    compare(defaults, {key: value for key, value in schema["properties"].items() if key != "global"})


def test_every_value_is_explained() -> None:
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    keys = [index for index, line in enumerate(lines) if re.match(r"[a-z]\w*:", line)]
    assert len(keys) > 20
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    missing = [lines[index].partition(":")[0] for index in keys if f"`{lines[index].partition(':')[0]}" not in readme]
    assert missing == []


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (CHART / "README.md").read_text(encoding="utf-8"))
    files = [link for link in links if "://" not in link]
    assert len(files) > 4
    assert [link for link in files if not (CHART / link).exists()] == []


# --- what Helm has rendered ---


def test_the_rendered_file_is_valid(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = check(rendered(), authority, tmp_path, monkeypatch)
    assert config.listen.broker_host == "broker-$(node_id).kafka.example.com"
    check_against_kubernetes(rendered())


def test_the_pod_has_the_ports_and_the_user_of_the_image() -> None:
    found = rendered()
    config = loads(found.configuration)
    assert isinstance(config.admin.listen, Address)
    ports = {each["name"]: each["containerPort"] for each in found.container["ports"]}
    assert ports == {"kafka": config.listen.address.port, "admin": config.admin.listen.port}
    (port,) = found.one("Service")["spec"]["ports"]
    assert (port["port"], ports[port["targetPort"]]) == (config.listen.advertised.port, config.listen.address.port)
    assert found.container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "admin", "scheme": "HTTP"}
    assert found.container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin", "scheme": "HTTP"}
    assert found.container["readinessProbe"]["timeoutSeconds"] > 2 * config.upstream.connect_timeout_s
    security = found.pod["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in CONTAINERFILE


def test_a_stop_has_the_time_that_it_may_take() -> None:
    found = rendered()
    pause_s = found.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = loads(found.configuration).shutdown.drain_timeout_s
    assert found.pod["terminationGracePeriodSeconds"] > pause_s + drain_s + CLOSE_TIMEOUT_S + END_TIMEOUT_S


def test_a_rolling_update_stops_no_pod_before_another_is_ready() -> None:
    deployment = rendered().one("Deployment")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert deployment["minReadySeconds"] > 0
    assert deployment["replicas"] > rendered().one("PodDisruptionBudget")["spec"]["maxUnavailable"]


def test_a_pod_fulfils_the_restricted_standard() -> None:
    found = rendered()
    assert found.pod["securityContext"]["runAsNonRoot"] is True
    assert found.pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found.pod["automountServiceAccountToken"] is False
    assert found.container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    secrets = [each["secret"] for each in found.pod["volumes"] if "secret" in each]
    assert len(secrets) == 2
    assert all(each["defaultMode"] == 0o440 for each in secrets), "readable by fsGroup"
    assert not [each for each in found.container["volumeMounts"] if "subPath" in each], "renewed certificates are seen"


# --- with Helm itself ---


def test_the_rendered_file_is_what_helm_renders() -> None:
    helm = existing_helm()
    if helm is None:
        pytest.skip("Helm is not installed and was not built; make exhaustive TESTS=tests/deploy builds it")
    text = render_text(helm, RENDERED_VALUES)
    relative = RENDERED_VALUES.relative_to(ROOT), RENDERED.relative_to(ROOT)
    command = (
        f"helm template headrace {CHART.relative_to(ROOT)} --namespace kafka --values {relative[0]} > {relative[1]}"
    )
    assert rendered() == manifests(text), f"render it again: {command}"


@pytest.mark.exhaustive
@pytest.mark.timeout(BUILD_TIMEOUT_S)
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.name.removesuffix("-values.yaml"))
def test_every_values_file(
    values: Path, helm: Path, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_helm(helm, ["lint", "--strict", str(CHART), "--values", str(values)])
    found = manifests(render_text(helm, values))
    check_against_kubernetes(found)
    config = check(found, authority, tmp_path, monkeypatch)
    given = yaml.safe_load(values.read_text(encoding="utf-8"))
    assert list(map(str, config.upstream.bootstrap_servers)) == given["upstream"]["bootstrapServers"]
    expected = {"data_plane_threads", "listen", "limits", "quotas"} & given.get("config", {}).keys()
    written = tomllib.loads(found.configuration)
    for key in expected - {"listen"}:
        assert written[key] == given["config"][key]


@pytest.mark.exhaustive
@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_all_objects(helm: Path) -> None:
    everything = next(path for path in VALUES if path.name.startswith("all-"))
    found = manifests(render_text(helm, everything))
    kinds = [each["kind"] for each in found.objects]
    assert sorted(kinds) == [
        *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget"),
        *("Service", "Service", "ServiceMonitor"),
    ]
    assert "replicas" not in found.one("Deployment")["spec"], "the autoscaler decides"
    monitor = found.one("ServiceMonitor")["spec"]
    (admin,) = [each for each in found.of("Service") if each["metadata"]["name"].endswith("-admin")]
    assert monitor["selector"]["matchLabels"].items() <= admin["metadata"]["labels"].items()
    job = admin["metadata"]["labels"][monitor["jobLabel"]]
    assert f'job="{job}"' in (ROOT / "docs" / "deploy" / "headrace.rules.yml").read_text(encoding="utf-8")
    assert {each["name"] for each in admin["spec"]["ports"]} == {each["port"] for each in monitor["endpoints"]}
    assert {each["scheme"] for each in monitor["endpoints"]} == {"https"}
    assert monitor["endpoints"][0]["tlsConfig"]["serverName"] == "admin.kafka.example.com"
    assert found.container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert found.container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert found.pod["terminationGracePeriodSeconds"] > 20 + 120 + CLOSE_TIMEOUT_S + END_TIMEOUT_S
    certificates = next(path for path in VALUES if path.name.startswith("certificates-"))
    certificate = manifests(render_text(helm, certificates)).one("Certificate")["spec"]
    assert certificate["secretName"] == "headrace-tls"
    assert certificate["dnsNames"] == ["*.kafka.example.com"]


@pytest.mark.exhaustive
@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_a_further_listener_has_a_port_everywhere(helm: Path) -> None:
    found = manifests(render_text(helm, next(path for path in VALUES if path.name.startswith("sasl-"))))
    own = tomllib.loads(found.configuration)["listeners"]["internal"]
    assert own["address"] == "0.0.0.0:9292"
    assert {"name": "internal", "containerPort": 9292} in found.container["ports"]
    (service,) = found.of("Service")
    assert {"name": "internal", "port": 9292, "targetPort": "internal"} in service["spec"]["ports"]
    (clients,) = found.one("NetworkPolicy")["spec"]["ingress"]
    assert clients["ports"] == [{"port": "kafka"}, {"port": "internal"}]


@pytest.mark.exhaustive
@pytest.mark.timeout(BUILD_TIMEOUT_S)
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("domain=", "domain: set the domain of clients' names"),
        ("domain=with_underscore.example", "does not match pattern"),
        ("upstream.bootstrapServers=null", "upstream.bootstrapServers: set the cluster's bootstrap brokers"),
        ("tls.clientCertificates=required", "tls.clientCaSecretName: set the Secret"),
        ("tls.certManager.enabled=true", "tls.certManager.issuerRef.name: set the issuer"),
        ("upstream.sasl.mechanism=PLAIN", "upstream.sasl.passwordSecretName: set the Secret"),
        (
            "upstream.sasl.mechanism=OAUTHBEARER,upstream.sasl.user=u,upstream.sasl.passwordSecretName=s",
            "config.upstream.sasl.options.token_endpoint: set the URL",
        ),
        (
            "admin.tls.secretName=x,config.admin.tls.client_certificates=required",
            "config.admin.tls.client_certificates: with required, the kubelet's probes fail",
        ),
        ("config.listen.address=:1", "config.listen.address: the chart sets this key from other values"),
        ("config.listen.tls.key_file=x", "config.listen.tls.key_file: the chart sets this key from other values"),
        ("config.admin.tls.certificate_file=x", "config.admin.tls: set the Secret with the admin server's certificate"),
        ("config.admin=x", "config.admin: the chart sets this key from other values"),
        ("replica=3", "additional properties 'replica' not allowed"),
        ("service.port=0", "minimum"),
        ("service.listenerPorts.other=1", 'config.listeners.other.address is ""; expected an address with this port'),
        ("service.listenerPorts.admin=1", "admin"),
    ],
)
def test_wrong_values_are_refused(setting: str, reason: str, helm: Path) -> None:
    with pytest.raises(HelmError, match=re.escape(reason)):
        render_text(helm, RENDERED_VALUES, "--set", setting)


@pytest.mark.exhaustive
@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_a_changed_configuration_replaces_the_pods(helm: Path) -> None:
    def pods(*arguments: str) -> object:
        return manifests(render_text(helm, RENDERED_VALUES, *arguments)).one("Deployment")["spec"]["template"]

    assert pods() == pods("--set", "replicas=3")
    assert pods() != pods("--set", "config.data_plane_threads=2")


@pytest.mark.exhaustive
@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_the_notes_name_what_has_to_be_created(helm: Path) -> None:
    command = ["install", "headrace", str(CHART), "--dry-run=client", "--values", str(RENDERED_VALUES)]
    notes = run_helm(helm, command).split("NOTES:")[1]
    for part in ("bootstrap.kafka.example.com:9192", "secret tls headrace-tls", "secret generic headrace-admin"):
        assert part in notes
    assert "--admin 127.0.0.1:9190 --token-file" in notes
    with_tls = run_helm(helm, [*command, "--set", "admin.tls.secretName=admin-tls"]).split("NOTES:")[1]
    assert re.search(r"--admin https://127.0.0.1:9190 --token-file \S+ \\\n +--admin-ca CA-FILE", with_tls)
