"""Constraints between keys."""

import pytest

from headrace.config import ConfigValueError, loads

HEAD = """\
upstream.bootstrap_servers = ["{upstream}"]
listen.address = "{address}"
listen.advertised_host = "kafka.example.com"
"""


def problems_of(text: str) -> list[str]:
    try:
        loads(text, "headrace.toml")
    except ConfigValueError as error:
        return [str(problem) for problem in error.problems]
    return []


def head(*, address: str = "127.0.0.1:9192", upstream: str = "kafka-1:9092") -> str:
    return HEAD.format(address=address, upstream=upstream)


TOO_HIGH = "(this port + 1 + id), above 65535; lower the port or narrow listen.node_ids"


def test_every_broker_has_a_port_of_its_own() -> None:
    assert problems_of(head(address="127.0.0.1:65503")) == []
    assert problems_of(head(address="127.0.0.1:65504")) == [
        f'headrace.toml:2: listen.address = "127.0.0.1:65504": broker 31 would be at port 65536 {TOO_HIGH} ("0-31")'
    ]
    assert problems_of(head() + 'listen.node_ids = "0-2,56342"\n') == []
    assert problems_of(head() + 'listen.node_ids = "0-2,9999999999"\n') == [
        (
            'headrace.toml:2: listen.address = "127.0.0.1:9192": broker 9999999999 would be at port 10000009192 '
            f'{TOO_HIGH} ("0-2,9999999999")'
        )
    ]


def test_every_advertised_port_is_one() -> None:
    assert problems_of(head() + "listen.advertised_port = 65503\n") == []
    assert problems_of(head() + "listen.advertised_port = 65504\n") == [
        f'headrace.toml:4: listen.advertised_port = 65504: broker 31 would be at port 65536 {TOO_HIGH} ("0-31")'
    ]


@pytest.mark.parametrize(
    ("address", "admin", "taken_by"),
    [
        ("127.0.0.1:9192", "127.0.0.1:9192", "the bootstrap port"),
        ("127.0.0.1:9192", "127.0.0.1:9193", "the port of broker 0"),
        ("127.0.0.1:9192", "127.0.0.1:9224", "the port of broker 31"),
        ("0.0.0.0:9192", "127.0.0.1:9200", "the port of broker 7"),
        ("0.0.0.0:9192", "[::]:9200", "the port of broker 7"),
        ("127.0.0.1:9192", "0.0.0.0:9192", "the bootstrap port"),
        ("localhost:9192", "127.0.0.1:9192", "the bootstrap port"),
    ],
)
def test_the_admin_server_wants_no_port_of_clients(address: str, admin: str, taken_by: str) -> None:
    assert problems_of(head(address=address) + f'admin.listen = "{admin}"\nadmin.token_file = "token"\n') == [
        (
            f'headrace.toml:4: admin.listen = "{admin}": the port is taken by {taken_by} of listen.address '
            f'("{address}"); choose another'
        )
    ]


@pytest.mark.parametrize(
    ("address", "admin"),
    [
        ("127.0.0.1:9192", "127.0.0.1:9191"),
        ("127.0.0.1:9192", "127.0.0.1:9225"),
        ("127.0.0.1:9192", "127.0.0.2:9193"),
        ("127.0.0.1:9192", "127.0.0.1:0"),
        ("10.0.0.1:9192", "127.0.0.1:9192"),
        ("10.0.0.1:9192", "localhost:9192"),
        ("localhost:9192", "10.0.0.1:9192"),
        ("0.0.0.0:9192", "unix:/run/admin.sock"),
    ],
)
def test_admin_servers_that_stand_apart(address: str, admin: str) -> None:
    assert problems_of(head(address=address) + f'admin.listen = "{admin}"\nadmin.token_file = "token"\n') == []


@pytest.mark.parametrize("admin", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[2001:db8::1]:1", "kafka.example.com:1"])
def test_an_admin_server_beyond_loopback_has_tokens(admin: str) -> None:
    (problem,) = problems_of(head() + f'admin.listen = "{admin}"\n')
    assert problem == (
        f'headrace.toml:4: admin.token_file: required, since admin.listen ("{admin}") is neither a loopback address'
        " nor a Unix socket, and clients do not authenticate by certificates (admin.tls.client_certificates);"
        " expected the path of a file with a token; set it here or with --admin-token-file"
    )


def test_tokens_may_come_from_elsewhere_than_a_file() -> None:
    assert problems_of(head() + 'admin.listen = "0.0.0.0:1"\nadmin.token = { env = "T" }\n') == []


ADMIN_CERTIFICATES = 'admin.tls.certificate_file = "a"\nadmin.tls.client_ca_file = "c"\n'


@pytest.mark.parametrize("shown", ["requested", "required"])
def test_certificates_of_clients_take_the_place_of_tokens(shown: str) -> None:
    text = head() + 'admin.listen = "0.0.0.0:1"\n' + ADMIN_CERTIFICATES
    text += f'admin.tls.client_certificates = "{shown}"\n'
    assert problems_of(text) == []
    (problem,) = problems_of(text + "admin.tls.certificate_authorizes = false\n")
    assert "admin.token_file: required" in problem


def test_tls_is_not_for_a_unix_socket() -> None:
    assert problems_of(head() + 'admin.listen = "unix:/run/a.sock"\nadmin.tls.certificate_file = "a.pem"\n') == [
        (
            'headrace.toml:5: admin.tls.certificate_file = "a.pem": a Unix socket has no TLS: admin.listen is'
            ' "unix:/run/a.sock", to which only the proxy\'s user can connect; remove the table admin.tls, or let'
            " admin.listen be host:port"
        )
    ]


@pytest.mark.parametrize("table", ["listen", "admin"])
def test_tls_of_a_server_is_complete(table: str) -> None:
    assert problems_of(head() + f'{table}.tls.key_file = "key.pem"\n') == [
        f"headrace.toml:4: {table}.tls.certificate_file: required, since other keys of {table}.tls are set"
    ]
    shown = f'{table}.tls.certificate_file = "a.pem"\n{table}.tls.client_certificates = "required"\n'
    assert problems_of(head() + shown) == [
        (
            f"headrace.toml:4: {table}.tls.client_ca_file: required, since {table}.tls.client_certificates is"
            ' "required"; expected the path of a file'
        )
    ]


@pytest.mark.parametrize("admin", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/run/admin.sock"])
def test_an_admin_server_of_this_machine_alone_needs_none(admin: str) -> None:
    assert problems_of(head() + f'admin.listen = "{admin}"\n') == []


@pytest.mark.parametrize(
    ("address", "upstream", "taken_by"),
    [
        ("127.0.0.1:9092", "127.0.0.1:9092", "the bootstrap port"),
        ("127.0.0.1:9091", "localhost:9092", "the port of broker 0"),
        ("0.0.0.0:9090", "127.0.0.1:9092", "the port of broker 1"),
        ("[::]:9090", "[::1]:9092", "the port of broker 1"),
        ("kafka:9090", "kafka:9092", "the port of broker 1"),
    ],
)
def test_the_proxy_does_not_connect_to_itself(address: str, upstream: str, taken_by: str) -> None:
    assert problems_of(head(address=address, upstream=upstream)) == [
        (
            f'headrace.toml:1: upstream.bootstrap_servers[0] = "{upstream}": the proxy would connect to itself: '
            f'this is {taken_by} of listen.address ("{address}")'
        )
    ]


@pytest.mark.parametrize(
    ("address", "upstream"),
    [("127.0.0.1:9092", "127.0.0.1:9091"), ("0.0.0.0:9092", "kafka-1:9092"), ("127.0.0.1:9092", "127.0.0.2:9092")],
)
def test_upstreams_that_are_elsewhere(address: str, upstream: str) -> None:
    assert problems_of(head(address=address, upstream=upstream)) == []


def test_a_file_beside_a_topic_of_quotas_has_no_effect() -> None:
    lines = 'client_quotas.store = "topic"\n'
    assert problems_of(head() + lines) == []
    assert problems_of(head() + lines + 'client_quotas.file = "quotas.sqlite"\n') == [
        (
            'headrace.toml:5: client_quotas.file = "quotas.sqlite": without effect with client_quotas.store = "topic"; '
            'remove it, or choose "sqlite"'
        )
    ]


def test_a_rule_is_silent_while_one_of_its_keys_is_bad() -> None:
    problems = problems_of(head(address="127.0.0.1:65535") + "listen.node_ids = 5\n")
    assert [line.partition(" =")[0] for line in problems] == ["headrace.toml:4: listen.node_ids"]


@pytest.mark.parametrize("workers", ['"auto"', "2"])
def test_workers_are_the_threads_of_the_data_plane(workers: str) -> None:
    assert problems_of(f"workers = {workers}\ndata_plane_threads = 3\n{head()}") == [
        f"headrace.toml:1: workers = {workers}: deprecated, and data_plane_threads = 3 is set; remove workers"
    ]
    assert problems_of(f"workers = {workers}\ndata_plane_threads = {workers}\n{head()}") == []
    assert problems_of(f'workers = {workers}\ndata_plane = "native"\n{head()}') == []
