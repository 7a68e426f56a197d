"""The options of the plugin: the table ``[plugins.options.metrics]``, with the SDK's environment variables as defaults.

Called by `headrace.plugins.metrics.plugin` at start. Pure: the environment is an argument. An invalid option prevents
the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

from headrace.plugins.otel_environment import EffectiveOptions, OtelEnvironment, is_url
from headrace.quota_callbacks.options import TRUE_OR_FALSE, Parsed, Table, number, read_options, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_MAX_SERIES: Final = 10_000
"""Series of entities, over all measures: about 1 MB on the page, and 0.2 s of CPU time for each collection."""
LARGEST_MAX_SERIES: Final = 1_000_000
DEFAULT_IDLE_S: Final = 300
"""Prometheus's default for how far back it looks for the last value of a series (``query.lookback-delta``)."""
LONGEST_IDLE_S: Final = 3600
"""An hour: buckets are removed after an hour without use (``ClientSensors``)."""
DEFAULT_PUSH_INTERVAL_S: Final = 60.0
"""The default of OTEL_METRIC_EXPORT_INTERVAL."""
LONGEST_PUSH_INTERVAL_S: Final = 3600.0

METRICS_PATH: Final = "/v1/metrics"

_EXPORTERS: Final = ("otlp", "prometheus", "none")


def _parse_endpoint(raw: object) -> str:
    if not isinstance(raw, str) or not is_url(raw):
        raise ValueError
    return raw.rstrip("/") + METRICS_PATH if urlsplit(raw).path in ("", "/") else raw


class MetricsTable(Table):
    """The options of ``metrics``."""

    enabled: Annotated[bool, TRUE_OR_FALSE] = True
    max_series: Annotated[int, whole(1, LARGEST_MAX_SERIES, "series")] = DEFAULT_MAX_SERIES
    idle_s: Annotated[int, whole(1, LONGEST_IDLE_S, "seconds")] = DEFAULT_IDLE_S
    otlp_endpoint: Annotated[
        str | None, Parsed("a URL that begins with http:// or https://", _parse_endpoint, {"type": "string"})
    ] = None
    push_interval_s: Annotated[
        float | None, number(1, LONGEST_PUSH_INTERVAL_S, f"seconds from 1 to {LONGEST_PUSH_INTERVAL_S:g}")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions(EffectiveOptions):
    """The options as they take effect."""

    enabled: bool = True
    max_series: int = DEFAULT_MAX_SERIES
    """Maximum number of series of entities, over all measures; those of `other` and of no entity are not counted."""
    idle_s: int = DEFAULT_IDLE_S
    """Seconds without use after which an entity has no series."""
    push: bool = False
    """Whether to push by OTLP in addition to the Prometheus page."""
    endpoint: str | None = None
    """The URL to push to; ``None``: the exporter reads the SDK's variables."""
    push_interval_s: float = DEFAULT_PUSH_INTERVAL_S


def options_of(table: Mapping[str, object], variables: Mapping[str, str]) -> MetricsOptions:
    """Return the options of ``table``; raise ``ValueError`` that names each invalid one.

    Options missing in ``table`` come from the environment ``variables``, then from the defaults.
    """
    asked = read_options(MetricsTable, table, "metrics")
    environment = OtelEnvironment(variables, "METRICS")
    if not asked.enabled:
        return MetricsOptions(enabled=False)
    if environment.disabled:
        return MetricsOptions(enabled=False, off_because="OTEL_SDK_DISABLED is true")
    interval_s = asked.push_interval_s
    if interval_s is None:
        interval_s = _interval_s(environment)
    return MetricsOptions(
        max_series=asked.max_series,
        idle_s=asked.idle_s,
        push=_push(asked.otlp_endpoint, environment),
        endpoint=asked.otlp_endpoint,
        push_interval_s=interval_s,
        warnings=tuple(environment.warnings),
    )


def _push(endpoint: str | None, environment: OtelEnvironment) -> bool:
    """Return whether to push.

    If OTEL_METRICS_EXPORTER is set, push if it names ``otlp``; otherwise, push if an endpoint is set. The variable's
    other value ``prometheus`` is accepted and changes nothing, since the Prometheus page is always served.
    """
    named = [name.strip() for name in environment.get("OTEL_METRICS_EXPORTER").split(",") if name.strip()]
    for name in named:
        if name not in _EXPORTERS:
            raise ValueError(f"OTEL_METRICS_EXPORTER names {name!r}; expected one of {', '.join(_EXPORTERS)}")
    has_endpoint = endpoint is not None or environment.exporter_variable("ENDPOINT") is not None
    if not ("otlp" in named if named else has_endpoint):
        return False
    environment.check_export(endpoint)
    return True


def _interval_s(environment: OtelEnvironment) -> float:
    most_ms = LONGEST_PUSH_INTERVAL_S * 1000
    expected = f"milliseconds from 1 to {most_ms:.0f}"
    default_ms = DEFAULT_PUSH_INTERVAL_S * 1000
    return environment.number("OTEL_METRIC_EXPORT_INTERVAL", float, 1, most_ms, expected, default_ms) / 1000
