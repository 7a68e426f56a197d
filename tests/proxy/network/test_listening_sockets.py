"""Ports that cannot be bound: the error states what to change."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from headrace.proxy.admin.listening import bind_admin
from headrace.proxy.errors import StartupError
from headrace.proxy.network.listening_sockets import Ports, close_sockets, open_sockets
from headrace.quota_callbacks.requests import Address


@pytest.fixture
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


@pytest.mark.usefixtures("no_capability")
def test_a_privileged_port() -> None:
    with pytest.raises(StartupError) as caught:
        open_sockets([Ports(setting="listen", host="127.0.0.1", port=443)])
    assert str(caught.value) == f"cannot listen on 127.0.0.1:443 for bootstrapping: {advice('listen.address')}"


@pytest.mark.usefixtures("no_capability")
def test_a_privileged_admin_port() -> None:
    with pytest.raises(StartupError) as caught:
        bind_admin(Address(host="127.0.0.1", port=80))
    assert str(caught.value) == f"cannot listen on 127.0.0.1:80 for the admin server: {advice('admin.listen')}"


@pytest.mark.usefixtures("no_capability")
def test_a_refusal_that_is_not_about_privileged_ports() -> None:
    with pytest.raises(StartupError) as caught:
        open_sockets([Ports(setting="listen", host="127.0.0.1", port=1024)])
    assert str(caught.value).endswith("permission denied; change listen.address or listen.node_ids")


async def test_two_proxies_do_not_share_a_port() -> None:
    """The system would distribute the connections among them, and each would enforce the quotas by itself."""
    sockets = open_sockets([Ports(setting="listen", host="127.0.0.1", port=0)])
    port = sockets[0].sock.getsockname()[1]
    try:
        with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{port} for bootstrapping: address already"):
            open_sockets([Ports(setting="listen", host="127.0.0.1", port=port)])
    finally:
        close_sockets(sockets)
