"""The wheel in an empty virtual environment, beside another distribution called ``config`` and a folder of that name.

Needs a package registry. Exhaustive, since it installs some packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.processes.ports import reserve_ports
from tests.packaging.building import ROOT, build, copy_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.exhaustive

OTHER = "config==0.5.1"
"""A distribution on the registry whose import package is called ``config``, too."""


def run(*command: str | Path, cwd: Path, environment: Mapping[str, str]) -> str:
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Variables without those that would lead Python to this tree."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HEADRACE"))}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, environment: Mapping[str, str]) -> Path:
    """The folder of programs of a virtual environment that has the wheel and `OTHER`."""
    folder = tmp_path_factory.mktemp("installed")
    copy_tree(folder / "tree")
    wheel = build(folder / "tree", "build_wheel", folder)
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder, environment=environment)
    programs = folder / "venv" / "bin"
    pip = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "-c", ROOT / "constraints.txt", wheel, OTHER, cwd=folder, environment=environment)
    return programs


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A working directory whose folders have the names of the packages, and break every program that imports them."""
    for name in ("config", "plugins", "proxy", "quota_callbacks", "pipeline"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('imported from the working directory')\n")
    with reserve_ports(2) as block:
        (tmp_path / "headrace.toml").write_text(
            f'upstream.bootstrap_servers = ["127.0.0.1:1"]\nlisten.address = "127.0.0.1:{block.first}"\n'
            'listen.node_ids = "0"\nadmin.listen = "127.0.0.1:0"\n'
        )
        yield tmp_path


def test_both_distributions_are_whole(installed: Path, workspace: Path, environment: Mapping[str, str]) -> None:
    code = (
        "import json, sys; sys.path.pop(0); import config, headrace.config;"
        " print(json.dumps([config.__file__, headrace.config.__file__, hasattr(config, 'Config')]))"
    )
    other, ours, whole = json.loads(run(installed / "python", "-c", code, cwd=workspace, environment=environment))
    assert other.endswith("site-packages/config/__init__.py")
    assert ours.endswith("site-packages/headrace/config/__init__.py")
    assert whole
    assert run(installed / "python", "-m", "pip", "check", cwd=workspace, environment=environment)


def test_the_command_helps(installed: Path, workspace: Path, environment: Mapping[str, str]) -> None:
    command = (installed / "headrace", "run", "--help")
    assert "--bootstrap-servers" in run(*command, cwd=workspace, environment=environment)


def test_it_checks_a_configuration(installed: Path, workspace: Path, environment: Mapping[str, str]) -> None:
    command = (installed / "headrace", "check-config", "headrace.toml")
    assert "ok: upstream 127.0.0.1:1" in run(*command, cwd=workspace, environment=environment)


def test_extras_that_are_not_installed_are_named(
    installed: Path, workspace: Path, environment: Mapping[str, str]
) -> None:
    variables = {**environment, "HEADRACE_PLUGINS__OPTIONS__TRACING__ENABLED": "true"}
    command = [installed / "headrace", "check-config", "headrace.toml"]
    result = subprocess.run(
        command, cwd=workspace, env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "pip install 'headrace[tracing]'" in result.stderr
    result = subprocess.run(
        [installed / "headrace", "pipeline", "rollup"],
        cwd=workspace,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert "pip install 'headrace[pipeline]'" in result.stderr


def test_it_runs_without_a_broker(installed: Path, workspace: Path, environment: Mapping[str, str]) -> None:
    command = [installed / "headrace", "run", "--config", "headrace.toml"]
    with subprocess.Popen(
        command, cwd=workspace, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"^headrace ready.* admin (127\.0\.0\.1:\d+)", line)
            assert found is not None, line
            for page, expected in (("livez", ""), ("metrics", "headrace_quota_queue_size{")):
                with urllib.request.urlopen(f"http://{found[1]}/{page}", timeout=30) as response:
                    assert response.status == 200
                    assert expected in response.read().decode()
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log


OLDER = ("python3.10", "python3.9")


def older_pythons() -> Iterator[str]:
    """Yield interpreters older than 3.11, on the path and of pyenv, that have pip."""
    of_pyenv = [str(each) for name in OLDER for each in Path.home().glob(f".pyenv/versions/*/bin/{name}")]
    for found in [*map(shutil.which, OLDER), *of_pyenv]:
        if (
            found
            and subprocess.run([found, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
        ):
            yield found


def test_an_older_python_is_named_in_one_line(tmp_path: Path, environment: Mapping[str, str]) -> None:
    older = next(older_pythons(), None)
    if older is None:
        pytest.skip("no Python older than 3.11 with pip is installed")
    copy_tree(tmp_path / "tree")
    command = (older, "-m", "pip", "install", "--dry-run", "--no-deps", "--disable-pip-version-check", "./tree")
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 1
    assert re.fullmatch(
        r"ERROR: Package 'headrace' requires a different Python: 3\.\d+\.\d+ not in '>=3\.11'\n", result.stderr
    )
