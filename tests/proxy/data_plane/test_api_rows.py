"""Which APIs are relayed natively."""

from __future__ import annotations

from headrace.proxy.data_plane.api_rows import api_rows
from headrace.proxy.wire.apis import READ_IN_FULL, must_rewrite
from headrace.quota_callbacks.api_keys import ApiKey


def test_what_the_control_plane_reads_has_no_row() -> None:
    rows = list(api_rows(READ_IN_FULL | {ApiKey.HEARTBEAT}, lambda _: (0.0, 0.0)))
    native = {row[0] for row in rows}
    assert not native & {*READ_IN_FULL, ApiKey.HEARTBEAT}
    assert {key for key, version, *_ in rows if must_rewrite(key, version)} == {ApiKey.PRODUCE}, "its reply is read"
    assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT} <= native
