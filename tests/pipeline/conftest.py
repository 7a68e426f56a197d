"""One Spark session for all tests of the pipeline, created as `headrace pipeline` creates it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from headrace.pipeline.lake.session import LITTLE_DATA, SparkOptions, start_session
from headrace.pipeline.lake.tables import Lake
from testbed.kafka.cluster import KafkaCluster
from tests.shared_cluster import NOT_FENCED, FirstBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Row, SparkSession


FEW_ROWS: Final = {
    **LITTLE_DATA,
    "spark.driver.memory": "2g",
    # A commit of Delta Lake takes less time without them.
    "spark.databricks.delta.stats.collect": "false",
    # Hours and days are those of UTC, also where the machine has another time zone, with half hours. The classes of
    # Spark are not verified, which takes a tenth of the time in which they are loaded.
    "spark.driver.defaultJavaOptions": LITTLE_DATA["spark.driver.defaultJavaOptions"]
    + " -Duser.timezone=Asia/Kolkata -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("tests", SparkOptions(master="local[2]", conf=FEW_ROWS), kafka=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[FirstBroker]:
    """One broker of Kafka 4.3.1, with JMX, in place of the three that other tests share."""
    with KafkaCluster(config=NOT_FENCED, jmx=True) as cluster:
        yield FirstBroker(cluster)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(spark, str(tmp_path / "lake"))


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Receives a text for each query whose rows are collected or counted during the test: the names of its columns."""
    done: list[str] = []
    collect = ClassicFrame.collect

    def noted(frame: ClassicFrame) -> list[Row]:
        done.append(" ".join(frame.columns))
        return collect(frame)

    monkeypatch.setattr(ClassicFrame, "collect", noted)
    monkeypatch.setattr(ClassicFrame, "count", lambda frame: int(noted(frame.groupBy().count())[0][0]))
    monkeypatch.setattr(ClassicFrame, "isEmpty", lambda frame: not noted(frame.limit(1)))
    return done


LONG_RUN: Final = {
    "test_anomalies": """days_in_the_wrong_order_are_errors
        usage_is_complete_up_to_what_all_running_instances_have_written
        the_limits_are_options new_ids_that_the_proxy_has_counted_are_churn
        a_client_with_half_of_its_requests_failing_is_reported_without_a_past
        more_requests_that_carry_less_are_a_retry_storm a_connection_for_each_request_is_a_storm_without_a_past
        thread_time_that_jumps_is_a_sudden_change bytes_that_fall_are_a_sudden_change
        no_entity_stops_where_nothing_was_recorded what_came_in_several_hours_before_is_known
        a_new_level_is_reported_once_and_known_by_then clients_with_a_name_each_are_examined_as_their_user
        a_storm_of_two_minutes_is_reported_by_the_default_rules a_window_that_is_not_over_is_not_examined
        the_table_is_rewritten_for_the_examined_days a_day_is_computed_again_only_if_its_usage_has_changed
        the_past_is_read_in_blocks_that_are_made_again_if_a_day_changes what_is_quiet_or_new_is_not_reported""",
    "test_backtest": "a_run_that_ends_before_its_back_test_leaves_none_of_other_quotas",
    "test_bi_example": "the_views_are_those_of_the_newest_release",
    "test_budgets": """an_alert_is_delivered_once_and_a_further_one_when_it_is_reached
        what_was_not_delivered_is_sent_by_the_next_run months_stand_beside_each_other
        the_month_before_is_checked_on_the_first_days
        an_alert_of_the_month_before_is_sent_until_it_is_delivered
        bills_that_do_not_fit_the_budgets_are_errors budgets_and_focus_are_jobs_of_a_plan
        the_progress_of_a_month_is_that_of_its_last_hour
        bills_by_day_alone_are_an_error_and_a_month_without_bills_is_none""",
    "test_calibrate": """a_planted_model_is_recovered_within_five_percent a_base_below_nothing_is_left_out
        the_same_intervals_are_held_out_each_time a_price_below_nothing_is_left_out
        requests_of_one_size_scale_the_line_in_force a_worse_line_is_not_accepted
        nothing_is_charged_beyond_what_was_observed requests_that_no_broker_sampled counts_that_differ
        requests_below_the_resolution costs_in_force_that_are_better_stay_in_the_file
        no_usage_while_the_truth_was_sampled an_interval_counts_if_every_broker_was_sampled_throughout
        the_error_is_that_of_a_request_in_what_was_held_out an_interval_counts_if_brokers_and_proxies_count_alike
        every_format_of_the_tool_is_read consumers_fetches_are_read_where_they_are_sampled
        a_file_may_have_several_runs_and_a_broker_a_file
        what_comes_between_two_samples_is_spread_over_the_time_between_them""",
    "test_recommend": """the_default_entity_gets_what_is_enough_for_most the_window_is_the_one_of_the_key
        without_recorded_producer_ids_those_asked_for_count
        a_part_of_the_seconds_may_be_throttled_and_quotas_have_a_least an_entity_can_be_a_client_id_or_a_pair
        what_if_throttles_no_client_with_these_quotas_and_some_with_less a_peak_is_followed_if_asked
        the_files_have_the_largest_and_say_what_they_lack options_reach_the_rules
        no_usage_is_no_error_and_leaves_what_is_there""",
    "test_recommend_numpy": """rows_are_those_of_numpy percentiles_of_other_keys_are_those_of_numpy
        the_quota_of_the_default_entity_is_present_for_others reasons_say_what_was_not_followed
        the_default_quota_is_what_most_need_and_the_cluster_can_bear""",
    "test_rollup": """bills_are_summed_by_cluster_and_currency_and_keep_their_decimals
        clusters_have_bills_of_their_own_or_one
        a_bill_by_month_is_one_for_both_days the_bill_as_csv the_largest_usage_is_billed_exactly
        a_run_that_is_repeated_changes_nothing_and_other_days_stay
        the_bill_of_a_month_is_kept_after_some_of_its_days_were_removed
        days_and_bills_of_unchanged_usage_are_left_as_they_are days_that_have_not_changed_are_not_read
        clusters_have_bills_of_their_own_unless_one_is_asked_for""",
    "test_run": "the_jobs_of_a_plan_run_in_order_and_their_results_are_json",
    "test_shared_costs": """days_have_parts_of_a_month
        a_bill_has_a_line_for_each_shared_cost_which_discount_and_minimum_do_not_concern""",
    "test_what_if": """the_usage_is_read_for_its_senders_and_its_charges
        each_cluster_has_its_own_answer quotas_are_asked_about_in_one_cluster
        a_trace_without_quotas_throttles_no_one
        quotas_come_from_a_configuration_file_or_a_part_of_one
        waiting_senders_are_computed_as_if_from_the_beginning another_channel_of_the_same_bucket_is_not_muted
        the_queue_of_a_sender_that_falls_behind_for_good_is_bounded what_is_where_the_output_goes_stays
        no_usage_is_no_answer as_recorded_the_result_equals_that_of_replay what_the_records_cannot_show_is_reported
        times_that_go_back_are_found_wherever_the_trace_is_cut""",
    "test_demand": "the_command_charges_demand demand_is_spread_over_the_seconds_of_a_mute",
    "test_focus": "the_command_exports_bills_whose_sum_is_that_of_their_totals",
    "test_ingest": """a_damaged_file_is_named_and_passed_over what_was_removed_is_no_gap
        a_file_is_taken_however_old_it_is gaps_losses_and_ends_are_counted_by_instance
        folders_below_are_taken_in an_hour_has_one_file_of_a_batch_or_several_if_it_has_many_records
        a_lost_checkpoint_doubles_nothing a_batch_can_be_repeated a_table_without_a_newer_column_has_nulls_in_it
        a_folder_without_usage_files_is_reported nothing_new_is_nothing_to_do
        what_is_no_record_is_quarantined_with_its_place
        a_file_that_was_removed_or_cannot_be_read_is_an_error_and_read_by_the_next_run""",
    "test_ingest_command": """more_instances_than_are_shown
        late_lines_are_taken_in_when_no_hour_is_final it_follows_until_a_signal
        instances_of_some_days""",
    "test_ingest_kafka": """a_topic_that_is_not_there_is_named
        records_removed_by_retention_are_an_error_unless_accepted
        a_cluster_that_is_not_there_is_named""",
    "test_ingest_kills": "records_that_another_ingest_has_added_meanwhile_are_not_added_again",
    "test_ingest_late": """records_of_days_that_were_removed_are_skipped
        an_hour_is_final_when_it_is_behind_the_watermark
        a_record_that_is_there_already_is_not_late
        the_histories_of_several_proxies_do_not_make_each_other_late
        a_run_that_was_killed_goes_on_under_its_watermark
        what_is_quarantined_for_its_schema_is_ingested_after_an_update_though_its_hour_is_final
        a_clock_that_is_ahead_makes_no_record_of_others_late""",
    "test_tables": "readers_see_all_changes_of_a_release_or_none",
    "test_report": """what_has_no_rows_is_not_asked_for
        others_are_summed_so_that_all_is_all usage_without_throttles_or_bytes days_are_those_asked_for
        a_browser_finds_names_to_be_text a_browser_draws_the_bars empty_tables_say_so
        records_without_a_cluster_are_those_of_the_only_one""",
    "test_end_to_end": """totals_are_the_clients_and_the_brokers_over_restarts
        a_killed_proxy_loses_its_last_second_at_most_and_it_shows
        what_if_throttles_the_users_that_the_proxy_throttled""",
}
"""Tests that take seconds each and vary what others of their module check: in ``make test-all`` only."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the long run, and ignore warnings about sockets of py4j, which leaves them to the garbage
    collector, during any test."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            name = item.name.split("[")[0].removeprefix("test_")
            if name in LONG_RUN.get(item.path.stem, "").split():
                item.add_marker("exhaustive")
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
                )
            )
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"))
