"""The example plugin that shortens names. It is used with a real proxy in `tests.clients.users.test_identities`."""

from __future__ import annotations

import pytest

from examples.local_users import LocalUsers
from headrace.quota_callbacks.identities import UserSource
from headrace.quota_callbacks.testing import make_connection, make_context


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("alice@example.com", "alice"),
        ("alice@EXAMPLE.com", "alice"),
        ("a@b@example.com", "a@b"),
        ("alice", None),
        ("alice@example.org", ""),
        ("alice@", ""),
        ("@example.com", ""),
    ],
)
def test_the_domain_is_removed(user: str, name: str | None) -> None:
    plugin = LocalUsers()
    plugin.configure(make_context({"domain": "Example.com"}))
    assert plugin.rewrite_user(make_connection(), user, UserSource.PROXY) == name


def test_a_domain_is_required() -> None:
    with pytest.raises(ValueError, match="domain: required"):
        LocalUsers().configure(make_context({}))
