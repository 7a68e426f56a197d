"""Virtual environments with packages that the project does not depend on, for tests."""

from __future__ import annotations

import subprocess
import venv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def environment_with(folder: Path, *packages: str) -> Path:
    """Create an environment in ``folder`` and install packages such as ``"moto[server]==5.2.5"``; return its programs'
    folder.
    """
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True, timeout=900)
    return folder / "bin"
