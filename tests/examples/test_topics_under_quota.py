"""The example of the admin client, with a real proxy and a quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples import topics_under_quota
from tests.clients.fronts import unique
from tests.clients.quotas.quota_client import REFUSED, quota_front
from tests.clients.quotas.quota_mutations import QUICK, QUICK_BURST, SLOW, SLOW_BURST, SLOW_MS

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker


def test_the_client_waits_for_the_quota(kafka: FirstBroker, capsys: pytest.CaptureFixture[str]) -> None:
    count = QUICK_BURST + 5
    with quota_front(kafka, QUICK) as front:
        assert topics_under_quota.main(front.bootstrap_servers, f"{unique('example')}-", count) == 0
        assert front.proxy.metric(REFUSED) >= 1
    assert capsys.readouterr().out.endswith(f"{count} of {count} topics were created\n")


@pytest.mark.exhaustive
def test_what_is_refused_is_shown(
    kafka: FirstBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_under_quota, "TEN_MINUTES_MS", SLOW_MS // 4)  # more than the first topics take
    with quota_front(kafka, SLOW) as front:
        assert topics_under_quota.main(front.bootstrap_servers, f"{unique('example')}-", SLOW_BURST + 3) > 0
    shown = capsys.readouterr().out
    assert "refused by the quota; try again in " in shown
