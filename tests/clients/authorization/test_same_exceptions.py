"""Clients report what is denied by the proxy as what is denied by a broker with the same rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.clients.authorization.denied_clients import CLIENTS

if TYPE_CHECKING:
    from tests.clients.authorization.scene import Scene


def compare(scene: Scene, client: str) -> None:
    at_broker, at_proxy = (CLIENTS[client](f"{host}:{port}") for host, port in scene.fronts)
    assert "none" not in at_broker.values(), at_broker
    assert at_proxy == at_broker


@pytest.mark.exhaustive
def test_librdkafka_reports_the_same_errors(found_scene: Scene) -> None:
    compare(found_scene, "librdkafka")


@pytest.mark.exhaustive
@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "librdkafka"])
def test_other_clients_report_the_same_errors(found_scene: Scene, client: str) -> None:
    compare(found_scene, client)
