"""The lists of required distributions, the bill of materials, and what is said about an audit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from typing import TYPE_CHECKING

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requirements.audit import JUDGED, OFFLINE, audited, status
from requirements.sbom import EXTRAS, pinned_hashes, sbom
from tests.packaging.building import ROOT
from tests.packaging.test_contents import PROJECT, required_for_work

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = re.compile(
    r"^(?P<name>[a-z0-9.-]+)==(?P<version>[^ \\]+)(?P<marker> ; [^\\]+)? \\\n"
    r"(?P<hashes>    --hash=sha256:[0-9a-f]{64}( \\\n    --hash=sha256:[0-9a-f]{64})*)\n",
    re.MULTILINE,
)


def entries(name: str) -> dict[str, re.Match[str]]:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    found = {canonicalize_name(match["name"]): match for match in ENTRY.finditer(text)}
    assert "".join(match[0] for match in ENTRY.finditer(text)) == text, "nothing else, such as a registry's address"
    return found


def test_every_version_is_that_of_the_constraints_and_has_hashes() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    constraints = {canonicalize_name(pin.split("==")[0]): pin.split("==")[1] for pin in pins}
    assert {name: match["version"] for name, match in entries("dev.txt").items()} == constraints


def test_what_a_proxy_needs_is_a_part_with_the_same_hashes() -> None:
    everything, run = entries("dev.txt"), entries("run.txt")
    assert {name: match["hashes"] for name, match in run.items()} == {name: everything[name]["hashes"] for name in run}
    extras = PROJECT["optional-dependencies"]
    large = {"pipeline", "usage-parquet"}
    assert large < extras.keys()
    lines = [*PROJECT["dependencies"], *(line for name in extras.keys() - large for line in extras[name])]
    assert {canonicalize_name(Requirement(line).name) for line in lines} <= run.keys()
    assert "pyspark" not in run


def test_the_lists_fit_what_the_project_asks_for() -> None:
    """`make hashes` was run after the last change of `pyproject.toml`."""
    found = entries("dev.txt")
    for line in required_for_work():
        required = Requirement(line)
        assert required.specifier.contains(found[canonicalize_name(required.name)]["version"]), line


def test_make_and_the_image_install_by_hash() -> None:
    for file in ("Makefile", "docs/deploy/Containerfile"):
        text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
        installs = [line for line in re.split(r"\n|&&", text) if re.search(r"pip .*\binstall\b", line)]
        assert len(installs) == 2
        assert "--require-hashes -r requirements/" in installs[0]
        assert "--no-deps" in installs[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_there_are_wheels_with_these_hashes(version: str, machine: str, tmp_path: Path) -> None:
    """Needs a package registry. A changed hash is refused."""
    platforms = [f"--platform=manylinux{kind}_{machine}" for kind in ("_2_28", "_2_17", "2014")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
    command += ["--ignore-installed", "--no-deps", "--only-binary=:all:", f"--python-version={version}", *platforms]
    command += [f"--target={tmp_path}", "--require-hashes", "-r"]
    good = ROOT / "requirements" / "run.txt"
    changed = tmp_path / "changed.txt"
    click = entries("run.txt")["click"]
    changed.write_text(re.sub("sha256:[0-9a-f]{8}", "sha256:00000000", click[0]), encoding="utf-8")
    for file, expected in ((good, 0), (changed, 1)):
        result = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False, timeout=300)
        assert result.returncode == expected, result.stderr
    assert "DO NOT MATCH THE HASHES" in result.stderr


# --- the bill of materials ---


@pytest.mark.exhaustive
def test_the_bill_of_materials(tmp_path: Path) -> None:
    sdist = tmp_path / "headrace-1.tar.gz"
    sdist.write_bytes(b"content")
    content = sbom(distribution("headrace"), [sdist])
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(content)) is None
    assert content == sbom(distribution("headrace"), [sdist]), "the same inputs give the same file"
    product = content["metadata"]["component"]
    assert (product["name"], product["type"]) == ("headrace", "application")
    assert product["hashes"][0]["content"].startswith("ed7002b4")
    crates = {each["name"]: each for each in content["components"] if each["purl"].startswith("pkg:cargo/")}
    components = {each["name"]: each for each in content["components"] if each["purl"].startswith("pkg:pypi/")}
    required = [*PROJECT["dependencies"], *(line for name in EXTRAS for line in PROJECT["optional-dependencies"][name])]
    assert {canonicalize_name(Requirement(line).name) for line in required} <= components.keys()
    assert {"pytest", "ruff", "headrace"}.isdisjoint(components)
    assert components.keys() <= entries("dev.txt").keys()
    for name, component in components.items():
        assert [each["content"] for each in component["hashes"]] == sorted(pinned_hashes()[name])
    graph = {each["ref"]: each["dependsOn"] for each in content["dependencies"]}
    assert graph.keys() == {each["bom-ref"] for each in content["components"]} | {product["bom-ref"]}
    assert components["pydantic-core"]["bom-ref"] in graph[components["pydantic"]["bom-ref"]]
    assert {crates["pyo3"]["bom-ref"], crates["rustix"]["bom-ref"]} <= set(graph[product["bom-ref"]])
    assert crates["libc"]["bom-ref"] in graph[crates["pyo3"]["bom-ref"]]
    assert "headrace-engine" not in crates
    assert all(len(each["hashes"][0]["content"]) == 64 for each in crates.values())


# --- the audit ---

CLEAN = {"name": "click", "version": "8.5.1", "vulns": []}
UNKNOWN = {"name": "trio", "skip_reason": "not found"}
ADVISORY = {"id": "PYSEC-2026-1", "fix_versions": ["2.8.1"]}
ALIASED = {"id": "GHSA-1", "aliases": ["CVE-2026-3"], "fix_versions": []}
BAD = {"name": "urllib3", "version": "2.8.0", "vulns": [ADVISORY, {"id": "PYSEC-2026-2", "fix_versions": []}]}


DONE, OPEN, FAILED = "done", "not done", "failed"
REASON = "a reason"


@pytest.mark.parametrize(
    ("found", "judged", "result", "expected"),
    [
        ([UNKNOWN] * 3, (), OPEN, ["NOT DONE", "none of 3"]),
        ([], (), OPEN, ["NOT DONE", "none of 0"]),
        ([CLEAN], (), DONE, ["0 advisories about 1 distributions"]),
        ([CLEAN, UNKNOWN], (), OPEN, ["0 advisories about 1 ", "NOT DONE for 1 ", ": trio"]),
        (
            [BAD],
            (),
            FAILED,
            ["urllib3 2.8.0: PYSEC-2026-1, fixed in 2.8.1; not judged", "no version", "2 advisories about 1 "],
        ),
        ([BAD], ("PYSEC-2026-1",), FAILED, ["PYSEC-2026-1, fixed in 2.8.1; judged: a reason", "not judged: update it"]),
        ([BAD, CLEAN], ("PYSEC-2026-1", "PYSEC-2026-2"), DONE, ["2 advisories about 2 "]),
        ([BAD, UNKNOWN], ("PYSEC-2026-1", "PYSEC-2026-2"), OPEN, ["NOT DONE for 1 "]),
        ([BAD, UNKNOWN], (), FAILED, ["NOT DONE for 1 "]),
        (
            [{"name": "h11", "version": "1", "vulns": [ALIASED]}],
            ("CVE-2026-3",),
            DONE,
            ["GHSA-1, fixed in no version; judged"],
        ),
        ([CLEAN], ("PYSEC-2026-1",), FAILED, ["concern no version; remove them: PYSEC-2026-1"]),
        ([CLEAN, UNKNOWN], ("PYSEC-2026-1",), OPEN, ["NOT DONE for 1 "]),
    ],
)
def test_an_audit_fails_for_what_was_not_judged_or_not_answered(
    found: list[object], judged: tuple[str, ...], result: str, expected: list[str]
) -> None:
    audit = audited(json.dumps({"dependencies": found}), "", dict.fromkeys(judged, REASON))
    text = "\n".join(audit.lines)
    assert all(each in text for each in expected), text
    assert ("NOT DONE" in text) is not audit.is_done
    assert (status(audit, offline=False), status(audit, offline=True)) == {DONE: (0, 0), OPEN: (1, 0), FAILED: (1, 1)}[
        result
    ]


@pytest.mark.parametrize(
    ("output", "errors", "expected"),
    [
        ("", "Traceback\nConnectionError: no route\n", "advisory service: ConnectionError: no route"),
        ("", "", "it printed nothing"),
        ('{"dependencies": 5}', "", "it printed nothing"),
    ],
)
def test_an_audit_without_an_answer_is_not_done(output: str, errors: str, expected: str) -> None:
    audit = audited(output, errors, {})
    assert not audit.is_done
    assert expected in audit.lines[0]
    assert (status(audit, offline=False), status(audit, offline=True)) == (1, 0)


def test_judged_advisories_have_reasons_and_the_variable_is_documented() -> None:
    judged = tomllib.loads(JUDGED.read_text(encoding="utf-8"))
    assert all(isinstance(reason, str) and len(reason) > 20 for reason in judged.values())
    for file in ("docs/contributing.md", ".github/workflows/ci.yml"):
        assert OFFLINE in (ROOT / file).read_text(encoding="utf-8")
