"""The OpenTelemetry SDK's environment variables, as far as `headrace.plugins.tracing` and `headrace.plugins.metrics`
heed them.

Pure, the environment is an argument. A variable that is wrong is passed over with a warning, as OpenTelemetry's
specification asks; but what would never reach a receiver is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class OtelEnvironment:
    """The variables for one signal, ``TRACES`` or ``METRICS``; a variable of its own goes before the general one."""

    __slots__ = ("_variables", "signal", "warnings")

    def __init__(self, variables: Mapping[str, str], signal: str) -> None:
        self._variables = variables
        self.signal = signal
        self.warnings: list[str] = []
        """Variables that were passed over, a sentence each."""

    def get(self, name: str) -> str:
        """Return a variable; an empty one counts as unset (OpenTelemetry specification)."""
        return self._variables.get(name, "").strip()

    @property
    def disabled(self) -> bool:
        """Whether the SDK is switched off as a whole."""
        return self.get("OTEL_SDK_DISABLED").lower() == "true"

    def exporter_variable(self, setting: str) -> str | None:
        """Return the name of the variable that says a setting of the OTLP exporter, if one does."""
        names = (f"OTEL_EXPORTER_OTLP_{self.signal}_{setting}", f"OTEL_EXPORTER_OTLP_{setting}")
        return next((name for name in names if self.get(name)), None)

    def check_export(self, endpoint: str | None = None) -> None:
        """Raise `ValueError` for a protocol that is not spoken here, and, without an ``endpoint``, for one that is no
        URL."""
        name = self.exporter_variable("PROTOCOL")
        if name is not None and self.get(name) != "http/protobuf":
            raise ValueError(
                f"{name} is {self.get(name)!r}, but headrace exports over http/protobuf alone; point the endpoint at"
                " the receiver's HTTP port (4318 by convention) and unset the variable"
            )
        name = self.exporter_variable("ENDPOINT")
        if endpoint is None and name is not None and not is_url(self.get(name)):
            raise ValueError(f"{name} is {self.get(name)!r}; expected a URL that begins with http:// or https://")

    def number(
        self, name: str, read: Callable[[str], float], least: float, most: float, expected: str, default: float
    ) -> float:
        """Return a variable's number, or ``default`` where it is not set, or wrong, which is a warning."""
        text = self.get(name)
        if not text:
            return default
        try:
            value = read(text)
        except ValueError:
            value = float("nan")
        if least <= value <= most:
            return value
        self.warnings.append(f"{name} is {text!r}; expected {expected}; {default:g} is taken")
        return default


def is_url(text: str) -> bool:
    """Return whether an exporter can send there."""
    return text.lower().startswith(("http://", "https://"))
