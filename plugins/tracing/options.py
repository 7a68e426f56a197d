"""The options of the plugin: the table ``[plugins.options.tracing]``, with the SDK's environment variables as defaults.

Called by `headrace.plugins.tracing.plugin` at start. Pure: the environment is an argument. An invalid option prevents
the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from headrace.plugins.otel_environment import EffectiveOptions, OtelEnvironment
from headrace.quota_callbacks.options import TRUE_OR_FALSE, Table, number, read_options, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_SAMPLE_RATIO: Final = 0.01
"""One request in a hundred. At 20,000 requests a second these are 200 traces, whose export takes about 5% of a core."""
DEFAULT_QUEUE_SIZE: Final = 2048
"""The default of the SDK's batch processor (OTEL_BSP_MAX_QUEUE_SIZE)."""
DEFAULT_BATCH_SPANS: Final = 512
"""The default of the SDK's batch processor (OTEL_BSP_MAX_EXPORT_BATCH_SIZE)."""
DEFAULT_DELAY_MS: Final = 5000
"""The default of the SDK's batch processor (OTEL_BSP_SCHEDULE_DELAY)."""
LARGEST_QUEUE: Final = 1_000_000
"""A record takes 0.3 KiB, 4 KiB with the longest texts: a longer queue, of 300 MB and more, is taken for a mistake."""

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
class TracingOptions(EffectiveOptions):
    """The options as they take effect."""

    enabled: bool = False
    sample_ratio: float = DEFAULT_SAMPLE_RATIO
    """Fraction of ordinary requests that are traced; throttled, refused and failed requests are always traced."""
    queue_size: int = DEFAULT_QUEUE_SIZE
    """Maximum number of requests in the queue to the export thread."""
    batch_spans: int = DEFAULT_BATCH_SPANS
    """Maximum number of spans in one export, unless a single trace has more: a trace is never split."""
    delay_ms: int = DEFAULT_DELAY_MS
    """Maximum time that a request waits for others before it is exported."""


def options_of(table: Mapping[str, object], variables: Mapping[str, str]) -> TracingOptions:
    """Return the options of ``table``; raise ``ValueError`` that names each invalid one.

    Options missing in ``table`` come from the environment ``variables``, then from the defaults.
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
    """Return the ratio that OTEL_TRACES_SAMPLER and its argument set.

    A Kafka request carries no trace context, so a span never has a parent, and a ``parentbased_`` sampler acts like its
    root sampler. If the variable is unset, the sampler is a ratio sampler whose ratio is the argument.
    """
    sampler = environment.get("OTEL_TRACES_SAMPLER").lower()
    if sampler in _FIXED_RATIOS:
        return _FIXED_RATIOS[sampler]
    default = 1.0 if sampler in _RATIO_SAMPLERS else DEFAULT_SAMPLE_RATIO
    if sampler and sampler not in _RATIO_SAMPLERS:
        known = ", ".join((*_FIXED_RATIOS, *_RATIO_SAMPLERS))
        environment.warnings.append(f"OTEL_TRACES_SAMPLER is {sampler!r}; expected one of {known}; ignored")
        return default
    return environment.number("OTEL_TRACES_SAMPLER_ARG", float, 0, 1, "a number from 0 to 1", default)


def _positive(environment: OtelEnvironment, name: str, default: int, most: int) -> int:
    return int(environment.number(name, int, 1, most, f"a whole number from 1 to {most}", default))
