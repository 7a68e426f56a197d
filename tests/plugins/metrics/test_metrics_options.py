"""The plugin's table and the SDK's variables."""

from __future__ import annotations

import pytest

from headrace.plugins.metrics.options import MetricsOptions, options_of

RECEIVER = "http://receiver:4318"


def test_by_default_the_page_has_them_and_nothing_is_pushed() -> None:
    assert options_of({}, {}) == MetricsOptions(enabled=True, max_series=10_000, idle_s=300, push=False)


def test_all_options() -> None:
    table = {"max_series": 50, "idle_s": 60, "otlp_endpoint": RECEIVER, "push_interval_s": 5}
    assert options_of(table, {}) == MetricsOptions(
        max_series=50, idle_s=60, push=True, endpoint=f"{RECEIVER}/v1/metrics", push_interval_s=5
    )


@pytest.mark.parametrize(
    ("endpoint", "taken"),
    [
        (f"{RECEIVER}/", f"{RECEIVER}/v1/metrics"),
        ("https://receiver/api/v1/otlp/v1/metrics", "https://receiver/api/v1/otlp/v1/metrics"),
    ],
)
def test_an_endpoint_without_a_path_is_completed(endpoint: str, taken: str) -> None:
    assert options_of({"otlp_endpoint": endpoint}, {}).endpoint == taken


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"max_serie": 1},
            "plugins.options.metrics.max_serie: unknown key; did you mean plugins.options.metrics.max_series?",
        ),
        ({"enabled": 1}, "enabled = 1: expected true or false"),
        ({"max_series": 0}, "max_series = 0: expected a whole number of series from 1 to 1000000"),
        ({"max_series": 1.5}, "max_series = 1.5"),
        ({"max_series": True}, "max_series = true"),
        ({"idle_s": 3601}, "idle_s = 3601: expected a whole number of seconds from 1 to 3600"),
        ({"idle_s": "5m"}, 'idle_s = "5m"'),
        ({"otlp_endpoint": "receiver:4318"}, "expected a URL that begins with http:// or https://"),
        ({"otlp_endpoint": 4318}, "otlp_endpoint = 4318"),
        ({"push_interval_s": 0}, "push_interval_s = 0: expected seconds from 1 to 3600"),
        ({"push_interval_s": float("nan")}, "push_interval_s = nan"),
        ({"enabled": False, "max_series": -1}, "max_series = -1"),
    ],
)
def test_an_option_that_is_wrong_is_named(table: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^plugins\.options\.metrics\.") as raised:
        options_of(table, {})
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("environment", "push"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": RECEIVER}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": RECEIVER}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": RECEIVER}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": RECEIVER, "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": RECEIVER, "OTEL_METRICS_EXPORTER": "prometheus"}, False),
        ({"OTEL_METRICS_EXPORTER": "prometheus, otlp"}, True),
    ],
)
def test_which_variables_switch_pushing_on(environment: dict[str, str], push: bool) -> None:
    options = options_of({}, environment)
    assert (options.enabled, options.push, options.endpoint) == (True, push, None)


def test_the_variable_can_keep_the_option_from_pushing() -> None:
    assert not options_of({"otlp_endpoint": RECEIVER}, {"OTEL_METRICS_EXPORTER": "none"}).push


def test_the_sdk_switched_off_switches_them_off() -> None:
    options = options_of({}, {"OTEL_SDK_DISABLED": "true"})
    assert (options.enabled, options.off_because) == (False, "OTEL_SDK_DISABLED is true")
    assert options_of({"enabled": False}, {"OTEL_SDK_DISABLED": "true"}).off_because is None


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"OTEL_METRICS_EXPORTER": "console"}, "OTEL_METRICS_EXPORTER names 'console'; expected one of otlp"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": RECEIVER, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', but headrace only exports over http/protobuf",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "receiver:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'receiver:4318'"),
    ],
)
def test_what_would_never_arrive_is_refused(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^OTEL_") as raised:
        options_of({}, environment)
    assert sentence in str(raised.value)


def test_the_protocol_of_metrics_goes_first() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": RECEIVER,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
    }
    assert options_of({}, environment).push


@pytest.mark.parametrize(("text", "seconds"), [("2500", 2.5), ("", 60), ("1", 0.001)])
def test_the_interval_of_the_environment(text: str, seconds: float) -> None:
    options = options_of({}, {"OTEL_METRIC_EXPORT_INTERVAL": text})
    assert (options.push_interval_s, options.warnings) == (seconds, ())


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_an_interval_that_is_wrong_is_passed_over_with_a_warning(text: str) -> None:
    options = options_of({}, {"OTEL_METRIC_EXPORT_INTERVAL": text})
    assert options.push_interval_s == 60
    (warning,) = options.warnings
    assert f"OTEL_METRIC_EXPORT_INTERVAL is {text!r}; expected milliseconds from 1 to 3600000" in warning
    assert options_of({"push_interval_s": 7}, {"OTEL_METRIC_EXPORT_INTERVAL": text}).warnings == ()
