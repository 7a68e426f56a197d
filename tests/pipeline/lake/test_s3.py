"""A lake in S3: the jobs against a local server (moto), which is installed in an environment of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed.processes.ports import reserve_ports
from tests.environments import environment_with
from tests.faults.waiting import wait_until
from tests.pipeline.records import NOON, record, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
HEADRACE = Path(sys.executable).parent / "headrace"
SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
"""What a request has to look like; moto checks no signature."""

PLAN = """
lake = "s3a://lakes/headrace"
[spark.conf]
"spark.hadoop.fs.s3a.endpoint" = "http://{address}"
"spark.hadoop.fs.s3a.endpoint.region" = "us-east-1"
"spark.hadoop.fs.s3a.path.style.access" = true
[ingest]
from-files = "{folder}/in"
[rollup]
teams = "s3a://lakes/teams.csv"
prices = "{folder}/prices.toml"
output = "s3a://lakes/bills.csv"
[report]
output = "s3a://lakes/report.html"
[compact]
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("moto")
    programs = environment_with(folder, "moto[server]==5.2.5")
    with reserve_ports() as block:
        address = f"127.0.0.1:{block.first}"
        command = [str(programs / "moto_server"), "-p", str(block.first)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
            try:
                wait_until(lambda: answers(address), "moto answers")
                ask(address, "PUT", "/lakes")
                ask(address, "PUT", "/lakes/teams.csv", b"user,client_id,team\nalice,,payments\n")
                yield address
            finally:
                server.terminate()


def answers(address: str) -> bool:
    try:
        return bool(ask(address, "GET", "/moto-api/"))
    except OSError:
        return False


def ask(address: str, method: str, path: str, body: bytes = b"") -> str:
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request(method, path, body, {"Authorization": SIGNED})
    response = connection.getresponse()
    assert response.status == 200, (method, path, response.status)
    text = response.read().decode()
    connection.close()
    return text


@pytest.mark.exhaustive
def test_the_jobs_of_a_plan_with_a_lake_in_s3(tmp_path: Path, address: str) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.format(address=address, folder=tmp_path), encoding="utf-8")
    (tmp_path / "prices.toml").write_text('currency = "EUR"\nper_million_requests = 1_000_000\n', encoding="utf-8")
    for number, day in ((1, "2026-09-21"), (2, "2026-09-22")):
        second = NOON + 86_400 * (number - 1)
        write_lines(tmp_path / "in" / f"usage-a-{number}.jsonl", *(record(second + each) for each in range(5)))
        ingest, rollup, report, _ = run(tmp_path / "plan.toml")
        assert (ingest["records"], rollup["days"]) == (5, [day])
        (total,) = rollup["totals"]
        assert (rollup["bills"], total["bills"], total["currency"]) == (1, 1, "EUR")
        assert Decimal(total["amount"]) == 5 * number
        assert report["bytes"] == len(ask(address, "GET", "/lakes/report.html").encode())
    bills = ask(address, "GET", "/lakes/bills.csv")
    assert re.search(r"^month,2026-09-01,cluster-1,payments,4,total,.*,10\.00,EUR,10$", bills, re.MULTILINE)


def run(plan: Path) -> list[dict[str, Any]]:
    environment = os.environ | {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    command = [str(HEADRACE), "pipeline", "run", str(plan), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
    return jobs
