"""What the sdist and the wheel contain: the product alone."""

from __future__ import annotations

import email
import platform
import re
import sys
import tarfile
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.packaging.building import ROOT, build, call_backend, committed_files, copy_tree

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path

PRODUCT = ("config", "pipeline", "plugins", "proxy", "quota_callbacks")
SHIPPED = (".py", ".pyi", "py.typed", ".toml", ".json", ".properties")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
GROUPS = PYPROJECT["dependency-groups"]
FOR_USERS = {"oauth", "tracing", "metrics-otlp", "usage", "usage-parquet", "quota-topic", "pipeline"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tree")
    copy_tree(target)
    return target


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tree, "build_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tree, "build_sdist", tmp_path_factory.mktemp("sdist"))


def product_files() -> set[str]:
    """Files of the product by their names in a wheel."""
    found = {f"headrace/{name}" for name in committed_files() if name.split("/")[0] in PRODUCT}
    found |= {"headrace/__init__.py", "headrace/_engine.pyi", "headrace/py.typed"}
    return {name for name in found if name.endswith(SHIPPED)}


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_product_alone(wheel: Path) -> None:
    info = f"headrace-{PROJECT['version']}.dist-info/"
    names = files_of(wheel)
    assert {name for name in names if not name.startswith(info)} == product_files()
    expected = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
    assert {name for name in names if name.startswith(info)} == {info + name for name in expected}


def test_the_sdist_holds_the_product_and_what_builds_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
        assert not [member.name for member in archive.getmembers() if member.issym()]
    sources = {name for name in names if name.startswith("src/headrace/")}
    assert sources == {f"src/{name}" for name in product_files()}
    others = {name for name in names - sources if not name.startswith("src/headrace.egg-info/")}
    built_by = {"MANIFEST.in", "PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"}
    checks = ("engine/rustfmt.toml", "engine/deny.toml", "engine/tests/")
    engine = {name for name in committed_files() if name.startswith("engine/") and not name.startswith(checks)}
    assert {"engine/Cargo.lock", "engine/Cargo.toml", "engine/src/lib.rs", "engine/src/walks/mod.rs"} <= engine
    assert others == built_by | engine | {"CHANGELOG.md", "LICENSE", "README.md"}


@pytest.mark.exhaustive
def test_a_wheel_can_be_built_from_the_sdist(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    again = build(unpacked, "build_wheel", tmp_path)
    assert files_of(again) == files_of(wheel)


def test_its_metadata(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Author"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])
    assert set(metadata.get_all("Provides-Extra", [])) == FOR_USERS


def test_each_link_of_the_published_description_is_absolute(wheel: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    content = metadata_of(wheel).get_payload(decode=True)
    assert isinstance(content, bytes)
    description = content.decode()
    text, repository = re.compile(r"\]\([^)]*\)"), PROJECT["urls"]["Source"]
    assert text.split(description.strip()) == text.split(readme.strip()), "only targets of links are changed"
    links = re.findall(r"\]\(([^)]*)\)", description)
    assert len(links) > 10
    for link in links:
        assert link.startswith(("https://", "#")), link
        if link.startswith(f"{repository}/blob/main/"):
            path = link.removeprefix(f"{repository}/blob/main/").partition("#")[0]
            assert (ROOT / path).is_file(), link


def test_what_is_off_by_default_is_no_dependency(wheel: Path) -> None:
    required = metadata_of(wheel).get_all("Requires-Dist", [])
    core = {re.split(r"[^\w-]", each)[0] for each in required if "extra ==" not in each}
    assert core == {
        "click",
        "cryptography",
        "h11",
        "mmh3",
        "pluggy",
        "prometheus-client",
        "pydantic",
        "structlog",
        "trio",
    }


def lines_of(group: str) -> list[str]:
    """Requirements of a dependency group, without those of the groups that it includes."""
    return [line for line in GROUPS[group] if isinstance(line, str)]


def required_for_work() -> list[str]:
    """Requirements of the product, of its extras and of the dependency groups, as `make hashes` lists them."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    groups = [line for group in GROUPS if group != "fuzzing" for line in lines_of(group)]
    return [*PROJECT["dependencies"], *extras, *groups]


def test_the_group_dev_includes_all_others() -> None:
    included = {line["include-group"] for line in GROUPS["dev"] if isinstance(line, dict)}
    assert included == GROUPS.keys() - {"dev"}


def test_every_dependency_has_a_pinned_version() -> None:
    named = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in required_for_work()}
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert named <= {pin.split("==")[0].lower().replace("_", "-") for pin in pins}


# --- the native data plane --------------------------------------------------------------------------------------------

RUSTC = """#!/bin/sh
echo 'rustc 1.95.0 (0 2026-03-21)'
echo 'host: x86_64-unknown-linux-gnu'
"""
CARGO = f"""#!{sys.executable}
import json, os, sys
if sys.argv[1] == "metadata":
    print(json.dumps({{"resolve": {{"root": "engine"}}}}))
elif os.environ["CARGO_FAILS"]:
    sys.exit("error: one line\\nerror: another line")
else:
    with open("built.so", "w") as file:
        file.write("native")
    target = {{"kind": ["cdylib"]}}
    built = {{"package_id": "engine", "target": target, "filenames": [os.path.abspath("built.so")]}}
    print(json.dumps({{"reason": "compiler-artifact", **built}}))
"""
MODULE = "headrace/_engine.abi3.so"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cargo and rustc, which build nothing."""
    folder = tmp_path_factory.mktemp("tools")
    for name, text in (("cargo", CARGO), ("rustc", RUSTC)):
        (folder / name).write_text(text, encoding="ascii")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("has_cargo", "fails", "notice"),
    [
        pytest.param(True, "", "", id="built"),
        pytest.param(True, "1", "`cargo rustc ", id="failed", marks=pytest.mark.exhaustive),
        pytest.param(False, "", "cargo is not installed", id="without cargo"),
    ],
)
def test_the_native_data_plane_is_in_the_wheel_where_it_can_be_built(
    tools: Path, tmp_path: Path, *, has_cargo: bool, fails: str, notice: str
) -> None:
    copy_tree(tmp_path, ("engine/Cargo.toml", "pyproject.toml", "setup.py", "README.md", "src/headrace/__init__.py"))
    variables = {"CARGO_FAILS": fails, "HEADRACE_PURE": "", "PATH": f"{tools}:/bin" if has_cargo else str(tmp_path)}
    result = call_backend(tmp_path, "build_wheel", str(tmp_path), variables={**variables, "PYTHONPATH": str(tools)})
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    notices = [line for line in result.stderr.splitlines() if "no native data plane" in line]
    assert len(notices) == bool(notice)
    assert all(notice in line for line in notices)
    assert files_of(wheel) & {MODULE} == (set() if notice else {MODULE})
    if has_cargo:
        assert wheel.name.endswith(f"-cp311-abi3-linux_{platform.machine()}.whl")
    else:
        assert wheel.name.endswith("-py3-none-any.whl")
