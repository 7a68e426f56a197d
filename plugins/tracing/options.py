"""What the operator asked for: the table ``[plugins.options.tracing]``, and under it the SDK's environment variables.

Called by `headrace.plugins.tracing.plugin` at start; pure, the environment is an argument. An option that is wrong
stops the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from headrace.plugins.otel_environment import OtelEnvironment
from headrace.quota_callbacks.options import TRUE_OR_FALSE, Table, number, read_options, whole

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

_FIXED_RATIOS: Final = {
    "always_on": 1.0,
    "always_off": 0.0,
    "parentbased_always_on": 1.0,
    "parentbased_always_off": 0.0,
}
_RATIO_SAMPLERS: Final = ("traceidratio", "parentbased_traceidratio")


class TracingTable(Table):
    """The options of ``tracing``."""

    enabled: Annotated[bool, TRUE_OR_FALSE] = False
    sample_ratio: Annotated[
        float | None, number(0, 1, "a number from 0 (only requests that were throttled, refused or failed) to 1 (all)")
    ] = None
    queue_size: Annotated[int | None, whole(1, LARGEST_QUEUE, "requests")] = None


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


def options_of(table: Mapping[str, object], variables: Mapping[str, str]) -> TracingOptions:
    """Return the options of ``table``, or raise ``ValueError`` that names each one that is wrong.

    What ``table`` leaves out comes from the environment's ``variables``, then from the defaults.
    """
    asked = read_options(TracingTable, table, "tracing")
    environment = OtelEnvironment(variables, "TRACES")
    if not asked.enabled:
        return TracingOptions()
    off_because = _off_because(environment)
    if off_because is not None:
        return TracingOptions(off_because=off_because)
    exporter = environment.get("OTEL_TRACES_EXPORTER")
    if exporter not in ("", "otlp"):
        raise ValueError(f"OTEL_TRACES_EXPORTER is {exporter!r}; expected otlp, or none to keep tracing off")
    environment.check_export()
    ratio, queue_size = asked.sample_ratio, asked.queue_size
    return TracingOptions(
        enabled=True,
        sample_ratio=_ratio(environment) if ratio is None else ratio,
        queue_size=queue_size or _positive(environment, "OTEL_BSP_MAX_QUEUE_SIZE", DEFAULT_QUEUE_SIZE, LARGEST_QUEUE),
        batch_spans=_positive(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", DEFAULT_BATCH_SPANS, LARGEST_QUEUE),
        delay_ms=_positive(environment, "OTEL_BSP_SCHEDULE_DELAY", DEFAULT_DELAY_MS, 3_600_000),
        warnings=tuple(environment.warnings),
    )


def _off_because(environment: OtelEnvironment) -> str | None:
    if environment.disabled:
        return "OTEL_SDK_DISABLED is true"
    if environment.get("OTEL_TRACES_EXPORTER").lower() == "none":
        return "OTEL_TRACES_EXPORTER is none"
    return None


def _ratio(environment: OtelEnvironment) -> float:
    """Return the ratio of OTEL_TRACES_SAMPLER and its argument.

    A request of Kafka carries no trace context, so there is never a parent and the ``parentbased_`` samplers are what
    they fall back to. Where no sampler is named ours is a ratio sampler, and the argument is its ratio.
    """
    sampler = environment.get("OTEL_TRACES_SAMPLER").lower()
    if sampler in _FIXED_RATIOS:
        return _FIXED_RATIOS[sampler]
    default = 1.0 if sampler in _RATIO_SAMPLERS else DEFAULT_SAMPLE_RATIO
    if sampler and sampler not in _RATIO_SAMPLERS:
        known = ", ".join((*_FIXED_RATIOS, *_RATIO_SAMPLERS))
        environment.warnings.append(f"OTEL_TRACES_SAMPLER is {sampler!r}; expected one of {known}; passed over")
        return default
    return environment.number("OTEL_TRACES_SAMPLER_ARG", float, 0, 1, "a number from 0 to 1", default)


def _positive(environment: OtelEnvironment, name: str, default: int, most: int) -> int:
    return int(environment.number(name, int, 1, most, f"a whole number from 1 to {most}", default))
