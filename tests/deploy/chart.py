"""The chart: its values files, and what Helm renders from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from testbed.helm import run_helm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testbed.kafka.certificates import Authority

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "headrace"
VALUES: Final = sorted((CHART / "ci").glob("*-values.yaml"))
RENDERED: Final = ROOT / "docs" / "deploy" / "kubernetes-tls.yaml"
"""What Helm renders from `RENDERED_VALUES`."""
RENDERED_VALUES: Final = CHART / "ci" / "minimal-values.yaml"
SECRETS_FOLDER: Final = "/run/secrets/"
TOKEN: Final = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Manifests:
    """Rendered objects of Kubernetes."""

    objects: Sequence[Mapping[str, Any]]

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str) -> Mapping[str, Any]:
        (found,) = self.of(kind)
        return found

    @property
    def configuration(self) -> str:
        """The text of headrace.toml."""
        text = self.one("ConfigMap")["data"]["headrace.toml"]
        assert isinstance(text, str)
        return text

    @property
    def pod(self) -> Mapping[str, Any]:
        pod: Mapping[str, Any] = self.one("Deployment")["spec"]["template"]["spec"]
        return pod

    @property
    def container(self) -> Mapping[str, Any]:
        (container,) = self.pod["containers"]
        assert isinstance(container, dict)
        return container


def render_text(helm: Path, values: Path, *arguments: str) -> str:
    """Return what Helm renders, in a namespace called kafka."""
    command = ["template", "headrace", str(CHART), "--namespace", "kafka", "--values", str(values)]
    return run_helm(helm, [*command, *arguments])


def manifests(text: str) -> Manifests:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return Manifests([each for each in yaml.safe_load_all(text) if each])


def with_secrets(found: Manifests, authority: Authority, folder: Path) -> str:
    """Return headrace.toml with the paths of files in ``folder``, which has the keys of all Secrets that are mounted.

    A file that the pod would not have is missing in the folder, too.
    """
    mounted = {each["name"]: each["mountPath"] for each in found.container["volumeMounts"]}
    for volume in found.pod["volumes"]:
        if "secret" in volume:
            path = mounted[volume["name"]]
            assert path == SECRETS_FOLDER + volume["secret"]["secretName"]
            _write_secret(folder / path.removeprefix(SECRETS_FOLDER), found, authority)
    return found.configuration.replace(SECRETS_FOLDER, f"{folder}/")


def _write_secret(folder: Path, found: Manifests, authority: Authority) -> None:
    """Write the keys that the configuration reads of a Secret: certificates, passwords, tokens."""
    folder.mkdir(parents=True)
    own = authority.broker_certificate(folder.name, hosts=["*.kafka.example.com"])
    contents = {
        "tls.crt": own.certificate_file.read_bytes(),
        "tls.key": own.key_file.read_bytes(),
        "ca.crt": authority.ca_file.read_bytes(),
        "token": TOKEN.encode(),
        "password": b"correct-horse",
    }
    for name in re.findall(rf"{SECRETS_FOLDER}{re.escape(folder.name)}/([\w.]+)", found.configuration):
        if name in contents:
            (folder / name).write_bytes(contents[name])
