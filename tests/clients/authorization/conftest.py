"""The broker with ACLs and the proxy, started once for the modules of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.clients.authorization.scene import Scene, scene

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def found_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("authorization")) as found:
        yield found
