"""No error about the configuration contains a secret, whatever is wrong and wherever the secret was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from headrace.config.loading import loads
from headrace.config.problems import ConfigError
from headrace.plugins.metrics.options import options_of
from headrace.plugins.sasl_oauth import SaslOAuth
from headrace.plugins.sasl_oauth.client_exchange import credentials_of
from headrace.plugins.sasl_oauth.http_requests import RequestError, request, tls_context
from headrace.plugins.usage_records import UsageRecords
from headrace.proxy.admin.http import HttpRequest
from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.sasl import UpstreamSasl
from headrace.quota_callbacks.secret_sources import SecretSource
from testbed.preloaded_command import run_headrace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECRET: Final = "hunter2-hunter2"
MINIMAL: Final = 'upstream.bootstrap_servers = ["kafka:9092"]\nlisten.address = "127.0.0.1:9192"\n'
USAGE: Final = "plugins.options.usage_records"


def error_of(plugin: Any, options: Mapping[str, Any]) -> str:
    """The error with which the proxy would not start because of a plugin's options."""
    manager = new_plugin_manager()
    register(manager, "usage_records", plugin)
    hooks = HookCalls(manager)
    quotas = ClientQuotas(windows={}, metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit)
    with pytest.raises(StartupError) as caught:
        hooks.configure(quotas, {"usage_records": options}, PluginContext(options={}, quotas=quotas, dry=True))
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f'{USAGE}.client = {{ "sasl.password" = "{SECRET}" ',
        f'"sasl.password" = """\n{SECRET}" = 1"""x\n',
        f"['sasl.password']\n{SECRET}\n",
        f'password_file = "{SECRET}" x\n',
        f'{USAGE} = "sasl.password={SECRET}"\n',
        f'plugins.options = "usage_records.client.sasl.password={SECRET}"\n',
        f'plugins.options = ["usage_records.client.sasl.password={SECRET}"]\n',
        f'plugins = "{SECRET}"\n',
        f'upstream = {{ bootstrap_servers = [{{ "sasl.jaas.config" = "{SECRET}" }}] }}\n',
        f'listen.advertised_host = "SASL://user:{SECRET}@kafka"\n',
        f'admin.listen = "user:{SECRET}@kafka:9090x"\n',
        f'admin.token = "{SECRET}"\n',
        f'upstream = "PLAIN alice {SECRET}"\n',
        f'upstream.sasl = "PLAIN alice {SECRET}"\n',
        f'upstream.sasl = ["PLAIN", "alice", "{SECRET}"]\n',
        f'upstream.sasl.user = ["alice", "{SECRET}"]\n',
        f'upstream.sasl.mechanism = {{ name = "PLAIN", value = "{SECRET}" }}\n',
        f'upstream.owner_lookup = "PLAIN alice {SECRET}"\n',
        f'listen.tls = "key {SECRET}"\n',
        f'admin.tls = ["key", "{SECRET}"]\n',
        f'listeners = "{SECRET}"\n',
        f'listeners.x = "{SECRET}"\n',
    ],
)
def test_errors_of_the_file(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text + MINIMAL if "upstream" not in text else text, plugins=["usage_records"])
    assert SECRET not in str(caught.value)


def test_an_environment_variable_that_is_not_toml() -> None:
    environment = {"HEADRACE_PLUGINS__OPTIONS": f'{{ usage_records = {{ password = "{SECRET}" }}'}
    with pytest.raises(ConfigError) as caught:
        loads(MINIMAL, environment=environment)
    assert str(caught.value).startswith("HEADRACE_PLUGINS__OPTIONS ***: expected a table for each plugin")


def test_listeners_of_an_environment_variable() -> None:
    environment = {"HEADRACE_LISTENERS": f'{{ x = {{ sasl = {{ password = "{SECRET}" }} }}'}
    with pytest.raises(ConfigError) as caught:
        loads(MINIMAL, environment=environment)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", [f"https://proxy:{SECRET}/et@idp/keys", f"http://idp.example.com/keys?key={SECRET}"])
def test_the_url_of_keys_and_of_tokens(url: str) -> None:
    assert SECRET not in error_of(SaslOAuth(), {"jwks_url": url})
    secret, options = SecretSource(env="P"), {"token_endpoint": url}
    login = UpstreamSasl(mechanism="OAUTHBEARER", user="a", password=secret, options=options)
    with pytest.raises(ValueError, match="token_endpoint") as caught:
        credentials_of(login)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("proxy", [f"http://user:{SECRET}/et@proxy:3128", f"ftp://{SECRET}@proxy:3128"])
async def test_the_url_of_a_proxy(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(RequestError, match="the proxy in HTTPS_PROXY") as caught:
        await request("GET", "https://idp.example.com/keys", tls=tls_context(None))
    assert SECRET not in str(caught.value)


def test_the_headers_of_a_request_to_the_admin_server() -> None:
    async def no_body() -> bytes:
        return b""

    head = HttpRequest(
        method="GET",
        path="/",
        query={},
        headers={"authorization": f"Bearer {SECRET}"},
        read_body=no_body,
        client="127.0.0.1",
        subject=None,
    )
    assert SECRET not in repr(head)


@pytest.mark.parametrize(
    "client",
    [
        {"sasl.password_file": SECRET},
        {"sasl.password_file": SECRET, "sasl.password": SECRET},
        {"sasl.password": [SECRET]},
        SECRET,
        [SECRET],
    ],
)
def test_options_of_the_usage_records(client: object) -> None:
    options = {"topic": "usage", "bootstrap_servers": f"user:{SECRET}@kafka:9092", "client": client}
    assert SECRET not in error_of(UsageRecords(), options)


def test_a_file_with_a_secret_that_is_missing_is_named_by_its_key() -> None:
    options = {"bootstrap_servers": "kafka:9092", "client": {"sasl.password_file": SECRET}}
    assert error_of(UsageRecords(), options) == (
        "plugin 'usage_records': plugins.options.usage_records.client.\"sasl.password_file\" = ***: cannot be read:"
        " no such file or directory"
    )


@pytest.mark.parametrize("setting", ["security.protocol", "socket.timeout.ms", "no.such.setting"])
def test_a_secret_that_librdkafka_quotes(setting: str) -> None:
    from headrace.plugins.usage_records.kafka_topic import KafkaSink

    with pytest.raises(ValueError, match=setting) as caught:
        KafkaSink("usage", "127.0.0.1:1", "instance", {setting: SECRET})
    assert SECRET not in str(caught.value)


class OfPydantic:
    """A plugin of a stranger, whose options are an ordinary model: pydantic's message quotes the input."""

    headrace_hooks = HOOK_VERSION

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        class Options(BaseModel):
            password: int
            nested: dict[str, int]

        Options.model_validate(context.options)


def test_errors_of_a_strangers_plugin() -> None:
    found = error_of(OfPydantic(), {"password": SECRET, "nested": {"access_key": SECRET}})
    assert "2 validation errors for Options" in found
    assert SECRET not in found


def test_the_password_of_an_endpoint() -> None:
    for table, variables in (
        ({"otlp_endpoint": f"htp://user:{SECRET}@collector"}, {}),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"user:{SECRET}@collector:4318"}),
    ):
        with pytest.raises(ValueError, match=r"\*\*\*@collector") as caught:
            options_of(table, variables)
        assert SECRET not in str(caught.value)


def test_options_of_a_login_to_brokers() -> None:
    """They may have a secret among the parameters of a token request."""
    sasl = UpstreamSasl(
        mechanism="OAUTHBEARER",
        user="proxy",
        password=SecretSource(env="P"),
        options={"token_endpoint": "https://idp.example.com", "parameters": f"client_assertion={SECRET}"},
    )
    credentials = credentials_of(sasl)
    assert SECRET in str(credentials.parameters)
    assert SECRET not in f"{sasl!r} {credentials!r}"


KEYS = st.sampled_from(
    ["sasl.password", "sasl.password_file", "ssl.key.password", "token", "token_file", "sasl.jaas.config", "api_key"]
)
WRONG = st.recursive(st.just(SECRET), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner))


@given(place=st.sampled_from([(), ("client",), ("folder",), ("client", "nested")]), key=KEYS, value=WRONG)
def test_a_secret_in_any_wrong_place(place: tuple[str, ...], key: str, value: object) -> None:
    options: dict[str, Any] = {"max_rows": "many"}
    table = options
    for name in place:
        table = table.setdefault(name, {})
    table[key] = value
    assert SECRET not in error_of(UsageRecords(), options)


def test_the_command(tmp_path: Path) -> None:
    """The whole command: what it prints about a password that is no table and no text."""
    file = tmp_path / "headrace.toml"
    client = f'{{ "sasl.password_file" = "{SECRET}" }}'
    file.write_text(f'{MINIMAL}[{USAGE}]\nbootstrap_servers = "a:1"\nclient = {client}\n')
    result = run_headrace("check-config", file)
    assert result.returncode == 1
    assert "sasl.password_file" in result.stderr
    assert SECRET not in result.stderr + result.stdout
