"""Which Helm is used, when it is built, and the errors if it cannot be."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import helm as module
from testbed.errors import HelmError, HelmUnavailableError
from testbed.helm import VERSION, existing_helm, helm, run_helm
from testbed.kafka.artifacts import CACHE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Programs:
    """What is on the PATH, and what it does: Go builds nothing but an empty file."""

    def __init__(self, *names: str, version: str = "v4.0.1+gabc", status: int = 0) -> None:
        self._names = names
        self._version = version
        self._status = status
        self.builds = 0

    def which(self, name: str) -> str | None:
        return f"/bin/{name}" if name in self._names else None

    def run(
        self, argv: Sequence[str], *, timeout_s: float, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        if argv[1] == "install":
            self.builds += 1
            folder = Path((variables or {})["GOBIN"])
            if self._status == 0:
                folder.mkdir()
                (folder / "helm").touch()
        return subprocess.CompletedProcess(list(argv), self._status, self._version, "no network")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path / "helm"


def use(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setattr(module.shutil, "which", programs.which)
    monkeypatch.setattr(module, "run_program", programs.run)
    return programs


def test_it_is_built_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = use(Programs("go"), monkeypatch)
    assert existing_helm() is None
    for _ in range(2):
        assert helm() == cache / VERSION / "helm"
    assert existing_helm() == helm()
    assert programs.builds == 1
    assert sorted(each.name for each in cache.iterdir()) == sorted([VERSION, "build.lock"])


def test_one_that_is_installed_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = use(Programs("helm", "go"), monkeypatch)
    assert helm() == Path("/bin/helm")
    assert programs.builds == 0


@pytest.mark.parametrize("version", ["v3.17.9", "v2.16.1", "unknown"])
def test_one_that_is_too_old_is_not_used(version: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Programs("helm", "go", version=version), monkeypatch)
    assert existing_helm() is None
    assert helm() == cache / VERSION / "helm"


def test_without_go_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Programs(), monkeypatch)
    with pytest.raises(HelmUnavailableError, match=r"neither helm 3\.18 or newer nor go is installed"):
        helm()


def test_a_build_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Programs("go", status=1), monkeypatch)
    with pytest.raises(HelmUnavailableError, match=r"go install helm\.sh/helm.* failed: no network"):
        helm()
    assert [each.name for each in cache.iterdir()] == ["build.lock"]


def test_an_error_has_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Programs("helm", status=1), monkeypatch)
    with pytest.raises(HelmError, match=r"helm lint chart failed: .*no network"):
        run_helm(Path("/bin/helm"), ["lint", "chart"])
