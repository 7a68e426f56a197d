"""``headrace replay``: Kafka's test vectors as traces, the meaning of the operations, and the output."""

from __future__ import annotations

import pytest

from tests.proxy.replay.replay_traces import (
    HOUR_MS,
    PAIR,
    Entry,
    alter,
    decisions,
    run,
    text,
    throttles,
    use,
    window,
)

# --- Kafka's vectors (KAFKA_SEMANTICS.md, section 2) ---


def test_b1_strict_mutations() -> None:
    uses = [use(t, "controller_mutation", 90, strict=True) for t in (0, 0, 0, 5000)]
    decided = decisions(window(10), alter(0, {"user": "u"}, controller_mutation_rate=10.0), *uses)
    assert decided == [(0, True), (0, True), (8000, False), (3000, False)]


def test_b2_permissive_mutations() -> None:
    uses = [use(t, "controller_mutation", n, strict=False) for t, n in ((0, 90), (0, 90), (0, 90), (5000, 0))]
    decided = decisions(window(10), alter(0, {"user": "u"}, controller_mutation_rate=10), *uses)
    assert decided == [(0, True), (8000, True), (17000, True), (12000, True)]


def test_b4_a_strict_client_that_waits_is_accepted() -> None:
    amounts = [(t * 1000, 10) for t in range(10)] + [(10_000, 110), (10_000, 110), (11_000, 110), (11_000, 1)]
    uses = [use(t, "controller_mutation", n, strict=True) for t, n in amounts]
    decided = decisions(window(10), alter(0, {"user": "u"}, controller_mutation_rate=10), *uses)
    assert decided == [(0, True)] * 11 + [(1000, False), (0, True), (11_000, False)]


def test_b6_the_example_of_kip_599() -> None:
    uses = [use(0, "controller_mutation", 80, strict=False) for _ in range(7)]
    decided = throttles(window(100), alter(0, {"user": "u"}, controller_mutation_rate=5), *uses)
    assert decided == [0] * 6 + [12_000]


def test_c1_a_rate_decreases_while_the_client_waits() -> None:
    uses = [(t * 1000, 400) for t in range(10)] + [(10_500, 2300)]
    uses += [(12_600 + 1000 * n, 400) for n in range(10)]
    decided = throttles(
        window(), alter(0, {"client-id": "c"}, producer_byte_rate=500), *(use(t, "produce", n) for t, n in uses)
    )
    assert decided == [0] * 10 + [2100] + [1200] * 8 + [1700, 0]


def test_c2_a_changed_quota_keeps_the_history() -> None:
    quota = {"user": "u", "client-id": "c"}
    decided = throttles(
        window(),
        alter(0, quota, consumer_byte_rate=2000, producer_byte_rate=2000),
        use(0, "produce", 27_500),
        alter(0, quota, producer_byte_rate=3000),
        use(0, "produce", 0),
        alter(0, quota, producer_byte_rate=500),
        use(0, "produce", 0),
        alter(0, PAIR, producer_byte_rate=4000),
        alter(0, quota, ["producer_byte_rate"]),
        use(0, "produce", 11_000),
    )
    assert decided == [3750, 0, 45_000, 0]


C3 = [
    alter(0, {"user": None}, producer_byte_rate=1000),
    alter(0, {"client-id": None}, producer_byte_rate=2000),
    alter(0, PAIR, producer_byte_rate=3000),
    alter(0, {"user": "A"}, producer_byte_rate=4000),
    alter(0, {"user": "A", "client-id": "c1"}, producer_byte_rate=5000),
    alter(0, {"user": "B"}, producer_byte_rate=6000),
    alter(0, {"user": "B", "client-id": "c1"}, producer_byte_rate=7000),
    alter(0, {"user": "B", "client-id": None}, producer_byte_rate=8000),
    alter(0, {"user": "C"}, producer_byte_rate=10_000),
    alter(0, {"client-id": "c1"}, producer_byte_rate=9000),
]


def test_c3_precedence() -> None:
    def of(user: str, client_id: str, amount: int) -> Entry:
        return use(0, "produce", amount, user, client_id)

    decided = throttles(
        window(),
        *C3,
        *(of("A", "c1", 49_500), of("A", "c2", 49_500), of("A", "c3", 0), of("A", "c1", 0)),
        *(of("B", "c1", 88_000), of("B", "c2", 77_000), of("B", "c3", 77_000)),
        *(of("D", "c1", 38_500), of("D", "c2", 27_500), of("E", "c1", 27_500)),
        alter(0, PAIR, ["producer_byte_rate"]),
        *(of("D", "c1", 0), of("E", "c4", 16_500), of("F", "c4", 8800), of("F", "c5", 8800)),
        alter(0, {"user": None}, ["producer_byte_rate"]),
        *(of("F", "c4", 0), of("F", "c5", 0), of("F", "c5", 27_500), of("G", "c5", 0)),
    )
    assert decided == [0, 2375, 2375, 0, 2571, 0, 0, 2833, 0, 0, 0, 6500, 0, 7600, 0, 0, 3750, 3750]


def test_d1_request_time_in_percent_and_its_cap() -> None:
    uses = [(t * 1000, 4.0) for t in range(10)] + [(10_500, 67.1)]
    uses += [(10_710 + 1000 * n, 4.0) for n in range(11)] + [(21_710, 0)]
    uses += [(21_710, 500)] + [(21_710 + 1000 * n, 0) for n in range(1, 12)]
    decided = throttles(
        window(), alter(0, {"user": "u"}, request_percentage=1.0), *(use(t, "request", n) for t, n in uses)
    )
    assert decided == [0] * 10 + [210] + [400] * 10 + [900, 0] + [1000] * 11 + [0]


@pytest.mark.parametrize(("amount", "throttle_ms"), [(10_000, 0), (10_001, 1), (10_100, 100), (100_000, 90_000)])
def test_extra_the_first_record(amount: int, throttle_ms: int) -> None:
    quota = alter(0, {"user": "u"}, producer_byte_rate=1000)
    assert throttles(window(), quota, use(0, "produce", amount)) == [throttle_ms]


def test_extra_the_sawtooth() -> None:
    uses = [use(t, "produce", n) for t, n in ((0, 1), (999, 11_000), (1000, 0))]
    assert throttles(window(), alter(0, {"user": "u"}, producer_byte_rate=1000), *uses) == [0, 2, 1001]


# --- the meaning of the operations ---


def test_a_throttled_fetch_is_unrecorded_and_a_produce_is_not() -> None:
    quota = alter(0, {"user": "u"}, producer_byte_rate=1000, consumer_byte_rate=1000)
    uses = [use(t, op, n) for op in ("fetch", "produce") for t, n in ((0, 11_000), (0, 10_000))]
    assert throttles(window(), quota, *uses) == [1000, 0, 1000, 11_000]


def test_a_fetch_less_than_half_a_millisecond_over_stays_recorded() -> None:
    quota = alter(0, {"user": "u"}, consumer_byte_rate=10_000)
    assert throttles(window(), quota, use(0, "fetch", 100_004), use(0, "fetch", 100)) == [0, 10]


def test_strict_is_refused_with_0_ms_when_a_fraction_of_a_token_is_missing() -> None:
    uses = [use(t, "controller_mutation", 34, strict=True) for t in (0, 0, 333, 334)]
    decided = decisions(window(), alter(0, {"user": "u"}, controller_mutation_rate=3), *uses)
    assert decided == [(0, True), (333, False), (0, False), (0, True)]


def test_producer_ids_are_charged_once_a_window_and_user() -> None:
    ids = [1, 1, 2, -1, 3, 3, 2**63 - 1]
    quota = alter(0, {"user": None}, producer_ids_rate=2)
    windows = window(producer_id_window={"samples": 10, "seconds": 100})
    assert throttles(windows, quota, *(use(0, "producer_id", each) for each in ids)) == [0, 0, 0, 0, 50_000, 0, 100_000]


def test_without_a_quota_no_client_is_throttled() -> None:
    uses = [use(0, op, 10**12) for op in ("produce", "fetch", "request", "producer_id")]
    mutation = use(0, "controller_mutation", 10**12, strict=True)
    assert decisions(window(), *uses, mutation) == [(0, True)] * 5


def test_each_key_has_the_window_that_is_named_for_it() -> None:
    windows = {
        "window": {"samples": 1, "seconds": 1},
        "controller_window": {"samples": 2, "seconds": 5},
        "producer_id_window": {"samples": 1, "seconds": 7},
    }
    uses = [
        use(0, "produce", 10),
        use(0, "controller_mutation", 20, strict=False),
        use(0, "producer_id", 1),
        use(0, "producer_id", 2),
    ]
    rates = {"producer_byte_rate": 1000, "controller_mutation_rate": 1, "producer_ids_rate": 1}
    decided = throttles(windows, alter(0, {"user": "u"}, **rates), *uses)
    assert decided == [9, 10_000, 0, 7000]


def test_a_null_client_id_is_empty_and_an_empty_one_escapes_the_default() -> None:
    quota = alter(0, {"client-id": None}, producer_byte_rate=1)
    uses = [use(0, "produce", 11_000, client_id=each) for each in (None, "", "c")]
    assert [each > 0 for each in throttles(window(), quota, *uses)] == [False, False, True]


def test_the_name_default_is_an_ordinary_name() -> None:
    quota = alter(0, {"user": "<default>"}, producer_byte_rate=1)
    uses = [use(0, "produce", 11_000, user=each) for each in ("u", "<default>")]
    assert [each > 0 for each in throttles(window(), quota, *uses)] == [False, True]


def test_several_quotas_at_once_and_removal_of_missing_ones() -> None:
    both = alter(0, {"user": "u"}, producer_byte_rate=1, consumer_byte_rate=1)
    neither = alter(0, {"user": "u"}, ["consumer_byte_rate", "request_percentage"], producer_byte_rate=10**6)
    uses = [use(0, "produce", 1000), use(0, "fetch", 1000)]
    assert [each > 0 for each in throttles(window(), both, *uses, neither, *uses)] == [True, True, False, False]


def test_the_longest_throttle_is_what_an_int32_holds() -> None:
    quota = alter(0, {"user": "u"}, producer_byte_rate=1)
    assert throttles(window(), quota, use(0, "produce", 10**18)) == [2**31 - 1]


def test_buckets_expire_after_an_hour_without_use_at_the_next_sweep() -> None:
    """Sweeps are due every 30 s, counted from the first time in the trace; a debt expires with its bucket."""
    mutation = {"op": "controller_mutation", "amount": 0, "user": "u", "client_id": "c", "strict": False}
    debt = use(5000, "controller_mutation", 10_011, strict=False)
    quota = alter(5000, {"user": "u"}, controller_mutation_rate=1)
    kept = throttles(window(), quota, debt, {"t": 5000 + HOUR_MS - 1, **mutation})
    gone = throttles(window(), quota, debt, {"t": 5000 + HOUR_MS + 30_000, **mutation})
    assert kept == [10_000_000, 10_000_000 - HOUR_MS + 1]
    assert gone == [10_000_000, 0]


def test_an_idle_bucket_lives_until_the_sweep() -> None:
    lines = [alter(0, {"user": "u"}, controller_mutation_rate=1), use(7, "controller_mutation", 10_011, strict=False)]
    for now_ms, alive in ((HOUR_MS + 7, True), (HOUR_MS + 29_999, True), (HOUR_MS + 30_000, False)):
        late = use(now_ms, "controller_mutation", 0, strict=False)
        assert (throttles(window(), *lines, late)[-1] > 0) is alive


# --- the output ---


def test_a_line_is_unchanged_but_for_two_more_members() -> None:
    line = ' { "x": 1.50, "t":12,"user":"\\u00fc\\ud83d\\ude00","client_id":"ö", "op": "fetch", "amount":1e2} \r'
    result = run(text(window(), line))
    assert result.stdout == line.strip()[:-1] + ', "throttle_time_ms": 0, "accepted": true}\n'


def test_the_decision_of_an_earlier_replay_is_replaced() -> None:
    line = (
        '{"throttle_time_ms": 7, "t": 0, "accepted": false, "user": "u", "client_id": "", "op": "fetch", "amount": 1}'
    )
    (answer,) = run(text(window(), line)).stdout.splitlines()
    assert answer == line.replace("7", "0").replace("false", "true")


def test_only_usage_lines_are_written_and_the_last_may_lack_its_end() -> None:
    trace = text(window(), alter(0, {"user": "u"}, producer_byte_rate=1), use(0, "produce", 1)).rstrip("\n")
    assert len(run(trace).stdout.splitlines()) == 1
    assert run(text(window())).stdout == ""


def test_whole_floats_are_times_and_times_may_stand_still() -> None:
    result = run(text(window(), use(3.0, "produce", 1), use(3, "produce", 1), use(3.0, "produce", 1.5)))
    assert result.exit_code == 0
    assert [line[:9] for line in result.stdout.splitlines()] == ['{"t": 3.0', '{"t": 3, ', '{"t": 3.0']


def test_the_summary_names_the_quotas_that_throttled() -> None:
    quotas = [alter(0, {"user": None, "client-id": "c"}, producer_byte_rate=1000, controller_mutation_rate=1)]
    mutations = [use(90_061_007, "controller_mutation", 22, strict=True) for _ in range(2)]
    result = run(text(window(), *quotas, use(0, "produce", 11_000), use(0, "produce", 0), *mutations))
    lines = [line.split() for line in result.stderr.splitlines()]
    assert "usage: 4, quota changes: 1, trace time: 1 d 01:01:01.007" in result.stderr.splitlines()[0]
    assert ["produce", "2", "2", "0", "1,000", "2,000"] in lines
    assert ["controller_mutation", "2", "1", "1", "11,000", "11,000"] in lines
    assert lines[-3:-1] == [
        ["controller_mutation_rate", "of", "user=<default>,", "client-id=c", "1", "1", "11,000", "11,000"],
        ["producer_byte_rate", "of", "user=<default>,", "client-id=c", "2", "0", "1,000", "2,000"],
    ]
    assert result.stderr.endswith("  1 bucket dropped after an hour without use, as a broker does\n")


def test_the_summary_without_throttling() -> None:
    assert "usage: 0, quota changes: 0, trace time: 00:00:00.000" in run(text(window())).stderr
    assert run(text(window(), use(0, "fetch", 1))).stderr.endswith("no client was throttled\n")
