"""Settings that had no effect in earlier versions and are errors now, and secrets that must not be printed."""

import pytest

from headrace.config import Config, ConfigError, loads
from headrace.config.overrides import FLAGS
from headrace.quota_callbacks.requests import Address
from tests.config.documents import MINIMAL

PLUGINS = ("metrics", "request_percentage", "tracing", "usage_records")
SECRET = "hunter2"


def refused(text: str, plugins: tuple[str, ...] | None = PLUGINS) -> str:
    with pytest.raises(ConfigError) as caught:
        loads(text, "headrace.toml", plugins=plugins)
    return str(caught.value)


def taken(text: str) -> Config:
    return loads(MINIMAL + text, plugins=PLUGINS)


# --- options without a plugin ---


def test_options_of_a_plugin_that_is_not_there_are_refused_with_their_line() -> None:
    assert refused(MINIMAL + "[plugins.options.tracin]\nenabled = true\n") == (
        "headrace.toml:4: plugins.options.tracin: there is no such plugin; did you mean tracing? "
        "installed or loaded: metrics, request_percentage, tracing, usage_records"
    )


def test_options_of_plugins_that_are_loaded_or_disabled_are_taken() -> None:
    options = '[plugins.options."a.b:C"]\n[plugins.options.tracing]\n'
    assert set(taken(f'[plugins]\nload = ["a.b:C"]\ndisabled = ["tracing"]\n{options}').plugins.options) == {
        "a.b:C",
        "tracing",
    }


# --- a removed key ---


def test_the_interval_that_nothing_read_is_refused_with_the_reason() -> None:
    message = refused(MINIMAL + "producer.id.quota.cache.cleanup.scheduler.interval.ms = 10\n")
    assert message.startswith(
        "headrace.toml:4: producer.id.quota.cache: cache.cleanup.scheduler.interval.ms was removed,"
    )
    assert "nothing reads it" in message
    assert "delete the line" in message


def test_the_watchdog_of_workers_is_refused_with_the_reason() -> None:
    message = refused(MINIMAL + '[watchdog]\ntimeout = "10s"\n')
    assert message.startswith("headrace.toml:4: watchdog: removed, together with the worker processes ")
    assert "WatchdogSec" in message


# --- the advertised address ---

HEAD = 'upstream.bootstrap_servers = ["a:1"]\nlisten.address = "{}"\n'


@pytest.mark.parametrize(("address", "host"), [("kafka.example.com:9192", "kafka.example.com"), ("[::1]:9192", "::1")])
def test_the_listening_host_is_advertised_unless_another_is_given(address: str, host: str) -> None:
    listen = loads(HEAD.format(address)).listen
    assert listen.advertised == Address(host=host, port=9192)


@pytest.mark.parametrize("address", ["0.0.0.0:9192", "[::]:9192"])
def test_a_wildcard_does_not_say_what_to_advertise(address: str) -> None:
    assert refused(HEAD.format(address)) == (
        f'headrace.toml:2: listen.advertised_host: required, since listen.address ("{address}") is a wildcard; '
        'expected a host name or IP address that clients can reach, such as "kafka.example.com"; set it here or with '
        "--advertised-host"
    )
    assert loads(HEAD.format(address), flags={"listen.advertised_host": "k"}).listen.advertised.host == "k"


def test_a_flag_that_takes_a_list_may_be_repeated() -> None:
    assert [flag.name for flag in FLAGS if flag.repeated] == ["--bootstrap-servers"]


# --- secrets ---


@pytest.mark.parametrize(
    "text",
    [
        f"{MINIMAL}[plugins.options]\npassword = '{SECRET}'\n",
        f"{MINIMAL}[plugins.options.tracing]\nx = 1\n[plugins]\nauth_token = '{SECRET}'\n",
        f"{MINIMAL}[plugins.options]\nusage_records = [{{ 'sasl.password' = '{SECRET}' }}]\n",
        f"{MINIMAL}[plugins.options.usage_records.client]\n'sasl.password' = '{SECRET}\n",
        f"{MINIMAL}[plugins.options.usage_records.client]\n'ssl.key.pem' = {SECRET}\n",
    ],
)
def test_no_error_shows_a_secret(text: str) -> None:
    assert SECRET not in refused(text)


def test_no_representation_shows_a_secret() -> None:
    config = taken(f"[plugins.options.usage_records.client]\n'sasl.password' = '{SECRET}'\n")
    assert config.plugins.options["usage_records"]["client"] == {"sasl.password": SECRET}
    assert SECRET not in f"{config!r} {config}"
