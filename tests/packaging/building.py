"""Builds the sdist and the wheel from a copy of what git would commit, so that nothing else can get into them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).parents[2]

PURE = {"HEADRACE_PURE": "1"}

HOOK = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(*sys.argv[2:]))"


def committed_files() -> list[str]:
    """Files relative to the root: tracked, and new ones that are not ignored."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).exists()]


def copy_tree(target: Path, names: Iterable[str] = ()) -> None:
    for name in names or committed_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def call_backend(tree: Path, *arguments: str, variables: Mapping[str, str] = PURE) -> subprocess.CompletedProcess[str]:
    """Call one hook of the build backend in ``tree``, as a build front end does. Needs no network."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **variables}
    command: Sequence[str] = [sys.executable, "-c", HOOK, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=120, check=False)


def build(tree: Path, hook: str, target: Path) -> Path:
    """Return the distribution that ``hook`` (``build_sdist`` or ``build_wheel``) has built."""
    result = call_backend(tree, hook, str(target))
    assert result.returncode == 0, result.stderr
    return target / result.stdout.splitlines()[-1]
