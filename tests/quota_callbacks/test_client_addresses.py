"""The addresses of clients, as limits count them."""

from __future__ import annotations

import pytest

from headrace.quota_callbacks.client_addresses import counted_address


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_what_an_address_is_counted_as(host: str, counted: str) -> None:
    assert counted_address(host) == counted
