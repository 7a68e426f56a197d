"""The authorities of the operating system, which count without ``upstream.tls.ca_file``."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from headrace.config.tables.tls import UpstreamTls
from headrace.proxy.network.tls.contexts import client_context
from testbed.kafka.certificates import Authority
from tests.proxy.network.tls.pairs import by_library, listening, shake_hands, sockets

if TYPE_CHECKING:
    from pathlib import Path


def subject_hash(file: Path) -> str:
    command = ["openssl", "x509", "-noout", "-hash", "-in", str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")
@pytest.mark.parametrize("libraries", ["", "client"], ids=["openssl", "rustls"], indirect=True)
@pytest.mark.usefixtures("libraries")
async def test_the_file_and_all_folders_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders have a file for each authority, whose name is a hash of the subject and a number."""
    in_file, in_folder, in_another = (Authority(tmp_path, name) for name in ("one", "two", "three"))
    folders = [tmp_path / "folder", tmp_path / "another"]
    for folder, authority in zip(folders, (in_folder, in_another), strict=True):
        folder.mkdir()
        name = subject_hash(authority.ca_file)
        (folder / f"{name}.0").write_bytes(in_file.ca_file.read_bytes())
        (folder / f"{name}.1").write_bytes(authority.ca_file.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(in_file.ca_file))
    monkeypatch.setenv("SSL_CERT_DIR", ":".join(map(str, folders)))
    client = by_library(client_context(UpstreamTls(enabled=True), "upstream.tls"), "client")
    for authority in (in_file, in_folder, in_another):
        async with sockets() as pair:
            await shake_hands(pair, client, listening(authority.broker_certificate()))
