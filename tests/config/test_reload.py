"""Changes at a reload, those that need a restart, and the effective configuration until then."""

from typing import Any

import pytest

from headrace.config import Config, QuotaChange, SettingChange, diff, loads
from headrace.config.keys import keys
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, NewConnections, Quota, QuotaPolicy
from tests.config.cases import GOOD
from tests.config.documents import MINIMAL, leaf, with_key

NEEDS_RESTART = (
    *("listen.address", "listen.advertised_host", "listen.advertised_port", "listen.node_ids", "listen.backlog"),
    *("admin.listen", "admin.token_file", "admin.token", "log.format", "log.max_queued_lines", "log.max_queued_bytes"),
    *("quota.window.num", "quota.window.size.seconds", "controller.quota.window.num"),
    *("controller.quota.window.size.seconds", "producer.id.quota.window.num", "producer.id.quota.window.size.seconds"),
    *("plugins.autoload", "plugins.disabled", "plugins.load", "plugins.options"),
    *("client_quotas.store", "client_quotas.topic", "client_quotas.topic_replication_factor"),
    *("client_quotas.topic_history", "client_quotas.topic_properties", "client_quotas.unreachable"),
    *("client_quotas.file", "client_quotas.audit_rows", "client_quotas.brokers", "client_quotas.timeout"),
    *("quota.state.file", "quota.state.interval", "data_plane", "data_plane_threads", "listeners"),
    "upstream.proxy_protocol",
    *(f"upstream.tls.{key}" for key in ("enabled", "ca_file", "ca_password", "verify_names", "certificate_file")),
    *(f"upstream.tls.{key}" for key in ("key_file", "key_password", "min_version", "ciphers", "kernel")),
    *(f"upstream.sasl.{key}" for key in ("mechanism", "user", "password", "options", "identities")),
    *(f"upstream.owner_lookup.{key}" for key in ("mechanism", "user", "password", "unknown_owner")),
    *("listen.broker_host", "listen.proxy_protocol_from"),
    *(f"listen.tls.{key}" for key in ("certificate_file", "key_file", "key_password", "client_certificates")),
    *(f"listen.tls.{key}" for key in ("client_ca_file", "client_ca_password", "principal_mapping_rules")),
    *("listen.tls.min_version", "listen.tls.ciphers"),
    *(f"admin.tls.{key}" for key in ("certificate_file", "key_file", "key_password", "client_certificates")),
    *(f"admin.tls.{key}" for key in ("client_ca_file", "client_ca_password", "certificate_authorizes")),
    *("admin.tls.min_version", "admin.tls.ciphers"),
    *("listen.sasl.mode", "listen.sasl.mechanisms", "listen.sasl.session_lifetime"),
)
AT_ONCE = (
    *(
        "upstream.bootstrap_servers",
        "upstream.connect_timeout",
        "upstream.reply_timeout",
        "limits.max_frame_bytes",
        "limits.max_handshake_bytes",
        "limits.max_whole_request_bytes",
        "limits.max_request_rows",
        "limits.max_collected_bytes",
        "limits.max_held_bytes",
        "limits.login_timeout",
        "limits.request_timeout",
        "limits.max_tls_handshakes",
        "limits.tls_handshake_timeout",
    ),
    *("limits.max_connections", "limits.max_connections_per_ip", "limits.max_in_flight_requests"),
    *("limits.max_connection_rate", "limits.max_connection_rate_per_ip", "limits.per_ip_exempt"),
    *("limits.max_connections_per_user", "limits.max_connection_rate_per_user", "limits.per_user_exempt"),
    *("limits.max_memory", "limits.max_connection_age"),
    *("limits.idle_timeout", "shutdown.drain_timeout", "log.level", "enforcement.enabled", "enforcement.exempt_users"),
    *("enforcement.exempt_client_ids", "quotas", "plugins.on_error", "plugins.slow_call"),
    *("admin.allowed_hosts", "admin.max_connections", "admin.max_connections_per_ip", "admin.request_timeout"),
    *("log.lines_per_minute", "workers"),
    *("client_quotas.administrators", "client_quotas.alter"),
    *("client_quotas.enforcement", "client_quotas.new_connections"),
)
BEFORE = loads(MINIMAL)


def test_every_key_is_one_or_the_other() -> None:
    assert sorted((*NEEDS_RESTART, *AT_ONCE)) == sorted(leaf.key for leaf in keys(Config))


def test_nothing_changed() -> None:
    changes = diff(BEFORE, loads(MINIMAL + "# a word\n[limits]\nidle_timeout = 600\nmax_frame_bytes = 104857600\n"))
    assert not changes
    assert str(changes) == "nothing changed"
    assert changes.effective == BEFORE


@pytest.mark.parametrize(
    "case", [case for case in GOOD if case.key != "workers"], ids=lambda case: f"{case.key}={case.toml}"
)
def test_one_key_changed(case: Any) -> None:
    new = loads(with_key(case.key, case.toml))
    declared = leaf(case.key)
    if declared.value_of(BEFORE) == case.value:
        assert not diff(BEFORE, new)
        return
    changes = diff(BEFORE, new)
    assert changes
    assert {change.key.split(".")[0] for change in changes.settings} == {declared.path[0]}
    assert bool(changes.needs_restart) == (case.key in NEEDS_RESTART)
    assert bool(changes.at_once) == (case.key in AT_ONCE)
    assert changes.effective == (BEFORE if case.key in NEEDS_RESTART else new)


def test_workers_change_the_number_of_threads() -> None:
    two, each_core = (loads(f"workers = {workers}\n{MINIMAL}") for workers in ("2", '"auto"'))
    assert str(diff(two, each_core)).splitlines() == [
        'data_plane_threads: 2 -> "auto" (needs a restart)',
        'workers: 2 -> "auto"',
    ]
    assert str(diff(two, loads(f"data_plane_threads = 2\n{MINIMAL}"))) == "workers: 2 -> not set"


def test_changes_are_reported_as_the_file_writes_them() -> None:
    text = """\
[limits]
idle_timeout = "5m"
max_frame_bytes = "1MiB"
[admin]
listen = "127.0.0.1:9190"
[log]
level = "debug"
[enforcement]
exempt_users = ["a"]
"""
    changes = diff(BEFORE, loads(MINIMAL + text))
    assert str(changes).splitlines() == [
        'limits.max_frame_bytes: "100MiB" -> "1MiB"',
        'limits.idle_timeout: "10m" -> "5m"',
        'admin.listen: not set -> "127.0.0.1:9190" (needs a restart)',
        'log.level: "info" -> "debug"',
        'enforcement.exempt_users: [] -> ["a"]',
    ]
    assert changes.settings[1] == SettingChange(
        key="limits.idle_timeout", old=600.0, new=300.0, needs_restart=False, text='"10m" -> "5m"'
    )
    assert changes.effective.limits.idle_timeout_s == 300.0
    assert changes.effective.admin.listen is None


def quotas(*tables: str) -> Config:
    return loads(MINIMAL + "".join(f"[[quotas]]\n{table}\n" for table in tables))


def test_quotas_by_entity_and_key() -> None:
    old = quotas(
        'entity = { user = "alice" }\nproducer_byte_rate = 1\nrequest_percentage = 50',
        'entity = { user = "bob" }\nproducer_byte_rate = 1',
    )
    new = quotas(
        'entity = { user = "alice" }\nproducer_byte_rate = "2MiB"\nrequest_percentage = 50.0',
        'entity = { client-id = "<default>" }\nrequest_percentage = 12.5',
    )
    changes = diff(old, new)
    assert changes.settings == ()
    assert changes.effective == new
    assert changes.at_once == changes.quotas
    one, _more, half = Quota(value=1), Quota(value=2097152), Quota(value=12.5)
    assert changes.quotas == (
        QuotaChange(
            entity=QuotaEntity(user="alice"),
            key=QuotaKey.PRODUCER_BYTE_RATE,
            old=Quota(value=1),
            new=Quota(value=2097152),
        ),
        QuotaChange(entity=QuotaEntity(user="bob"), key=QuotaKey.PRODUCER_BYTE_RATE, old=one, new=None),
        QuotaChange(entity=QuotaEntity(client_id=DEFAULT), key=QuotaKey.REQUEST_PERCENTAGE, old=None, new=half),
    )
    assert [str(change) for change in changes.quotas] == [
        "quota producer_byte_rate of user=alice: 1 -> 2097152",
        "quota producer_byte_rate of user=bob: 1 -> none",
        "quota request_percentage of client-id=<default>: none -> 12.5",
    ]


def test_quotas_in_another_order_are_no_change() -> None:
    alice, bob = (f'entity = {{ user = "{user}" }}\nproducer_byte_rate = 1' for user in ("alice", "bob"))
    assert not diff(quotas(alice, bob), quotas(bob, alice))


def test_options_of_plugins_are_reported_by_name_without_their_values() -> None:
    old = loads(
        MINIMAL + "[plugins.options.a]\ntoken = 'hunter2'\n[plugins.options.b]\n[plugins.options.same]\nx = 1\n"
    )
    new = loads(
        MINIMAL + "[plugins.options.a]\ntoken = 'hunter3'\n[plugins.options.'c d']\n[plugins.options.same]\nx = 1\n"
    )
    changes = diff(old, new)
    assert [str(change) for change in changes.settings] == [
        "plugins.options.a: changed (needs a restart)",
        "plugins.options.b: removed (needs a restart)",
        'plugins.options."c d": added (needs a restart)',
    ]
    assert changes.effective == old


def test_options_of_logins_are_reported_without_their_values() -> None:
    def config(secret: str) -> Config:
        table = f'options = {{ parameters = "client_assertion={secret}" }}'
        login = f'[upstream.sasl]\nmechanism = "OAUTHBEARER"\nuser = "u"\npassword = {{ file = "/x" }}\n{table}\n'
        identities = f'[[upstream.sasl.identities]]\nclient = "*"\nuser = "u"\npassword = {{ file = "/x" }}\n{table}\n'
        return loads(f"{MINIMAL}{login}{identities}")

    found = str(diff(config("hunter1"), config("hunter2")))
    assert found.splitlines()[0] == "upstream.sasl.options: *** -> *** (needs a restart)"
    assert "upstream.sasl.identities" in found
    assert "hunter" not in found


def test_a_change_that_needs_a_restart_is_reported_at_each_reload_until_then() -> None:
    new = BEFORE.model_copy(update={"listen": BEFORE.listen.model_copy(update={"backlog": 7})})
    first = diff(BEFORE, new)
    assert [change.key for change in diff(first.effective, new).needs_restart] == ["listen.backlog"]


def test_how_a_quota_is_enforced_is_a_change_like_its_value() -> None:
    old = quotas('entity = { user = "alice" }\nproducer_byte_rate = 1')
    new = quotas(
        'entity = { user = "alice" }\nproducer_byte_rate = 1\nenforcement = "paced"\nobserve = true\nburst = "2s"\n'
        'longest_throttle = "1m"\nnew_connections = "kafka"'
    )
    changes = diff(old, new)
    policy = QuotaPolicy(
        mode=EnforcementMode.PACED,
        observe=True,
        burst_s=2.0,
        longest_throttle_ms=60_000,
        new_connections=NewConnections.KAFKA,
    )
    assert [change.new for change in changes.quotas] == [Quota(value=1, policy=policy)]
    assert str(changes) == (
        "quota producer_byte_rate of user=alice: 1 -> 1, paced, observed, burst 2 s, longest throttle 60000 ms,"
        " new connections: kafka"
    )


def test_options_of_plugins_that_can_change() -> None:
    old = loads(MINIMAL + "[plugins.options.a]\nx = 1\n[plugins.options.b]\nx = 1\n[plugins.options.c]\nx = 1\n")
    new = loads(MINIMAL + "[plugins.options.a]\nx = 2\n[plugins.options.b]\nx = 2\n[plugins.options.d]\nx = 2\n")
    changes = diff(old, new, {"a", "c"})
    assert str(changes).splitlines() == [
        "plugins.options.a: changed",
        "plugins.options.b: changed (needs a restart)",
        "plugins.options.c: removed",
        "plugins.options.d: added (needs a restart)",
    ]
    assert changes.effective.plugins.options == {"a": {"x": 2}, "b": {"x": 1}}
