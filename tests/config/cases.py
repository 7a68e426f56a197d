"""Valid values of every key, and invalid ones with their error messages.

Used by the tests of the loader and of the JSON Schema, which must accept and refuse the same values.
"""

from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from pydantic import SecretStr

from headrace.config import LogFormat, LogLevel, NodeIds, OnError, UnixPath
from headrace.config.schema import DataPlane
from headrace.config.tables.client_quotas import AlterRule, BrokersQuotasUse, StoreKind, Unreachable
from headrace.config.tables.sasl import LookupMechanism, SaslMode, UnknownOwner, UpstreamIdentity
from headrace.config.tables.tls import ClientCertificates, TlsVersion
from headrace.config.values import AUTO
from headrace.quota_callbacks.policies import EnforcementMode, NewConnections
from headrace.quota_callbacks.requests import Address
from headrace.quota_callbacks.secret_sources import SecretSource

DURATION: Final = 'expected a duration such as "10s" (ms, s, m, h, d) or a number of seconds, from {} to {}'
SIZE: Final = (
    'expected a size such as "64MiB" (B, kB, KiB, MB, MiB, GB, GiB) or a number of bytes, from 1KiB to 2147483647B'
)
MEMORY: Final = (
    'expected a size such as "64MiB" (B, kB, KiB, MB, MiB, GB, GiB) or a number of bytes, from 0B to 1024GiB'
)
WHOLE: Final = "expected a whole number from {} to {}"
INT_MAX: Final = 2147483647
CONNECT: Final = 'expected host:port, such as "kafka-1:9192", "127.0.0.1:9192" or "[::1]:9192", port 1-65535'
LISTEN: Final = 'expected host:port, such as "0.0.0.0:9192", "127.0.0.1:9192" or "[::1]:9192", port 1-65535'
ADMIN: Final = (
    'expected host:port, such as "127.0.0.1:9190" or "[::1]:9190", port 0-65535, or "unix:" and the path of a socket'
)
ADMIN_HOST: Final = 'expected a host name or IP address without a port, such as "headrace.example.com"'
HOST: Final = 'expected a host name or IP address that clients can reach, such as "kafka.example.com"'
WILDCARD: Final = f"{HOST}; clients cannot connect to a wildcard address"
NODE_IDS: Final = 'expected broker ids as ranges and commas, such as "0-2,1001-1010"'
NETWORK: Final = (
    'expected an IP address, or a network without host bits, such as "192.0.2.1", "10.0.0.0/24" or "2001:db8::/48"'
)
NETWORKS: Final = 'expected a list of networks, such as ["10.0.0.0/24"]'
SERVERS: Final = 'expected a list of one or more host:port, such as ["kafka-1:9092"]'
THREADS: Final = 'expected a whole number from 1 to 64, or "auto" for one for each core'
_THREADS: Final = (("1", 1), ("64", 64), ('"auto"', AUTO))
_NO_THREADS: Final = ("0", "65", "-1", '"2"', '"Auto"', "1.5", "true", "[2]", "{}")
IMPORT_PATH: Final = 'expected an import path, such as "my_package.my_module:MyPlugin" or "my_module"'
LIBRDKAFKA: Final = (
    'expected a table of librdkafka\'s settings, each key in quotes, such as "security.protocol" = "ssl" or '
    '"sasl.password" = { file = "/run/secrets/password" }'
)
SECRET: Final = (
    "a secret is not written into the configuration; expected a table with one of file, env and command, such as "
    '{ file = "/run/secrets/password" }'
)
CIPHERS: Final = 'expected cipher suites in OpenSSL\'s notation, such as "ECDHE+AESGCM"'
LOOKUP_MECHANISM: Final = 'expected "PLAIN", "SCRAM-SHA-256" or "SCRAM-SHA-512"'
SASL_MECHANISM: Final = 'expected the name of a SASL mechanism, such as "SCRAM-SHA-512"'
TEXTS: Final = 'expected a table of strings, such as { token_endpoint = "https://login.example.com/token" }'
BROKER_HOST: Final = 'expected a host name with $(node_id), such as "broker-$(node_id).kafka.example.com"'
RULES: Final = 'expected rules as in Kafka\'s ssl.principal.mapping.rules, such as "RULE:^CN=(.*?),.*$/$1/L,DEFAULT"'
TLS_FILES: Final = {
    "upstream": ("ca_file", "certificate_file", "key_file"),
    "listen": ("certificate_file", "key_file", "client_ca_file"),
    "admin": ("certificate_file", "key_file", "client_ca_file"),
}
LOOPBACK: Final = Address(host="127.0.0.1", port=9092)


@dataclass(frozen=True, slots=True)
class Good:
    """A valid value as TOML, and its typed value."""

    key: str
    toml: str
    value: object


@dataclass(frozen=True, slots=True)
class Bad:
    """An invalid value as TOML, and its error message. ``index`` is that of the invalid element of a list."""

    key: str
    toml: str
    rule: str
    found: str | None = None
    """The value in the error message, if it differs from ``toml``."""
    index: int | None = None
    schema_sees: bool = True
    """Whether JSON Schema can express the constraint."""
    hidden: bool = False
    """Whether the error message must not contain the value, which may be a secret."""


GOOD: Final = (
    Good("upstream.bootstrap_servers", '["127.0.0.1:9092"]', (LOOPBACK,)),
    Good(
        "upstream.bootstrap_servers",
        '["kafka-1.example.com:1", "[2001:db8::1]:65535"]',
        (Address(host="kafka-1.example.com", port=1), Address(host="2001:db8::1", port=65535)),
    ),
    Good("upstream.connect_timeout", '"500ms"', 0.5),
    Good("upstream.connect_timeout", '"10ms"', 0.01),
    Good("upstream.connect_timeout", '"10m"', 600.0),
    Good("upstream.connect_timeout", "2", 2.0),
    Good("upstream.connect_timeout", "0.25", 0.25),
    Good("upstream.reply_timeout", '"15m"', 900.0),
    Good("listen.address", '"0.0.0.0:19192"', Address(host="0.0.0.0", port=19192)),
    Good("listen.address", '"[::]:19192"', Address(host="::", port=19192)),
    Good("listen.address", '"[fe80::1%eth0]:19192"', Address(host="fe80::1%eth0", port=19192)),
    Good("listen.address", '"my_host:19192"', Address(host="my_host", port=19192)),
    Good("upstream.proxy_protocol", "true", True),
    Good("upstream.tls.enabled", "true", True),
    *(Good(f"upstream.tls.{key}", '"/etc/x.pem"', "/etc/x.pem") for key in ("ca_file", "certificate_file", "key_file")),
    *(Good(f"upstream.tls.{key}", '{ env = "X" }', SecretSource(env="X")) for key in ("ca_password", "key_password")),
    Good("upstream.tls.verify_names", "false", False),
    Good("upstream.tls.kernel", "true", True),
    Good("upstream.tls.min_version", '"1.3"', TlsVersion.TLS_1_3),
    Good("upstream.tls.ciphers", '"ECDHE+AESGCM:!aNULL"', "ECDHE+AESGCM:!aNULL"),
    Good("upstream.sasl.mechanism", '"SCRAM-SHA-512"', "SCRAM-SHA-512"),
    Good("upstream.sasl.user", '"headrace"', "headrace"),
    Good("upstream.sasl.password", '{ file = "/run/secret" }', SecretSource(file="/run/secret")),
    Good("upstream.sasl.options", '{ scope = "kafka" }', {"scope": "kafka"}),
    Good(
        "upstream.sasl.identities",
        '[{ client = "etl-*", user = "etl", password = { env = "ETL" } }]',
        (UpstreamIdentity(client="etl-*", user="etl", password=SecretSource(env="ETL")),),
    ),
    Good("upstream.owner_lookup.mechanism", '"SCRAM-SHA-512"', LookupMechanism.SCRAM_SHA_512),
    Good("upstream.owner_lookup.user", '"headrace"', "headrace"),
    Good("upstream.owner_lookup.password", '{ env = "TOKENS" }', SecretSource(env="TOKENS")),
    Good("upstream.owner_lookup.unknown_owner", '"refuse"', UnknownOwner.REFUSE),
    Good("listen.broker_host", '"b-$(node_id).example.com"', "b-$(node_id).example.com"),
    Good("listen.proxy_protocol_from", '["10.0.0.0/8"]', (ip_network("10.0.0.0/8"),)),
    *(
        Good(f"listen.tls.{key}", '"/etc/x.pem"', "/etc/x.pem")
        for key in ("certificate_file", "key_file", "client_ca_file")
    ),
    Good("listen.tls.key_password", '{ command = ["pass", "x"] }', SecretSource(command=("pass", "x"))),
    Good("listen.tls.client_ca_password", '{ env = "X" }', SecretSource(env="X")),
    Good("listen.tls.client_certificates", '"required"', ClientCertificates.REQUIRED),
    Good("listen.tls.principal_mapping_rules", '"RULE:^CN=(.*?),.*$/$1/L"', "RULE:^CN=(.*?),.*$/$1/L"),
    Good("listen.tls.min_version", '"1.2"', TlsVersion.TLS_1_2),
    Good("listen.tls.ciphers", '"ECDHE+AESGCM"', "ECDHE+AESGCM"),
    Good("listen.sasl.mode", '"terminate"', SaslMode.TERMINATE),
    Good("listen.sasl.mechanisms", '["PLAIN"]', ("PLAIN",)),
    Good("listen.sasl.session_lifetime", '"1h"', 3600.0),
    Good("limits.max_tls_handshakes", "1", 1),
    Good("limits.tls_handshake_timeout", '"1m"', 60.0),
    Good("listen.advertised_host", '"kafka.example.com"', "kafka.example.com"),
    Good("listen.advertised_host", '"10.0.0.1"', "10.0.0.1"),
    Good("listen.advertised_host", '"::1"', "::1"),
    Good("listen.advertised_host", '"[2001:db8::1]"', "2001:db8::1"),
    Good("listen.advertised_port", "29192", 29192),
    Good("listen.node_ids", '"5"', NodeIds(ranges=((5, 5),))),
    Good("listen.node_ids", '"1001-1010, 0 - 2"', NodeIds(ranges=((0, 2), (1001, 1010)))),
    Good("listen.backlog", "1", 1),
    Good("listen.backlog", "65535", 65535),
    *(Good(key, value, threads) for key in ("workers", "data_plane_threads") for value, threads in _THREADS),
    Good("data_plane", '"auto"', DataPlane.AUTO),
    Good("data_plane", '"python"', DataPlane.PYTHON),
    Good("data_plane", '"native"', DataPlane.NATIVE),
    Good("limits.max_frame_bytes", '"1MiB"', 2**20),
    Good("limits.max_frame_bytes", '"1.5 MB"', 1_500_000),
    Good("limits.max_frame_bytes", "1024", 1024),
    Good("limits.max_collected_bytes", '"2147483647B"', INT_MAX),
    Good("limits.max_handshake_bytes", '"1KiB"', 1024),
    Good("limits.max_whole_request_bytes", '"64MiB"', 64 * 2**20),
    Good("limits.max_request_rows", "1", 1),
    Good("limits.max_held_bytes", '"1GiB"', 2**30),
    Good("plugins.slow_call", '"1s"', 1.0),
    Good("limits.login_timeout", '"1s"', 1.0),
    Good("client_quotas.store", '"topic"', StoreKind.TOPIC),
    Good("client_quotas.topic", '"a.b-C_9"', "a.b-C_9"),
    Good("client_quotas.topic_replication_factor", "1", 1),
    Good("client_quotas.topic_history", '"1d"', 86400.0),
    Good("client_quotas.topic_properties", '{ "a.b" = "c", d = 7 }', {"a.b": SecretStr("c"), "d": SecretStr("7")}),
    Good("client_quotas.unreachable", '"serve"', Unreachable.SERVE),
    Good("client_quotas.file", '"/var/lib/headrace/quotas.sqlite"', "/var/lib/headrace/quotas.sqlite"),
    Good("client_quotas.audit_rows", "1", 1),
    Good("client_quotas.timeout", '"10m"', 600.0),
    Good("client_quotas.administrators", '["alice", "<default>"]', ("alice", "<default>")),
    Good("client_quotas.alter", '"administrators"', AlterRule.ADMINISTRATORS),
    Good("client_quotas.brokers", '"show"', BrokersQuotasUse.SHOW),
    Good("client_quotas.enforcement", '"paced"', EnforcementMode.PACED),
    Good("client_quotas.new_connections", '"kafka"', NewConnections.KAFKA),
    Good("limits.request_timeout", '"1h"', 3600.0),
    Good("limits.max_connections", "1", 1),
    Good("limits.max_connections_per_ip", "0", 0),
    Good("limits.max_connections_per_ip", "100", 100),
    Good("limits.max_connection_rate", "0", 0),
    Good("limits.max_connection_rate", "500", 500),
    Good("limits.max_connection_rate_per_ip", "0", 0),
    Good("limits.max_connection_rate_per_ip", "20", 20),
    Good("limits.per_ip_exempt", "[]", ()),
    Good(
        "limits.per_ip_exempt",
        '["192.0.2.1", "10.0.0.0/24", "2001:db8::/48"]',
        (ip_network("192.0.2.1/32"), ip_network("10.0.0.0/24"), ip_network("2001:db8::/48")),
    ),
    Good("limits.max_connections_per_user", "50", 50),
    Good("limits.max_connection_rate_per_user", "5", 5),
    Good("limits.per_user_exempt", '["mirror-maker", "CN=x,O=y"]', ("mirror-maker", "CN=x,O=y")),
    Good("limits.max_in_flight_requests", "1000000", 1_000_000),
    Good("limits.max_memory", '"0B"', 0),
    Good("limits.max_memory", '"2GiB"', 2 * 2**30),
    Good("limits.max_connection_age", '"0s"', 0.0),
    Good("limits.max_connection_age", '"1h"', 3600.0),
    Good("limits.idle_timeout", '"1d"', 86400.0),
    Good("shutdown.drain_timeout", "0", 0.0),
    Good("shutdown.drain_timeout", '"1.5m"', 90.0),
    Good("admin.listen", '"127.0.0.1:0"', Address(host="127.0.0.1", port=0)),
    Good("quota.state.file", '"/var/lib/headrace/buckets.sqlite"', "/var/lib/headrace/buckets.sqlite"),
    Good("quota.state.interval", '"1m"', 60.0),
    Good("admin.listen", '"[::1]:9190"', Address(host="::1", port=9190)),
    Good("admin.listen", '"unix:/run/headrace/admin.sock"', UnixPath(path="/run/headrace/admin.sock")),
    Good("admin.listen", f'"unix:/{"x" * 106}"', UnixPath(path=f"/{'x' * 106}")),
    Good("admin.token", '{ command = ["pass", "x"] }', SecretSource(command=("pass", "x"))),
    Good("admin.token_file", '"/etc/headrace/admin-token"', "/etc/headrace/admin-token"),
    Good("admin.allowed_hosts", '["Proxy.example.com.", "10.0.0.1"]', ("proxy.example.com", "10.0.0.1")),
    Good("admin.max_connections", "10000", 10_000),
    Good("admin.max_connections_per_ip", "1", 1),
    Good("admin.request_timeout", '"100ms"', 0.1),
    *(
        Good(f"admin.tls.{key}", '"/etc/x.pem"', "/etc/x.pem")
        for key in ("certificate_file", "key_file", "client_ca_file")
    ),
    *(
        Good(f"admin.tls.{key}", '{ env = "X" }', SecretSource(env="X"))
        for key in ("key_password", "client_ca_password")
    ),
    Good("admin.tls.client_certificates", '"requested"', ClientCertificates.REQUESTED),
    Good("admin.tls.certificate_authorizes", "false", False),
    Good("admin.tls.min_version", '"1.3"', TlsVersion.TLS_1_3),
    Good("admin.tls.ciphers", '"ECDHE+AESGCM"', "ECDHE+AESGCM"),
    Good("log.level", '"debug"', LogLevel.DEBUG),
    Good("log.level", '"error"', LogLevel.ERROR),
    Good("log.format", '"json"', LogFormat.JSON),
    Good("log.lines_per_minute", "1", 1),
    Good("log.max_queued_lines", "10000000", 10_000_000),
    Good("log.max_queued_bytes", '"1KiB"', 1024),
    Good("log.max_queued_bytes", '"1GiB"', 2**30),
    Good(key="enforcement.enabled", toml="false", value=False),
    Good("enforcement.exempt_users", '["ANONYMOUS", "CN=x,O=y"]', ("ANONYMOUS", "CN=x,O=y")),
    Good("enforcement.exempt_client_ids", '["rescue"]', ("rescue",)),
    Good("quota.window.num", "21", 21),
    Good("quota.window.size.seconds", "2", 2),
    Good("controller.quota.window.num", "1", 1),
    Good("controller.quota.window.size.seconds", str(INT_MAX), INT_MAX),
    Good("producer.id.quota.window.num", "2", 2),
    Good("producer.id.quota.window.size.seconds", "60", 60),
    Good(key="plugins.autoload", toml="false", value=False),
    Good("plugins.disabled", '["tracing"]', ("tracing",)),
    Good(
        "plugins.load", '["my_package.my_module:MyPlugin", "my_module"]', ("my_package.my_module:MyPlugin", "my_module")
    ),
    Good("plugins.on_error", '"closed"', OnError.CLOSED),
    Good("plugins.options", '{ a = { b = [1, { c = "d" }] }, e = {} }', {"a": {"b": [1, {"c": "d"}]}, "e": {}}),
)


def _invalid(key: str, rule: str, *tomls: str) -> tuple[Bad, ...]:
    return tuple(Bad(key, toml, rule) for toml in tomls)


def _loader_only(key: str, rule: str, *tomls: str) -> tuple[Bad, ...]:
    return tuple(Bad(key, toml, rule, schema_sees=False) for toml in tomls)


def _whole(key: str, lowest: int, highest: int) -> tuple[Bad, ...]:
    values = (str(lowest - 1), str(highest + 1), f'"{lowest}"', f"{lowest}.5", "true", "nan", "[1]", "{}")
    return _invalid(key, WHOLE.format(lowest, highest), *values) + _loader_only(
        key, WHOLE.format(lowest, highest), "5.0"
    )


def _duration(key: str, lowest: str, highest: str, below: str, above: str) -> tuple[Bad, ...]:
    rule = DURATION.format(lowest, highest)
    values = ('"10"', '"10 years"', '"10S"', '"-1s"', '""', "-1", "inf", "true", "[]", "1979-05-27", '"1e3s"')
    return _invalid(key, rule, *values) + _loader_only(key, rule, f'"{below}"' if below else "nan", f'"{above}"')


def _size(key: str) -> tuple[Bad, ...]:
    values = ('"1024"', '"64M"', '"64mib"', '"-1kB"', "1023", "2147483648", "2048.0", "true", "[]", '"1,5MB"')
    seen, unseen = [toml for toml in values if toml != "2048.0"], ("2048.0", '"1023B"', '"1.5B"', '"2GiB"')
    return _invalid(key, SIZE, *seen) + _loader_only(key, SIZE, *unseen)


BAD: Final = (
    *_invalid("workers", THREADS, *_NO_THREADS),
    *_invalid("data_plane_threads", THREADS, *_NO_THREADS),
    *_invalid("data_plane", 'expected "auto", "native" or "python"', '"rust"', "true"),
    *_invalid("upstream.bootstrap_servers", SERVERS, "[]", '"127.0.0.1:9092"', "9092", "{}"),
    *(
        Bad("upstream.bootstrap_servers", f'["a:1", {item}]', f"{CONNECT}{why}", item, 1, schema_sees=seen)
        for item, why, seen in (
            ("9092", "", True),
            ('"kafka"', "; the port is missing or not a number", True),
            ('"kafka:"', "; the port is missing or not a number", True),
            ('"kafka:x"', "; the port is missing or not a number", True),
            ('"kafka:0"', "", False),
            ('"kafka:65536"', "; a port is at most 65535", False),
            ('":9092"', "; the host is missing", True),
            ('"ka fka:9092"', "; not a host name", True),
            ('"-kafka:9092"', "; not a host name", True),
            ('"PLAINTEXT://kafka:9092"', "; omit PLAINTEXT://", True),
            ('"::1:9092"', "; an IPv6 address must be in brackets, as in [::1]:9092", True),
            ('"[::1"', "; an IPv6 address must be in brackets, as in [::1]:9092", True),
            ('"[::x]:9092"', "; not an IPv6 address", True),
            ('"[1:2]:9092"', "; not an IPv6 address", False),
            ('"300.1.1.1:9092"', "; not an IPv4 address", False),
            ('"0.0.0.0:9092"', "; a wildcard address cannot be connected to", False),
        )
    ),
    Bad(
        "upstream.bootstrap_servers",
        '["a:1", "b:2", "a:1"]',
        "duplicate element; the first is upstream.bootstrap_servers[0] at line 2",
        '"a:1"',
        2,
    ),
    *_duration("upstream.connect_timeout", "10ms", "10m", "9ms", "11m"),
    *_duration("upstream.reply_timeout", "1s", "30d", "999ms", "31d"),
    *_invalid("upstream.proxy_protocol", "expected true or false", '"yes"', "1"),
    *_invalid("upstream.tls.enabled", "expected true or false", '"yes"', "1"),
    *(
        Bad(f"{table}.tls.{key}", "7", "expected the path of a file")
        for table, keys in TLS_FILES.items()
        for key in keys
    ),
    *(Bad(f"upstream.tls.{key}", '"x"', SECRET, hidden=True) for key in ("ca_password", "key_password")),
    *_invalid("upstream.tls.verify_names", "expected true or false", '"yes"', "1"),
    *_invalid("upstream.tls.kernel", "expected true or false", '"yes"', "1"),
    *_invalid("upstream.tls.min_version", 'expected "1.2" or "1.3"', '"ssl"', "1.2"),
    *_invalid("upstream.tls.ciphers", CIPHERS, '""', "7"),
    *_invalid("upstream.sasl.mechanism", SASL_MECHANISM, '"plain"', "7"),
    *_invalid("upstream.sasl.user", "expected the name of a user", '""', "7"),
    Bad("upstream.sasl.password", '"hunter2"', SECRET, hidden=True),
    Bad("upstream.sasl.options", "7", TEXTS, "***"),
    Bad("upstream.sasl.options", '{ parameters = "client_assertion=hunter2", scope = 7 }', TEXTS, "***"),
    Bad("upstream.sasl.identities", "7", "expected tables, each headed [[upstream.sasl.identities]]", hidden=True),
    *_invalid("upstream.owner_lookup.mechanism", LOOKUP_MECHANISM, '"OAUTHBEARER"', "7"),
    *_invalid("upstream.owner_lookup.user", "expected the name of a user", '""', "7"),
    Bad("upstream.owner_lookup.password", '"hunter2"', SECRET, hidden=True),
    *_invalid("upstream.owner_lookup.unknown_owner", 'expected "fallback_user" or "refuse"', '"accept"', "7"),
    *_invalid("listen.broker_host", f"{BROKER_HOST}; $(node_id) must be in it exactly once", '"kafka.example.com"'),
    *_invalid(
        "listen.broker_host",
        f"{BROKER_HOST}; it gives 'a_0.b', which is not a host name: 'a_0' is not a label",
        '"a_$(node_id).b"',
    ),
    *_invalid("listen.proxy_protocol_from", NETWORKS, '"10.0.0.0/24"', "1"),
    *(Bad(f"listen.tls.{key}", '"x"', SECRET, hidden=True) for key in ("key_password", "client_ca_password")),
    *_invalid("listen.tls.client_certificates", 'expected "none", "requested" or "required"', '"yes"', "true"),
    *_invalid("listen.tls.principal_mapping_rules", RULES, '""', "7"),
    *_invalid("listen.tls.min_version", 'expected "1.2" or "1.3"', '"ssl"', "1.2"),
    *_invalid("listen.tls.ciphers", CIPHERS, '""', "7"),
    *_invalid("listen.sasl.mode", 'expected "observe" or "terminate"', '"both"', "7"),
    *_invalid(
        "listen.sasl.mechanisms", 'expected a list of SASL mechanisms, such as ["SCRAM-SHA-512"]', "[]", '"PLAIN"'
    ),
    *_duration("listen.sasl.session_lifetime", "1s", "30d", "999ms", "31d"),
    *_whole("limits.max_tls_handshakes", 1, 100_000),
    *_duration("limits.tls_handshake_timeout", "100ms", "10m", "99ms", "11m"),
    *_invalid("listen.address", LISTEN, "9192", "[]", "true"),
    *_invalid("listen.address", f"{LISTEN}; the host is missing", '":9192"'),
    *_invalid("listen.address", f"{LISTEN}; not a host name", '"*:9192"'),
    *_loader_only("listen.address", LISTEN, '"127.0.0.1:0"'),
    *_invalid("listen.advertised_host", HOST, "1", "[]", "false"),
    *_invalid("listen.advertised_host", WILDCARD, '""', '"*"', '"0.0.0.0"', '"::"', '"[::]"'),
    *_loader_only("listen.advertised_host", WILDCARD, '"0:0:0:0:0:0:0:0"'),
    *_invalid(
        "listen.advertised_host",
        f"{HOST}; omit the port, which is that of listen.advertised_port or listen.address",
        '"kafka:9092"',
        '"[::1]:9092"',
    ),
    *_invalid("listen.advertised_host", f"{HOST}; not a host name", '"a b"', '"é"', '"a..b"', '"a/b"'),
    *_loader_only("listen.advertised_host", f"{HOST}; not an IPv4 address", '"1.2.3"', '"10.0.0.256"'),
    *_loader_only("listen.advertised_host", f"{HOST}; not an IPv6 address", '"1:2:3"'),
    *_invalid("listen.advertised_host", f"{HOST}; omit https://", '"https://kafka.example.com"'),
    *_whole("listen.advertised_port", 1, 65535),
    *_invalid("listen.node_ids", NODE_IDS, "5", "[0, 1]", "true"),
    *_invalid("listen.node_ids", f'{NODE_IDS}; "" is neither an id nor a range', '""', '"1,"'),
    *_invalid("listen.node_ids", f'{NODE_IDS}; "a-b" is neither an id nor a range', '"0,a-b"'),
    *_invalid("listen.node_ids", f'{NODE_IDS}; "-1" is neither an id nor a range', '"-1"'),
    *_loader_only("listen.node_ids", f"{NODE_IDS}; the range 5-2 is descending", '"5-2"'),
    *_loader_only(
        "listen.node_ids", f"{NODE_IDS}; id 2 is listed twice; ranges must not overlap", '"0-2,2-4"', '"2,2"'
    ),
    *_whole("listen.backlog", 1, 65535),
    *_size("limits.max_frame_bytes"),
    *_size("limits.max_handshake_bytes"),
    *_size("limits.max_whole_request_bytes"),
    *_whole("limits.max_request_rows", 1, INT_MAX),
    *_size("limits.max_collected_bytes"),
    *_size("limits.max_held_bytes"),
    *_invalid("limits.max_memory", MEMORY, '"64M"', "-1", "true", "[]"),
    Bad("limits.max_memory", '"2048GiB"', MEMORY, schema_sees=False),
    *_whole("limits.max_connections", 1, INT_MAX),
    *_whole("limits.max_connections_per_ip", 0, INT_MAX),
    *_whole("limits.max_connection_rate", 0, INT_MAX),
    *_whole("limits.max_connection_rate_per_ip", 0, INT_MAX),
    *_invalid("limits.per_ip_exempt", NETWORKS, '"10.0.0.0/24"', "1", "{}"),
    Bad("limits.per_ip_exempt", '["a", "10.0.0.0/8"]', NETWORK, '"a"', 0, schema_sees=False),
    Bad("limits.per_ip_exempt", '["10.0.0.0/8", "proxy"]', NETWORK, '"proxy"', 1),
    Bad("limits.per_ip_exempt", '["10.0.0.1/8"]', NETWORK, '"10.0.0.1/8"', 0, schema_sees=False),
    Bad("limits.per_ip_exempt", "[10]", NETWORK, "10", 0),
    *_whole("limits.max_connections_per_user", 0, INT_MAX),
    *_whole("limits.max_connection_rate_per_user", 0, INT_MAX),
    *_invalid("limits.per_user_exempt", "expected a list of users", '"alice"', "true", "{}"),
    Bad("limits.per_user_exempt", '["a", ""]', "expected a user", '""', 1),
    *_whole("limits.max_in_flight_requests", 1, 1_000_000),
    *_duration("limits.max_connection_age", "0s", "30d", "", "31d"),
    *_duration("limits.idle_timeout", "1s", "30d", "999ms", "31d"),
    *_duration("plugins.slow_call", "1ms", "1h", "0ms", "61m"),
    *_invalid("client_quotas.store", 'expected "sqlite" or "topic"', '"file"', "1"),
    *_invalid("client_quotas.topic", "expected a topic name", '""', '"a b"', "7"),
    *_whole("client_quotas.topic_replication_factor", 1, 32767),
    *_duration("client_quotas.topic_history", "1m", "3650d", "59s", "3651d"),
    *(Bad("client_quotas.topic_properties", toml, LIBRDKAFKA, hidden=True) for toml in ('"a"', "7")),
    *_invalid("client_quotas.unreachable", 'expected "wait" or "serve"', '"stop"', "true"),
    *_invalid("client_quotas.file", "expected the path of a file", "1", '""'),
    *_whole("client_quotas.audit_rows", 1, INT_MAX),
    *_duration("client_quotas.timeout", "100ms", "10m", "99ms", "11m"),
    *_invalid("client_quotas.administrators", "expected a list of users", '"alice"', "true"),
    Bad("client_quotas.administrators", "[7]", "expected a user", "7", 0),
    *_invalid("client_quotas.alter", 'expected "anonymous" or "administrators"', '"nobody"', "false"),
    *_invalid("client_quotas.brokers", 'expected "ignore", "compare", "show" or "import"', '"hide"', "true"),
    *_invalid("client_quotas.enforcement", 'expected "kafka" or "paced"', '"off"', "1"),
    *_invalid("client_quotas.new_connections", 'expected "wait" or "kafka"', '"refuse"', "1"),
    *_duration("limits.login_timeout", "1s", "1h", "999ms", "61m"),
    *_duration("limits.request_timeout", "1s", "1h", "999ms", "61m"),
    *_duration("shutdown.drain_timeout", "0s", "1d", "", "25h"),
    *_invalid("quota.state.file", "expected the path of a file", "1", '""'),
    *_invalid("quota.state.interval", DURATION.format("1s", "1h"), "true"),
    Bad("quota.state.interval", '"10ms"', DURATION.format("1s", "1h"), schema_sees=False),
    Bad("quota.state.interval", '"2h"', DURATION.format("1s", "1h"), schema_sees=False),
    *_invalid("admin.listen", ADMIN, "9190", "true"),
    *_invalid("admin.listen", f"{ADMIN}; the port is missing or not a number", '"localhost"'),
    *_invalid("admin.listen", f"{ADMIN}; the path of a socket must be absolute and name a file", '"unix:admin.sock"'),
    *_loader_only(
        "admin.listen", f"{ADMIN}; the path of a socket must be absolute and name a file", '"unix:/run/"', '"unix://a"'
    ),
    *_loader_only(
        "admin.listen", f'{ADMIN}; the path of a socket must not contain ".." or NUL', '"unix:/run/../etc/x"'
    ),
    Bad(
        "admin.listen",
        f'"unix:/{"x" * 107}"',
        f"{ADMIN}; the path of a socket has at most 107 bytes",
        f'"unix:/{"x" * 70}...',
        schema_sees=False,
    ),
    Bad("admin.token", '"x"', SECRET, hidden=True),
    *(Bad("admin.token_file", toml, "expected the path of a file", "***") for toml in ("1", '""')),
    *_invalid("admin.allowed_hosts", "expected a list of host names", '"proxy.example.com"', "true"),
    Bad("admin.allowed_hosts", '["a:9190"]', f"{ADMIN_HOST}; not an IPv6 address", '"a:9190"', 0, schema_sees=False),
    Bad("admin.allowed_hosts", '["*"]', f"{ADMIN_HOST}; not a host name", '"*"', 0),
    Bad("admin.allowed_hosts", "[7]", ADMIN_HOST, "7", 0),
    *_whole("admin.max_connections", 1, 10_000),
    *_whole("admin.max_connections_per_ip", 1, 10_000),
    *_duration("admin.request_timeout", "100ms", "10m", "99ms", "11m"),
    *(Bad(f"admin.tls.{key}", '"x"', SECRET, hidden=True) for key in ("key_password", "client_ca_password")),
    *_invalid("admin.tls.client_certificates", 'expected "none", "requested" or "required"', '"yes"', "true"),
    *_invalid("admin.tls.certificate_authorizes", "expected true or false", '"yes"', "1"),
    *_invalid("admin.tls.min_version", 'expected "1.2" or "1.3"', '"ssl"', "1.2"),
    *_invalid("admin.tls.ciphers", CIPHERS, '""', "7"),
    *_invalid("log.level", 'expected "debug", "info", "warning" or "error"', '"loud"', "1", "[]", "true"),
    *_invalid("log.level", 'expected "debug", "info", "warning" or "error"; did you mean "info"?', '"INFO"'),
    *_invalid("log.level", 'expected "debug", "info", "warning" or "error"; did you mean "warning"?', '"warn"'),
    *_invalid("log.format", 'expected "text" or "json"', '"yaml"', "false"),
    *_invalid("log.format", 'expected "text" or "json"; did you mean "json"?', '"jsonl"'),
    *_whole("log.lines_per_minute", 1, 1_000_000),
    *_whole("log.max_queued_lines", 1, 10_000_000),
    *_size("log.max_queued_bytes"),
    *_invalid("enforcement.enabled", "expected true or false", '"true"', "1", "[]"),
    *_invalid("enforcement.exempt_users", "expected a list of users", '"alice"', "true", "{}"),
    Bad("enforcement.exempt_users", '["a", ""]', "expected a user", '""', 1),
    Bad("enforcement.exempt_users", "[7]", "expected a user", "7", 0),
    *_invalid("enforcement.exempt_client_ids", "expected a list of client ids", '"rescue"', "0"),
    Bad("enforcement.exempt_client_ids", "[true]", "expected a client id", "true", 0),
    *(
        bad
        for key in (
            *("quota.window.num", "quota.window.size.seconds"),
            *("controller.quota.window.num", "controller.quota.window.size.seconds"),
            *("producer.id.quota.window.num", "producer.id.quota.window.size.seconds"),
        )
        for bad in _whole(key, 1, INT_MAX)
    ),
    *_invalid("plugins.autoload", "expected true or false", '"false"', "0"),
    *_invalid("plugins.disabled", "expected a list of plugin names", '"tracing"'),
    Bad("plugins.disabled", '[""]', "expected a plugin's name", '""', 0),
    *_invalid("plugins.load", "expected a list of import paths", '"my_module"'),
    *(Bad("plugins.load", f"[{item}]", IMPORT_PATH, item, 0) for item in ('"my-module"', '"a:b:c"', '"a."', '""', "1")),
    *_invalid("plugins.on_error", 'expected "open" or "closed"', '"ignore"', "true"),
    *_invalid("plugins.on_error", 'expected "open" or "closed"; did you mean "closed"?', '"close"'),
    *_invalid("plugins.options", "expected a table for each plugin, headed [plugins.options.NAME]", "[]", "1"),
    Bad("plugins.options", '"x"', "expected a table for each plugin, headed [plugins.options.NAME]", "***"),
)
