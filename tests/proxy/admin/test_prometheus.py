"""Prometheus itself, scraping the admin server over TLS with a client certificate."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from testbed.kafka.certificates import Authority
from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

UNREACHABLE = "127.0.0.1:1"


def targets(port: int) -> dict[str, Any]:
    """Prometheus' targets by job; empty while it starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=10) as response:
            return {each["labels"]["job"]: each for each in json.load(response)["data"]["activeTargets"]}
    except OSError:
        return {}


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="the command prometheus is not installed")
def test_prometheus_scrapes_with_a_certificate_and_not_without(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    certificate, client = authority.broker_certificate(), authority.client_certificate("CN=prometheus,O=Example")
    config = (
        f'[admin.tls]\ncertificate_file = "{certificate.keystore_file}"\nclient_certificates = "requested"\n'
        f'client_ca_file = "{authority.ca_file}"\n'
    )
    with ProxyProcess(UNREACHABLE, config=config) as proxy, reserve_ports(1) as block:
        trusts = {"ca_file": str(authority.ca_file)}
        shows = {"cert_file": str(client.certificate_file), "key_file": str(client.key_file)}
        jobs = [
            {"job_name": name, "scheme": "https", "tls_config": tls, "static_configs": [{"targets": [proxy.admin]}]}
            for name, tls in (("with", trusts | shows), ("without", trusts), ("distrustful", shows))
        ]
        settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        (tmp_path / "prometheus.yml").write_text(json.dumps(settings), encoding="utf-8")
        arguments = (
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{block.first}",
        )
        with (tmp_path / "log").open("wb") as output:
            running = subprocess.Popen(["prometheus", *arguments], stdout=output, stderr=output)
        try:
            found: dict[str, Any] = {}

            def as_expected() -> bool:
                """Whether all of the latest scrapes were; one that takes longer than a second has another error."""
                found.update(targets(block.first))
                return (
                    found.keys() == {"with", "without", "distrustful"}
                    and found["with"]["health"] == "up"
                    and "403" in found["without"]["lastError"]
                    and "certificate" in found["distrustful"]["lastError"]
                )

            wait_until(as_expected, "Prometheus has scraped what it may", 60)
        finally:
            running.terminate()
            running.wait(30)
    assert {job: each["health"] for job, each in found.items()} == {
        "with": "up",
        "without": "down",
        "distrustful": "down",
    }
    assert found["with"]["lastError"] == ""
