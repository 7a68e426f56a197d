"""Whether the packages of an optional feature are installed; the error that names the extra to install.

Called by the plugins when they are configured, also by ``headrace check-config``. Does not import the packages.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

OPENTELEMETRY: Final = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}
"""The packages that export to an OpenTelemetry collector: distributions by their modules."""

CONFLUENT_KAFKA: Final = {"confluent_kafka": "confluent-kafka"}

PYARROW: Final = {"pyarrow": "pyarrow"}
"""The package that writes Parquet files."""

OAUTH: Final = {"httpx": "httpx", "joserfc": "joserfc"}
"""The packages that request tokens and keys, and verify tokens."""


def require(feature: str, extra: str, packages: dict[str, str]) -> None:
    """Raise `ValueError` if one of ``packages`` (distributions by module) is not installed.

    ``feature`` is the subject of the error text; ``extra`` is the extra of ``headrace`` that contains the packages.
    """
    for module, distribution in packages.items():
        if not _is_installed(module):
            raise ValueError(f"{feature} needs the package {distribution}: pip install 'headrace[{extra}]'")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
