"""What the operator asked for: the table ``[plugins.options.tracing]``, and under it the SDK's environment variables.

Called by `plugins.tracing.plugin` at start; pure, the environment is an argument. An option that is wrong stops the
start. A variable that is wrong is passed over and told in ``warnings``, as OpenTelemetry's specification asks; but what
would never reach a receiver is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_SAMPLE_RATIO: Final = 0.01
"""One request in a hundred. At 20,000 requests a second that is 200 traces, about a twentieth of a core to export."""
DEFAULT_QUEUE_SIZE: Final = 2048
"""Of the SDK's batch processor (OTEL_BSP_MAX_QUEUE_SIZE)."""
DEFAULT_BATCH_SPANS: Final = 512
"""Of the SDK's batch processor (OTEL_BSP_MAX_EXPORT_BATCH_SIZE)."""
DEFAULT_DELAY_MS: Final = 5000
"""Of the SDK's batch processor (OTEL_BSP_SCHEDULE_DELAY)."""
LARGEST_QUEUE: Final = 1_000_000
"""A record takes 0.3 KiB, and 4 KiB with the longest texts in it: this is at least 300 MB, and surely a mistake."""

_KNOWN: Final = ("enabled", "sample_ratio", "queue_size")

_FIXED_RATIOS: Final = {
    "always_on": 1.0,
    "always_off": 0.0,
    "parentbased_always_on": 1.0,
    "parentbased_always_off": 0.0,
}
_RATIO_SAMPLERS: Final = ("traceidratio", "parentbased_traceidratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingOptions:
    """The options as they take effect."""

    enabled: bool = False
    sample_ratio: float = DEFAULT_SAMPLE_RATIO
    """Of the requests that were neither throttled nor refused and did not fail; those are always kept."""
    queue_size: int = DEFAULT_QUEUE_SIZE
    """Requests that wait for the export thread, at most."""
    batch_spans: int = DEFAULT_BATCH_SPANS
    """Spans of one export, at most; but a trace is never split."""
    delay_ms: int = DEFAULT_DELAY_MS
    """How long a request waits for others before it is exported, at most."""
    off_because: str | None = None
    """Which variable keeps tracing off though ``enabled`` asks for it."""
    warnings: tuple[str, ...] = ()
    """Variables that were passed over, a sentence each."""


def read_options(table: Mapping[str, object], environment: Mapping[str, str]) -> TracingOptions:
    """The options of ``table``, or ``ValueError`` with a sentence that names the option, its value and the rule.

    What ``table`` leaves out comes from ``environment``, then from the defaults.
    """
    for name in table:
        if name not in _KNOWN:
            raise ValueError(f"plugins.options.tracing.{name}: there is no such option; there are {', '.join(_KNOWN)}")
    enabled = _enabled(table)
    sample_ratio, queue_size = _sample_ratio(table), _queue_size(table)
    if not enabled:
        return TracingOptions()
    off_because = _off_because(environment)
    if off_because is not None:
        return TracingOptions(off_because=off_because)
    _check_export(environment)
    warnings: list[str] = []
    if sample_ratio is None:
        sample_ratio = _ratio_of(environment, warnings)
    if queue_size is None:
        queue_size = _positive(environment, "OTEL_BSP_MAX_QUEUE_SIZE", DEFAULT_QUEUE_SIZE, LARGEST_QUEUE, warnings)
    return TracingOptions(
        enabled=True,
        sample_ratio=sample_ratio,
        queue_size=queue_size,
        batch_spans=_positive(
            environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", DEFAULT_BATCH_SPANS, LARGEST_QUEUE, warnings
        ),
        delay_ms=_positive(environment, "OTEL_BSP_SCHEDULE_DELAY", DEFAULT_DELAY_MS, 3_600_000, warnings),
        warnings=tuple(warnings),
    )


# --- the table --------------------------------------------------------------------------------------------------------


def _enabled(table: Mapping[str, object]) -> bool:
    value = table.get("enabled", False)
    if not isinstance(value, bool):
        raise ValueError(f"plugins.options.tracing.enabled is {value!r}; expected true or false")  # noqa: TRY004
    return value


def _sample_ratio(table: Mapping[str, object]) -> float | None:
    value = table.get("sample_ratio")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(
            f"plugins.options.tracing.sample_ratio is {value!r}; expected a number from 0 (only requests that were"
            " throttled, refused or failed) to 1 (all)"
        )
    return float(value)


def _queue_size(table: Mapping[str, object]) -> int | None:
    value = table.get("queue_size")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_QUEUE:
        raise ValueError(
            f"plugins.options.tracing.queue_size is {value!r}; expected a whole number of requests from 1 to"
            f" {LARGEST_QUEUE}"
        )
    return value


# --- the environment --------------------------------------------------------------------------------------------------


def _off_because(environment: Mapping[str, str]) -> str | None:
    if _get(environment, "OTEL_SDK_DISABLED").lower() == "true":
        return "OTEL_SDK_DISABLED is true"
    if _get(environment, "OTEL_TRACES_EXPORTER").lower() == "none":
        return "OTEL_TRACES_EXPORTER is none"
    return None


def _check_export(environment: Mapping[str, str]) -> None:
    """Refuse what this plugin has no exporter for, rather than to send what nobody understands."""
    exporter = _get(environment, "OTEL_TRACES_EXPORTER")
    if exporter not in ("", "otlp"):
        raise ValueError(f"OTEL_TRACES_EXPORTER is {exporter!r}; expected otlp, or none to keep tracing off")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = _get(environment, name)
        if protocol:
            if protocol != "http/protobuf":
                raise ValueError(
                    f"{name} is {protocol!r}, but headrace exports over http/protobuf alone; point the endpoint at the"
                    " receiver's HTTP port (4318 by convention) and unset the variable"
                )
            break
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        endpoint = _get(environment, name)
        if endpoint:
            if not endpoint.lower().startswith(("http://", "https://")):
                raise ValueError(f"{name} is {endpoint!r}; expected a URL that begins with http:// or https://")
            break


def _ratio_of(environment: Mapping[str, str], warnings: list[str]) -> float:
    """The ratio of OTEL_TRACES_SAMPLER and its argument.

    A request of Kafka carries no trace context, so there is never a parent and the ``parentbased_`` samplers are what
    they fall back to. Where no sampler is named ours is a ratio sampler, and the argument is its ratio.
    """
    sampler = _get(environment, "OTEL_TRACES_SAMPLER").lower()
    if sampler in _FIXED_RATIOS:
        return _FIXED_RATIOS[sampler]
    default = 1.0 if sampler in _RATIO_SAMPLERS else DEFAULT_SAMPLE_RATIO
    if sampler and sampler not in _RATIO_SAMPLERS:
        known = ", ".join((*_FIXED_RATIOS, *_RATIO_SAMPLERS))
        warnings.append(f"OTEL_TRACES_SAMPLER is {sampler!r}; expected one of {known}; passed over")
        return default
    text = _get(environment, "OTEL_TRACES_SAMPLER_ARG")
    if not text:
        return default
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        warnings.append(f"OTEL_TRACES_SAMPLER_ARG is {text!r}; expected a number from 0 to 1; {default} is taken")
        return default
    return ratio


def _positive(environment: Mapping[str, str], name: str, default: int, most: int, warnings: list[str]) -> int:
    text = _get(environment, name)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        warnings.append(f"{name} is {text!r}; expected a whole number from 1 to {most}; {default} is taken")
        return default
    return value


def _get(environment: Mapping[str, str], name: str) -> str:
    """An empty variable counts as unset (OpenTelemetry specification)."""
    return environment.get(name, "").strip()
