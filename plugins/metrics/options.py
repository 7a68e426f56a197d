"""What the operator asked for: the table ``[plugins.options.metrics]``, and under it the SDK's environment variables.

Called by `plugins.metrics.plugin` at start; pure, the environment is an argument. An option that is wrong stops the
start. A variable that is wrong is passed over and told in ``warnings``, as OpenTelemetry's specification asks; but what
would never reach a receiver is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_MAX_SERIES: Final = 10_000
"""Of entities, over all measures. About 1 MB of page, and 0.2 s of a core for each collection."""
LARGEST_MAX_SERIES: Final = 1_000_000
DEFAULT_IDLE_S: Final = 300
"""How far back Prometheus looks for the last value of a series (``query.lookback-delta``)."""
LONGEST_IDLE_S: Final = 3600
"""Buckets themselves are dropped after an hour without use (``ClientSensors``)."""
DEFAULT_PUSH_INTERVAL_S: Final = 60.0
"""Of OTEL_METRIC_EXPORT_INTERVAL."""
LONGEST_PUSH_INTERVAL_S: Final = 3600.0

METRICS_PATH: Final = "/v1/metrics"

_KNOWN: Final = ("enabled", "max_series", "idle_s", "otlp_endpoint", "push_interval_s")
_EXPORTERS: Final = ("otlp", "prometheus", "none")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """The options as they take effect."""

    enabled: bool = True
    max_series: int = DEFAULT_MAX_SERIES
    """Series of entities, over all measures; `other` and what is no entity's come on top."""
    idle_s: int = DEFAULT_IDLE_S
    """An entity without use for longer has no series."""
    push: bool = False
    """Whether to push by OTLP, too."""
    endpoint: str | None = None
    """Where to; ``None``: the exporter reads the SDK's variables."""
    push_interval_s: float = DEFAULT_PUSH_INTERVAL_S
    off_because: str | None = None
    """Which variable keeps metrics off though ``enabled`` asks for them."""
    warnings: tuple[str, ...] = ()
    """Variables that were passed over, a sentence each."""


def read_options(table: Mapping[str, object], environment: Mapping[str, str]) -> MetricsOptions:
    """The options of ``table``, or ``ValueError`` with a sentence that names the option, its value and the rule.

    What ``table`` leaves out comes from ``environment``, then from the defaults.
    """
    for name in table:
        if name not in _KNOWN:
            raise ValueError(f"plugins.options.metrics.{name}: there is no such option; there are {', '.join(_KNOWN)}")
    enabled = table.get("enabled", True)
    if not isinstance(enabled, bool):
        raise ValueError(f"plugins.options.metrics.enabled is {enabled!r}; expected true or false")  # noqa: TRY004
    max_series = _whole(table, "max_series", DEFAULT_MAX_SERIES, LARGEST_MAX_SERIES, "series")
    idle_s = _whole(table, "idle_s", DEFAULT_IDLE_S, LONGEST_IDLE_S, "seconds")
    endpoint, interval_s = _endpoint(table), _interval_s(table)
    if not enabled:
        return MetricsOptions(enabled=False)
    if _get(environment, "OTEL_SDK_DISABLED").lower() == "true":
        return MetricsOptions(enabled=False, off_because="OTEL_SDK_DISABLED is true")
    warnings: list[str] = []
    if interval_s is None:
        interval_s = _interval_of(environment, warnings)
    return MetricsOptions(
        max_series=max_series,
        idle_s=idle_s,
        push=_push(endpoint, environment),
        endpoint=endpoint,
        push_interval_s=interval_s,
        warnings=tuple(warnings),
    )


def _whole(table: Mapping[str, object], name: str, default: int, most: int, what: str) -> int:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(
            f"plugins.options.metrics.{name} is {value!r}; expected a whole number of {what} from 1 to {most}"
        )
    return value


def _endpoint(table: Mapping[str, object]) -> str | None:
    value = table.get("otlp_endpoint")
    if value is None:
        return None
    if not isinstance(value, str) or not _is_url(value):
        raise ValueError(
            f"plugins.options.metrics.otlp_endpoint is {value!r}; expected a URL that begins with http:// or https://"
        )
    return value.rstrip("/") + METRICS_PATH if urlsplit(value).path in ("", "/") else value


def _interval_s(table: Mapping[str, object]) -> float | None:
    value = table.get("push_interval_s")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= LONGEST_PUSH_INTERVAL_S:
        raise ValueError(
            f"plugins.options.metrics.push_interval_s is {value!r}; expected seconds from 1 to"
            f" {LONGEST_PUSH_INTERVAL_S:g}"
        )
    return float(value)


# --- the environment --------------------------------------------------------------------------------------------------


def _push(endpoint: str | None, environment: Mapping[str, str]) -> bool:
    """Whether to push: where somebody has said where to, or asked for ``otlp``, unless ``otlp`` is left out.

    OTEL_METRICS_EXPORTER knows ``prometheus``, too; the page is there in any case.
    """
    named = [name.strip() for name in _get(environment, "OTEL_METRICS_EXPORTER").split(",") if name.strip()]
    for name in named:
        if name not in _EXPORTERS:
            raise ValueError(f"OTEL_METRICS_EXPORTER names {name!r}; expected one of {', '.join(_EXPORTERS)}")
    told = endpoint is not None or any(_get(environment, name) for name in _ENDPOINTS)
    if not ("otlp" in named if named else told):
        return False
    protocol = next((name for name in _PROTOCOLS if _get(environment, name)), None)
    if protocol is not None and _get(environment, protocol) != "http/protobuf":
        raise ValueError(
            f"{protocol} is {_get(environment, protocol)!r}, but headrace exports over http/protobuf alone; point the"
            " endpoint at the receiver's HTTP port (4318 by convention) and unset the variable"
        )
    variable = next((name for name in _ENDPOINTS if _get(environment, name)), None)
    if endpoint is None and variable is not None and not _is_url(_get(environment, variable)):
        raise ValueError(
            f"{variable} is {_get(environment, variable)!r}; expected a URL that begins with http:// or https://"
        )
    return True


def _interval_of(environment: Mapping[str, str], warnings: list[str]) -> float:
    text = _get(environment, "OTEL_METRIC_EXPORT_INTERVAL")
    if not text:
        return DEFAULT_PUSH_INTERVAL_S
    try:
        interval_s = float(text) / 1000
    except ValueError:
        interval_s = 0.0
    if not 0.001 <= interval_s <= LONGEST_PUSH_INTERVAL_S:
        warnings.append(
            f"OTEL_METRIC_EXPORT_INTERVAL is {text!r}; expected milliseconds from 1 to"
            f" {LONGEST_PUSH_INTERVAL_S * 1000:.0f}; {DEFAULT_PUSH_INTERVAL_S * 1000:.0f} is taken"
        )
        return DEFAULT_PUSH_INTERVAL_S
    return interval_s


def _is_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def _get(environment: Mapping[str, str], name: str) -> str:
    """An empty variable counts as unset (OpenTelemetry specification)."""
    return environment.get(name, "").strip()
