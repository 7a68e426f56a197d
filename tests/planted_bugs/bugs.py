"""The bugs: each is one changed line of the product, and names a quick test that finds it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Bug(NamedTuple):
    """A bug, and a quick test that fails with it."""

    name: str
    file: str
    right: str
    """A text that the file has once."""
    wrong: str
    found_by: str
    """The test's id, without parameters; of a bug in ``engine/``, the name of a test of ``cargo test``."""


BUGS: Final = (
    # Wire format
    Bug(
        "a negative version is read as a request",
        "proxy/wire/heads.py",
        "if api_version < 0:",
        "if api_version < -1:",
        "tests/proxy/wire/test_heads.py::test_an_invalid_frame_is_an_error_that_names_the_reason",
    ),
    Bug(
        "the limit of whole messages leaves out their length field",
        "proxy/wire/frames.py",
        "if whole > max_bytes:",
        "if size > max_bytes:",
        "tests/proxy/wire/test_frames.py::test_a_message_too_long_to_be_collected_is_refused_before_it_is_read",
    ),
    Bug(
        "Produce v3 is read as if it had no transactional id",
        "proxy/wire/walks/produce.py",
        "if self._version >= _FIRST_WITH_TRANSACTIONS:",
        "if self._version > _FIRST_WITH_TRANSACTIONS:",
        "tests/proxy/wire/walks/test_produce_walk.py::test_every_single_cut",
    ),
    # Quotas
    Bug(
        "a throttle is rounded down",
        "quota_callbacks/buckets/sampled_rate.py",
        "math.floor(throttle + 0.5)",
        "math.floor(throttle)",
        "tests/quota_callbacks/buckets/test_sampled_rate.py::test_less_than_half_a_millisecond_over_is_no_throttle",
    ),
    Bug(
        "the window of a rate is one sample too long",
        "quota_callbacks/buckets/sampled_rate.py",
        "missing = count - 1 - elapsed_ms",
        "missing = count - elapsed_ms",
        "tests/quota_callbacks/buckets/test_sampled_rate.py::test_less_than_half_a_millisecond_over_is_no_throttle",
    ),
    Bug(
        "the quota of a client id under the default user precedes that of a user",
        "quota_callbacks/builtin/precedence.py",
        "((user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT))",
        "((user, client_id), (DEFAULT, client_id), (user, DEFAULT), (DEFAULT, DEFAULT))",
        "tests/quota_callbacks/buckets/test_against_kafka.py::test_random_traces",
    ),
    Bug(
        "the request that causes a throttle waits for it, too",
        "quota_callbacks/buckets/quota_bucket.py",
        "first_used_ms <= wait.since_ms and is_short",
        "first_used_ms < wait.since_ms and is_short",
        "tests/quota_callbacks/buckets/test_waiting.py::test_a_new_connection_waits_and_is_charged_afterwards",
    ),
    Bug(
        "bytes that never came are not given back",
        "quota_callbacks/builtin/byte_rate.py",
        "lost = request.request_bytes if request.forwarded_s is None else request.missing_bytes",
        "lost = 0",
        "tests/proxy/connection/test_arrival.py::test_also_if_its_batches_are_read",
    ),
    # Connections
    Bug(
        "bytes of a message that is collected are forwarded, too",
        "proxy/connection/request_relay.py",
        "return scanner.position if collecting else 0",
        "return 0",
        "tests/proxy/connection/mutations/test_mutations.py::test_a_request_that_arrives_in_pieces_is_forwarded_once",
    ),
    Bug(
        "a throttled client is not muted",
        "proxy/connection/enforcement.py",
        "state.mute.extend(now_s, throttle_ms, quota, entity)",
        "state.mute.extend(now_s, 0, quota, entity)",
        "tests/proxy/connection/test_verdicts.py::test_a_throttle_beyond_an_int32_is_the_longest_there_is",
    ),
    Bug(
        "the data plane may charge one byte more than a bucket has room for",
        "proxy/data_plane/meters.py",
        "return max(-1, int(credit))",
        "return max(-1, int(credit) + 1)",
        "tests/proxy/data_plane/test_quota_changes.py::test_nothing_is_charged_until_all_are_reviewed",
    ),
    # Changes while it runs
    Bug(
        "a change of quotas is passed over",
        "proxy/quotas/follower.py",
        "self._position = changes[-1].sequence",
        "self._position = changes[-1].sequence + 1",
        "tests/proxy/quotas/test_follower.py::test_a_replaced_log_is_noticed_though_the_call_that_saw_it_was_cancelled",
    ),
    Bug(
        "a reload puts options into force that need a restart",
        "config/reload.py",
        "(new if name in changeable else old).get(name)",
        "new.get(name)",
        "tests/config/test_reload.py::test_one_key_changed",
    ),
    Bug(
        "a bucket restored after a restart is as if no time had passed",
        "proxy/server/bucket_state_file.py",
        "state, now_ms - down_ms, owner)",
        "state, now_ms, owner)",
        "tests/proxy/server/test_bucket_state_file.py::test_a_restart_resets_no_quota",
    ),
    # Who may do what
    Bug(
        "a token is accepted after it has expired, for the clock skew twice",
        "plugins/sasl_oauth/claims.py",
        "if now_s - skew_s >= expires_s:",
        "if now_s - 2 * skew_s >= expires_s:",
        "tests/plugins/sasl_oauth/test_sasl_oauth.py::test_the_reason_is_for_the_log_and_contains_nothing_of_the_token",
    ),
    Bug(
        "a rule that denies has no effect after one that allows",
        "plugins/authorization/rules.py",
        "if rule.allow and allowing is not None:",
        "if allowing is not None:",
        "tests/plugins/authorization/test_authorization.py::test_a_rule_is_for_an_address_in_each_of_its_forms",
    ),
    # Records and the pipeline
    Bug(
        "requests that are only validated count as mutations",
        "plugins/usage_records/rows.py",
        " and not request.validate_only:",
        ":",
        "tests/plugins/usage_records/test_usage_records.py::test_mutations_that_the_broker_refused_do_not_count",
    ),
    Bug(
        "the team of a user precedes that of the user and client id",
        "pipeline/analysis/rollup.py",
        'sf.coalesce("_of_both", "_of_user"',
        'sf.coalesce("_of_user", "_of_both"',
        "tests/pipeline/analysis/test_rollup.py::test_both_names_win_over_the_user_and_the_user_over_the_client_id",
    ),
    Bug(
        "what-if counts a second of usage less in each window",
        "pipeline/analysis/what_if/never_throttled.py",
        "widest = _since(key, first, before, (samples + 1) * seconds + 1)",
        "widest = _since(key, first, before, (samples - 1) * seconds)",
        "tests/pipeline/analysis/what_if/test_what_if_totals.py::test_only_buckets_that_are_throttled_go_through_the_loop",
    ),
    Bug(
        "recommended quotas leave out that a window may be a sample shorter",
        "pipeline/analysis/recommend/rules.py",
        "return max(1, window.samples - 1) * window.seconds",
        "return window.samples * window.seconds",
        "tests/pipeline/analysis/test_recommend.py::test_a_quota_may_divide_by_one_sample_less_than_its_window",
    ),
    # The native data plane
    Bug(
        "a new credit leaves out what was charged while it was computed",
        "engine/src/meters.rs",
        "account.charges.iter().fold(credit, |left, charge| left.saturating_sub(charge.1))",
        "credit",
        "what_is_charged_while_others_are_recorded_is_a_part_of_the_new_credit",
    ),
)
