"""The bugs: each is one changed line of the product, and names the quick tests that are to find it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Bug(NamedTuple):
    """A bug, and the file or folder of quick tests that fail with it."""

    name: str
    file: str
    right: str
    """A text that the file has once."""
    wrong: str
    tests: str


BUGS: Final = (
    # Wire format
    Bug(
        "a negative version is read as a request",
        "proxy/wire/heads.py",
        "if api_version < 0:",
        "if api_version < -1:",
        "tests/proxy/wire/test_heads.py",
    ),
    Bug(
        "the limit of whole messages leaves out their length field",
        "proxy/wire/frames.py",
        "if whole > max_bytes:",
        "if size > max_bytes:",
        "tests/proxy/wire/test_frames.py",
    ),
    Bug(
        "Produce v3 is read as if it had no transactional id",
        "proxy/wire/walks/produce.py",
        "if self._version >= _FIRST_WITH_TRANSACTIONS:",
        "if self._version > _FIRST_WITH_TRANSACTIONS:",
        "tests/proxy/wire/walks",
    ),
    # Quotas
    Bug(
        "a throttle is rounded down",
        "quota_callbacks/buckets/sampled_rate.py",
        "math.floor(throttle + 0.5)",
        "math.floor(throttle)",
        "tests/quota_callbacks/buckets",
    ),
    Bug(
        "the window of a rate is one sample too long",
        "quota_callbacks/buckets/sampled_rate.py",
        "missing = count - 1 - elapsed_ms",
        "missing = count - elapsed_ms",
        "tests/quota_callbacks/buckets",
    ),
    Bug(
        "the quota of a client id under the default user precedes that of a user",
        "quota_callbacks/builtin/precedence.py",
        "((user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT))",
        "((user, client_id), (DEFAULT, client_id), (user, DEFAULT), (DEFAULT, DEFAULT))",
        "tests/quota_callbacks/buckets/test_against_kafka.py",
    ),
    Bug(
        "the request that causes a throttle waits for it, too",
        "quota_callbacks/buckets/quota_bucket.py",
        "if first_used_ms <= wait.since_ms and",
        "if first_used_ms < wait.since_ms and",
        "tests/quota_callbacks/buckets/test_waiting.py",
    ),
    Bug(
        "bytes that never came are not given back",
        "quota_callbacks/builtin/byte_rate.py",
        "lost = request.request_bytes if request.forwarded_s is None else request.missing_bytes",
        "lost = 0",
        "tests/proxy/connection/test_arrival.py",
    ),
    # Connections
    Bug(
        "bytes of a message that is collected are forwarded, too",
        "proxy/connection/request_relay.py",
        "return scanner.position if collecting else 0",
        "return 0",
        "tests/proxy/connection/test_mutations.py",
    ),
    Bug(
        "a throttled client is not muted",
        "proxy/connection/enforcement.py",
        "state.mute.extend(now_s, throttle_ms, quota, entity)",
        "state.mute.extend(now_s, 0, quota, entity)",
        "tests/proxy/connection/test_verdicts.py",
    ),
    Bug(
        "the data plane may charge one byte more than a bucket has room for",
        "proxy/data_plane/meters.py",
        "return max(-1, int(credit))",
        "return max(-1, int(credit) + 1)",
        "tests/proxy/data_plane",
    ),
    # Changes while it runs
    Bug(
        "a change of quotas is passed over",
        "proxy/quotas/follower.py",
        "self._position = changes[-1].sequence",
        "self._position = changes[-1].sequence + 1",
        "tests/proxy/quotas/test_follower.py",
    ),
    Bug(
        "a reload puts options into force that need a restart",
        "config/reload.py",
        "(new if name in changeable else old).get(name)",
        "new.get(name)",
        "tests/config/test_reload.py",
    ),
    Bug(
        "a bucket restored after a restart is as if no time had passed",
        "proxy/server/bucket_state_file.py",
        "state, now_ms - down_ms, owner)",
        "state, now_ms, owner)",
        "tests/proxy/server/test_bucket_state_file.py",
    ),
    # Who may do what
    Bug(
        "a token is accepted after it has expired, for the clock skew twice",
        "plugins/sasl_oauth/claims.py",
        "if now_s - skew_s >= expires_s:",
        "if now_s - 2 * skew_s >= expires_s:",
        "tests/plugins/sasl_oauth/test_sasl_oauth.py",
    ),
    Bug(
        "a rule that denies has no effect after one that allows",
        "plugins/authorization/rules.py",
        "if rule.allow and allowing is not None:",
        "if allowing is not None:",
        "tests/plugins/authorization",
    ),
    # Records and the pipeline
    Bug(
        "requests that are only validated count as mutations",
        "plugins/usage_records/rows.py",
        " and not request.validate_only:",
        ":",
        "tests/plugins/usage_records",
    ),
    Bug(
        "the team of a user precedes that of the user and client id",
        "pipeline/analysis/rollup.py",
        'sf.coalesce("_of_both", "_of_user"',
        'sf.coalesce("_of_user", "_of_both"',
        "tests/pipeline/analysis/test_rollup.py",
    ),
    Bug(
        "what-if counts a second of usage less in each window",
        "pipeline/analysis/what_if/never_throttled.py",
        "widest = _since(key, first, before, (samples + 1) * seconds + 1)",
        "widest = _since(key, first, before, (samples - 1) * seconds)",
        "tests/pipeline/analysis/what_if",
    ),
    Bug(
        "recommended quotas leave out that a window may be a sample shorter",
        "pipeline/analysis/recommend/rules.py",
        "return max(1, window.samples - 1) * window.seconds",
        "return window.samples * window.seconds",
        "tests/pipeline/analysis/test_recommend.py",
    ),
)
