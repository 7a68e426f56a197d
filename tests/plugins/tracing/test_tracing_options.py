"""The plugin's options and the SDK's variables, as they are read and as they take effect."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.plugins.tracing import Tracing
from headrace.plugins.tracing.options import TracingOptions, options_of
from headrace.proxy.errors import StartupError
from headrace.quota_callbacks.hookspecs import PluginContext
from tests.plugins.tracing.traced import request, throttled

if TYPE_CHECKING:
    from tests.otlp_receiver import OtlpReceiver
    from tests.plugins.conftest import StartTracing

ON = {"enabled": True}


# --- as they are read -------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    assert options_of({}, {}) == TracingOptions()
    assert options_of(ON, {}) == TracingOptions(
        enabled=True, sample_ratio=0.01, queue_size=2048, batch_spans=512, delay_ms=5000
    )


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"ratio": 1}, "plugins.options.tracing.ratio: unknown key; known here: enabled, sample_ratio, queue_size"),
        ({"enabled": "yes"}, 'plugins.options.tracing.enabled = "yes": expected true or false'),
        ({"sample_ratio": 1.5}, "plugins.options.tracing.sample_ratio = 1.5: expected a number from 0"),
        ({"sample_ratio": -0.1}, "plugins.options.tracing.sample_ratio = -0.1: expected a number from 0"),
        ({"sample_ratio": True}, "plugins.options.tracing.sample_ratio = true: expected a number from 0"),
        ({"sample_ratio": float("nan")}, "plugins.options.tracing.sample_ratio = nan: expected a number from 0"),
        ({"sample_ratio": "1%"}, 'plugins.options.tracing.sample_ratio = "1%": expected a number from 0'),
        ({"queue_size": 0}, "plugins.options.tracing.queue_size = 0: expected a whole number of requests from 1"),
        ({"queue_size": 2.5}, "plugins.options.tracing.queue_size = 2.5: expected a whole number"),
        ({"queue_size": 10**9}, "plugins.options.tracing.queue_size = 1000000000: expected a whole number"),
    ],
)
@pytest.mark.parametrize("rest", [{}, ON], ids=["off", "on"])
def test_an_invalid_option_is_reported(table: dict[str, object], rest: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^plugins") as caught:
        options_of(rest | table, {})
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("environment", "ratio"),
    [
        ({"OTEL_TRACES_SAMPLER_ARG": "0.5"}, 0.5),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "always_on", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "", "OTEL_TRACES_SAMPLER_ARG": " "}, 0.01),
    ],
)
def test_the_ratio_of_the_environment(environment: dict[str, str], ratio: float) -> None:
    assert options_of(ON, environment).sample_ratio == ratio
    assert options_of(ON | {"sample_ratio": 0.75}, environment).sample_ratio == 0.75


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", {"sample_ratio": 0.01}),
        ("OTEL_TRACES_SAMPLER_ARG", "2", {"sample_ratio": 0.01}),
        ("OTEL_TRACES_SAMPLER_ARG", "half", {"sample_ratio": 0.01}),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", {"queue_size": 2048}),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many", {"batch_spans": 512}),
        ("OTEL_BSP_SCHEDULE_DELAY", "0", {"delay_ms": 5000}),
    ],
)
def test_an_invalid_variable_is_ignored_with_a_warning(name: str, value: str, taken: dict[str, object]) -> None:
    options = options_of(ON, {name: value})
    (warning,) = options.warnings
    assert warning.startswith(f"{name} is {value!r}; expected ")
    assert {field: getattr(options, field) for field in taken} == taken


def test_the_batch_processors_variables() -> None:
    environment = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "100",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
        "OTEL_BSP_SCHEDULE_DELAY": "250",
    }
    options = options_of(ON, environment)
    assert (options.queue_size, options.batch_spans, options.delay_ms) == (100, 10, 250)
    assert options_of(ON | {"queue_size": 7}, environment).queue_size == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "none")],
)
def test_variables_that_keep_tracing_off(name: str, value: str) -> None:
    options = options_of(ON, {name: value})
    assert not options.enabled
    assert options.off_because is not None
    assert options.off_because.startswith(name)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'; expected otlp, or none"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', but headrace only exports over",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json', but headrace only exports over",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"},
            "OTEL_EXPORTER_OTLP_ENDPOINT is 'collector:4317'; expected",
        ),
    ],
)
def test_what_would_never_arrive_is_refused(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^OTEL") as caught:
        options_of(ON, environment)
    assert str(caught.value).startswith(sentence)
    assert options_of({}, environment) == TracingOptions(), "it does not matter while tracing is off"


def test_the_variable_for_traces_goes_before_the_general_one() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "collector",
    }
    assert options_of(ON, environment).enabled


# --- as they take effect ----------------------------------------------------------------------------------------------


def test_a_wrong_option_stops_the_start(start_tracing: StartTracing) -> None:
    with pytest.raises(StartupError, match=r"plugin 'tracing': plugins\.options\.tracing\.sample_ratio = 7"):
        start_tracing(Tracing(), enabled=True, sample_ratio=7)


def test_options_that_are_only_checked_start_no_thread(otlp_receiver: OtlpReceiver) -> None:
    before = set(threading.enumerate())  # of which some may end by themselves
    plugin = Tracing()
    plugin.configure(PluginContext(options=ON, quotas=None, dry=True))  # type: ignore[arg-type]
    assert set(threading.enumerate()) <= before
    with pytest.raises(ValueError, match="sample_ratio"):
        plugin.configure(PluginContext(options={"sample_ratio": 7}, quotas=None, dry=True))  # type: ignore[arg-type]


def test_a_wrong_variable_is_logged(
    otlp_receiver: OtlpReceiver, start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "lots")
    with capture_logs() as logs:
        start_tracing(Tracing(), enabled=True)
    assert [entry["log_level"] for entry in logs] == ["warning", "info"]
    assert logs[0]["event"].startswith("OTEL_BSP_MAX_QUEUE_SIZE is 'lots'")
    assert (logs[1]["sample_ratio"], logs[1]["queue_size"]) == (0.01, 2048)


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compression(
    compression: str, otlp_receiver: OtlpReceiver, start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    start_tracing(Tracing(), enabled=True, sample_ratio=1).complete(throttled())
    assert len(otlp_receiver.wait_for_trace().spans) == 3
    assert otlp_receiver.exports[0].headers["content-encoding"] == compression


def test_endpoint_and_headers_of_traces(
    otlp_receiver: OtlpReceiver, start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    otel_environment.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{otlp_receiver.endpoint}/tenant/traces")
    otel_environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue,x-key=a%20b")
    start_tracing(Tracing(), enabled=True, sample_ratio=1).complete(request())
    otlp_receiver.wait_for_trace()
    (export,) = otlp_receiver.exports
    assert export.path == "/tenant/traces"
    assert (export.headers["x-tenant"], export.headers["x-key"]) == ("blue", "a b")


def test_the_resource(
    otlp_receiver: OtlpReceiver, start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_SERVICE_NAME", "edge-proxy")
    otel_environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging,service.version=9.9")
    start_tracing(Tracing(), enabled=True, sample_ratio=1).complete(request())
    resource = otlp_receiver.wait_for_trace().request.resource
    assert resource["service.name"] == "edge-proxy"
    assert resource["service.version"] == "9.9"
    assert resource["deployment.environment.name"] == "staging"


def test_the_limits_of_spans(
    otlp_receiver: OtlpReceiver, start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")
    start_tracing(Tracing(), enabled=True, sample_ratio=1).complete(request())
    assert otlp_receiver.wait_for_trace().request.attributes["messaging.client.id"] == "prod"
