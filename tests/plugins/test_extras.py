"""A feature whose packages are not installed: ``headrace check-config`` names the package and the extra."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.plugins.extras import OPENTELEMETRY, require

if TYPE_CHECKING:
    from pathlib import Path

HEAD = 'upstream.bootstrap_servers = ["a:1"]\nlisten.address = "127.0.0.1:9"\n'
WITHOUT = """
import sys

sys.modules[{module!r}] = None  # as if it were not installed
from headrace.proxy.cli import main
main()
"""


@pytest.mark.parametrize(
    ("table", "missing", "error"),
    [
        (
            "[plugins.options.tracing]\nenabled = true\n",
            "opentelemetry.sdk",
            "tracing needs the package opentelemetry-sdk: pip install 'headrace[tracing]'",
        ),
        pytest.param(
            '[plugins.options.metrics]\notlp_endpoint = "http://127.0.0.1:1"\n',
            "opentelemetry.exporter",
            (
                "pushing metrics by OTLP needs the package opentelemetry-exporter-otlp-proto-http: "
                "pip install 'headrace[metrics-otlp]'"
            ),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            '[plugins.options.usage_records]\ntopic = "usage"\nbootstrap_servers = "a:1"\n',
            "confluent_kafka",
            "plugins.options.usage_records.topic needs the package confluent-kafka: pip install 'headrace[usage]'",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            '[plugins.options.usage_records]\nfolder = "usage"\nformat = "parquet"\n',
            "pyarrow",
            (
                'plugins.options.usage_records.format = "parquet" needs the package pyarrow: '
                "pip install 'headrace[usage-parquet]'"
            ),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            '[client_quotas]\nstore = "topic"\n',
            "confluent_kafka",
            "client_quotas.store = \"topic\" needs the package confluent-kafka: pip install 'headrace[quota-topic]'",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["tracing", "metrics-otlp", "usage", "usage-parquet", "quota-topic"],
)
def test_a_missing_package_is_named(table: str, missing: str, error: str, tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(HEAD + table, encoding="utf-8")
    code = WITHOUT.format(module=missing)
    command = [sys.executable, "-c", code, "check-config", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert error in result.stderr
    assert "Traceback" not in result.stderr


def test_what_is_off_needs_no_package(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(HEAD, encoding="utf-8")
    code = WITHOUT.format(
        module=("opentelemetry", "confluent_kafka", "pyspark", "numpy", "pandas", "pyarrow", "google")
    )
    command = [sys.executable, "-c", code, "check-config", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_installed_packages_are_found() -> None:
    require("tracing", "tracing", OPENTELEMETRY)
