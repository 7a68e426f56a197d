"""The stub of the extension module declares what the module has."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.proxy.data_plane.native import EXTENSION, is_installed
from tests.packaging.building import ROOT


@pytest.mark.exhaustive
@pytest.mark.skipif(not is_installed(), reason="there is no native data plane: it is built where cargo is installed")
def test_the_stub_is_exact() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", EXTENSION]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout
