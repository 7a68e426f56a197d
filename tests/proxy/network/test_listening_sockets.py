"""Ports that cannot be bound: the error states what to change."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from headrace.proxy.admin.listening import bind_admin
from headrace.proxy.errors import StartupError
from headrace.proxy.network.listening_sockets import Ports, open_sockets
from headrace.quota_callbacks.requests import Address


@pytest.fixture(autouse=True)
def no_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``bind`` fail as without CAP_NET_BIND_SERVICE, a capability that the tests may have."""

    def refuse(_sock: socket.socket, _address: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket.socket, "bind", refuse)


def advice(setting: str) -> str:
    return (
        "permission denied; ports below 1024 require the capability CAP_NET_BIND_SERVICE (under systemd"
        f" AmbientCapabilities=CAP_NET_BIND_SERVICE); grant it, or set {setting} to port 1024 or higher"
    )


def test_a_privileged_port() -> None:
    with pytest.raises(StartupError) as caught:
        open_sockets([Ports(setting="listen", host="127.0.0.1", port=443)])
    assert str(caught.value) == f"cannot listen on 127.0.0.1:443 for bootstrapping: {advice('listen.address')}"


def test_a_privileged_admin_port() -> None:
    with pytest.raises(StartupError) as caught:
        bind_admin(Address(host="127.0.0.1", port=80))
    assert str(caught.value) == f"cannot listen on 127.0.0.1:80 for the admin server: {advice('admin.listen')}"


def test_a_refusal_that_is_not_about_privileged_ports() -> None:
    with pytest.raises(StartupError) as caught:
        open_sockets([Ports(setting="listen", host="127.0.0.1", port=1024)])
    assert str(caught.value).endswith("permission denied; change listen.address or listen.node_ids")
