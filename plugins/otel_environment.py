"""The environment variables of the OpenTelemetry SDK that `headrace.plugins.tracing` and `headrace.plugins.metrics`
support.

Pure: the environment is an argument. An invalid variable is ignored with a warning, as OpenTelemetry's specification
requires; a protocol or an endpoint with which no export could succeed is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.quota_callbacks.value_texts import without_user_info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import FilteringBoundLogger


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveOptions:
    """The effect of environment variables on the options of the plugins metrics and tracing."""

    off_because: str | None = None
    """The variable that keeps the plugin off although ``enabled`` is true."""
    warnings: tuple[str, ...] = ()
    """One sentence for each variable that was ignored."""

    def log_to(self, log: FilteringBoundLogger, line: str) -> None:
        """Log the warnings, and ``line`` with the reason if a variable keeps the plugin off."""
        for warning in self.warnings:
            log.warning(warning)
        if self.off_because is not None:
            log.info(line, reason=self.off_because)


class OtelEnvironment:
    """The variables for one signal, ``TRACES`` or ``METRICS``; a signal's own variable overrides the general one."""

    __slots__ = ("_variables", "signal", "warnings")

    def __init__(self, variables: Mapping[str, str], signal: str) -> None:
        self._variables = variables
        self.signal = signal
        self.warnings: list[str] = []
        """One sentence for each variable that was ignored."""

    def get(self, name: str) -> str:
        """Return the value of a variable, "" if it is unset; an empty one counts as unset (OpenTelemetry
        specification)."""
        return self._variables.get(name, "").strip()

    @property
    def disabled(self) -> bool:
        """Whether the SDK is switched off as a whole."""
        return self.get("OTEL_SDK_DISABLED").lower() == "true"

    def exporter_variable(self, setting: str) -> str | None:
        """Return the name of the variable that sets ``setting`` of the OTLP exporter, ``None`` if none does."""
        names = (f"OTEL_EXPORTER_OTLP_{self.signal}_{setting}", f"OTEL_EXPORTER_OTLP_{setting}")
        return next((name for name in names if self.get(name)), None)

    def check_export(self, endpoint: str | None = None) -> None:
        """Raise `ValueError` if the variables set an unsupported protocol or, when no ``endpoint`` is given, an
        endpoint that is not a URL."""
        name = self.exporter_variable("PROTOCOL")
        if name is not None and self.get(name) != "http/protobuf":
            raise ValueError(
                f"{name} is {self.get(name)!r}, but headrace only exports over http/protobuf; set the endpoint to"
                " the receiver's HTTP port (4318 by convention) and unset the variable"
            )
        name = self.exporter_variable("ENDPOINT")
        if endpoint is None and name is not None and not is_url(self.get(name)):
            found = without_user_info(self.get(name))
            raise ValueError(f"{name} is {found!r}; expected a URL that begins with http:// or https://")

    def number(
        self, name: str, read: Callable[[str], float], least: float, most: float, expected: str, default: float
    ) -> float:
        """Return the number that a variable holds, or ``default`` if it is unset or invalid.

        ``read`` parses the text and raises `ValueError`. An invalid variable adds a sentence to `warnings`.
        """
        text = self.get(name)
        if not text:
            return default
        try:
            value = read(text)
        except ValueError:
            value = float("nan")
        if least <= value <= most:
            return value
        self.warnings.append(f"{name} is {text!r}; expected {expected}; using {default:g}")
        return default


def is_url(text: str) -> bool:
    """Return whether ``text`` is an HTTP or HTTPS URL."""
    return text.lower().startswith(("http://", "https://"))
