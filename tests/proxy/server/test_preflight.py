"""What ``headrace check-config`` finds in a configuration whose values are valid."""

from __future__ import annotations

from headrace.config.loading import loads
from headrace.proxy.server.preflight import problems_of

TEXT = """
upstream.bootstrap_servers = ["kafka:9092"]
listen.address = "127.0.0.1:9192"
listen.tls.certificate_file = "/no/such/listen.pem"
admin.listen = "127.0.0.1:9190"
admin.tls.certificate_file = "/no/such/admin.pem"
plugins.autoload = false
plugins.load = ["default_quotas"]

[[quotas]]
entity = { user = "alice" }
producer_byte_rate = 5
consumer_byte_rate = 5
"""


def test_all_problems_are_found_at_once() -> None:
    quotas, listen, admin = problems_of(loads(TEXT))
    assert [line.split(" of ")[0] for line in quotas.splitlines()] == [
        "quotas: producer_byte_rate",
        "quotas: consumer_byte_rate",
    ]
    assert "/no/such/listen.pem" in listen
    assert "/no/such/admin.pem" in admin
