"""Every key with valid and invalid values, and the exact error messages."""

import tomllib

import pytest
from pydantic import SecretStr

from headrace.config import ConfigValueError, loads
from headrace.config.keys import keys
from headrace.config.schema import Config
from tests.config.cases import BAD, GOOD
from tests.config.documents import MINIMAL, in_toml, leaf, with_key

KEYS = [leaf.key for leaf in keys(Config) if leaf.key not in ("quotas", "listeners")]
each_key = pytest.mark.parametrize("key", KEYS)


def error_of(text: str) -> str:
    try:
        loads(text, "headrace.toml")
    except ConfigValueError as error:
        return str(error)
    return "no error"


@each_key
def test_values_that_fit(key: str) -> None:
    cases = [case for case in GOOD if case.key == key]
    assert cases
    for case in cases:
        value = leaf(key).value_of(loads(with_key(key, case.toml)))
        assert value == case.value, case
        assert type(value) is type(case.value), case


@each_key
def test_values_that_do_not_fit(key: str) -> None:
    cases = [case for case in BAD if case.key == key]
    assert cases
    for case in cases:
        place = key if case.index is None else f"{key}[{case.index}]"
        found = "" if case.hidden else f" = {case.found or case.toml}"
        assert error_of(with_key(key, case.toml)) == f"headrace.toml:2: {place}{found}: {case.rule}"


@each_key
def test_a_value_that_is_written_is_read_as_the_same(key: str) -> None:
    for case in GOOD:
        if case.key != key:
            continue
        config = loads(with_key(key, case.toml))
        if key == "client_quotas.topic_properties":  # which may be secrets
            assert set(leaf(key).file_value_in(config).values()) == {str(SecretStr("a"))}  # type: ignore[attr-defined]
        else:
            assert loads(with_key(key, in_toml(leaf(key).file_value_in(config)))) == config, case


def test_the_defaults() -> None:
    config = loads(MINIMAL)
    values = {leaf.key: leaf.value_of(config) for leaf in keys(Config) if not leaf.required}
    assert {key: str(value) for key, value in values.items()} == {
        "upstream.connect_timeout": "10.0",
        "upstream.reply_timeout": "3600.0",
        "upstream.proxy_protocol": "False",
        "upstream.tls.enabled": "False",
        **dict.fromkeys((f"upstream.tls.{key}" for key in ("ca_file", "ca_password")), "None"),
        "upstream.tls.verify_names": "True",
        "upstream.tls.kernel": "False",
        **dict.fromkeys((f"upstream.tls.{key}" for key in ("certificate_file", "key_file", "key_password")), "None"),
        "upstream.tls.min_version": "1.2",
        "upstream.tls.ciphers": "None",
        **dict.fromkeys((f"upstream.sasl.{key}" for key in ("mechanism", "user", "password")), "None"),
        "upstream.sasl.options": "{}",
        "upstream.sasl.identities": "()",
        **dict.fromkeys((f"upstream.owner_lookup.{key}" for key in ("mechanism", "user", "password")), "None"),
        "upstream.owner_lookup.unknown_owner": "fallback_user",
        "listen.advertised_host": "kafka.example.com",
        "listen.advertised_port": "None",
        "listen.node_ids": "0-31",
        "listen.backlog": "1024",
        "listen.broker_host": "None",
        "listen.proxy_protocol_from": "()",
        **dict.fromkeys((f"listen.tls.{key}" for key in ("certificate_file", "key_file", "key_password")), "None"),
        "listen.tls.client_certificates": "none",
        **dict.fromkeys((f"listen.tls.{key}" for key in ("client_ca_file", "client_ca_password")), "None"),
        "listen.tls.principal_mapping_rules": "DEFAULT",
        "listen.tls.min_version": "1.2",
        "listen.tls.ciphers": "None",
        "listen.sasl.mode": "observe",
        "listen.sasl.mechanisms": "('SCRAM-SHA-512', 'SCRAM-SHA-256')",
        "listen.sasl.session_lifetime": "None",
        "listeners": "{}",
        "workers": "None",
        "data_plane": "auto",
        "data_plane_threads": "1",
        "limits.max_frame_bytes": "104857600",
        "limits.max_handshake_bytes": "524288",
        "limits.max_whole_request_bytes": "1048576",
        "limits.max_request_rows": "10000",
        "limits.max_collected_bytes": "67108864",
        "limits.max_held_bytes": "134217728",
        "limits.max_memory": "None",
        "limits.max_connections": "10000",
        "limits.max_connections_per_ip": "None",
        "limits.max_connection_rate": "1000",
        "limits.max_connection_rate_per_ip": "100",
        "limits.per_ip_exempt": "()",
        "limits.max_connections_per_user": "0",
        "limits.max_connection_rate_per_user": "0",
        "limits.per_user_exempt": "()",
        "limits.max_in_flight_requests": "1000",
        "limits.idle_timeout": "600.0",
        "limits.max_connection_age": "0.0",
        "limits.login_timeout": "60.0",
        "limits.max_tls_handshakes": "256",
        "limits.tls_handshake_timeout": "10.0",
        "limits.request_timeout": "30.0",
        "shutdown.drain_timeout": "30.0",
        "admin.listen": "None",
        "admin.token_file": "None",
        "admin.token": "None",
        "admin.allowed_hosts": "()",
        "admin.max_connections": "100",
        "admin.max_connections_per_ip": "20",
        "admin.request_timeout": "5.0",
        **dict.fromkeys((f"admin.tls.{key}" for key in ("certificate_file", "key_file", "key_password")), "None"),
        "admin.tls.client_certificates": "none",
        **dict.fromkeys((f"admin.tls.{key}" for key in ("client_ca_file", "client_ca_password")), "None"),
        "admin.tls.certificate_authorizes": "True",
        "admin.tls.min_version": "1.2",
        "admin.tls.ciphers": "None",
        "log.level": "info",
        "log.format": "text",
        "log.lines_per_minute": "100",
        "log.max_queued_lines": "10000",
        "log.max_queued_bytes": "4194304",
        "enforcement.enabled": "True",
        "enforcement.exempt_users": "()",
        "enforcement.exempt_client_ids": "()",
        "quota.window.num": "11",
        "quota.window.size.seconds": "1",
        "controller.quota.window.num": "11",
        "controller.quota.window.size.seconds": "1",
        "producer.id.quota.window.num": "11",
        "producer.id.quota.window.size.seconds": "3600",
        "quota.state.file": "None",
        "quota.state.interval": "5.0",
        "quotas": "()",
        "client_quotas.store": "sqlite",
        "client_quotas.file": "None",
        "client_quotas.audit_rows": "100000",
        "client_quotas.topic": "__headrace_quotas",
        "client_quotas.topic_replication_factor": "None",
        "client_quotas.topic_history": "604800.0",
        "client_quotas.topic_properties": "{}",
        "client_quotas.unreachable": "wait",
        "client_quotas.timeout": "10.0",
        "client_quotas.administrators": "()",
        "client_quotas.alter": "anonymous",
        "client_quotas.brokers": "compare",
        "client_quotas.enforcement": "kafka",
        "client_quotas.new_connections": "wait",
        "plugins.autoload": "True",
        "plugins.disabled": "()",
        "plugins.load": "()",
        "plugins.on_error": "open",
        "plugins.slow_call": "0.1",
        "plugins.options": "{}",
    }


def test_dotted_properties_may_be_written_as_tables_of_any_depth() -> None:
    by_table = loads(MINIMAL + "[quota.window]\nsize.seconds = 2\n[producer.id.quota.window.size]\nseconds = 60\n")
    by_dots = loads(MINIMAL + "quota.window.size.seconds = 2\nproducer.id.quota.window.size.seconds = 60\n")
    assert by_table == by_dots
    assert by_table.quota.window.size.seconds == 2
    assert by_table.controller.quota.window.size.seconds == 1
    assert by_table.producer.id.quota.window.size.seconds == 60
    assert tomllib.loads("quota.window.size.seconds = 2") == tomllib.loads("[quota.window.size]\nseconds = 2")
