"""The stub of the extension module declares what the module has."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.data_plane.native import EXTENSION, is_installed
from tests.packaging.building import ROOT

if TYPE_CHECKING:
    from pathlib import Path

NAMES_OF_TYPES: Final = ("Collected", "ExchangeRow", "ReplyRow")
"""Names for rows of numbers, which only annotations use; the module does not have them."""


@pytest.mark.exhaustive
@pytest.mark.skipif(not is_installed(), reason="there is no native data plane: it is built where cargo is installed")
def test_the_stub_is_exact(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.write_text("".join(f"{EXTENSION}.{name}\n" for name in NAMES_OF_TYPES))
    command = [sys.executable, "-m", "mypy.stubtest", "--allowlist", str(allowed), EXTENSION]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout
