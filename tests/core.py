"""Selects the tests of `./run test`: at least one case of every behavior, in ten minutes.

`./run test all` runs everything. If a test function has many expensive cases with nearly equal
checks, the core runs only some of these cases. These cases are selected by a checksum of each
case's name, so that similar test functions run different cases.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Final, TypeVar

from hypothesis import settings

T = TypeVar("T")

# Maximum number of cases of a test function that the core runs, by the name of a folder, file or
# function. If several of these names match a test function, the longest name applies.
CASES: Final[Mapping[str, int]] = {
    "tests/contracts": 4,
    "tests/examples": 1,
    "tests/fault": 1,
    "tests/histories": 1,
    "tests/histories/test_simulated.py": 1,
    "tests/peers": 1,
    "tests/property": 3,
    "tests/property/test_disposable_files.py": 1,
    "tests/property/test_generations_model.py": 1,
    "tests/property/test_log_model.py": 2,
    "tests/server/clients": 2,
    "tests/server/kill": 1,
    "tests/server/refused": 1,
    "tests/server/rights": 1,
    "tests/server/test_loop_lists.py": 2,
    "tests/server/test_loop_old_clients.py": 1,
    "tests/server/test_unreachable_leaders.py": 1,
    "tests/spark": 1,
    "tests/spark/jobs/test_descriptions.py": 3,
    "tests/unit": 16,
    "tests/unit/bench": 2,
    "tests/unit/cli/test_help.py": 60,
    "tests/unit/cli/test_missing.py": 5,
    "tests/unit/cli/test_one_grammar.py": 20,
    "tests/unit/cli/test_terminal_widths.py": 8,
    "tests/unit/jobs/test_mirror_crash.py": 1,
    "tests/unit/protocol/test_kio.py": 200,
    "tests/unit/protocol/test_wire.py": 40,
    "tests/unit/scan/test_blamed_batch.py": 3,
    "tests/unit/scan/test_latency.py": 6,
    "tests/unit/scan/test_lost_segments.py::test_no_file_that_is_rebuilt_hides_a_loss": 3,
    "tests/unit/scan/test_split_latency.py": 4,
    "tests/unit/scan/test_wrong_offsets.py": 1,
    "tests/unit/server/groups/test_storms.py": 2,
    "tests/unit/server/test_repeated_fetches.py": 10,
    "tests/unit/server/security/test_authorizer.py": 40,
    "tests/unit/server/security/test_bearer_tokens.py": 30,
    "tests/unit/server/transactions/test_kills.py": 1,
    "tests/unit/storage/checks/test_log_damage.py": 8,
    "tests/unit/storage/test_attach_crash.py": 1,
    "tests/unit/storage/test_exchange.py::test_power_loss_at_every_call": 1,
    "tests/unit/storage/test_index_proof.py::test_no_single_bit_of_an_index_hides_a_record": 4,
    "tests/unit/storage/test_message_sets.py::test_refused": 100,
    "tests/unit/storage/test_retention_clock.py": 4,
    "tests/unit/storage/test_time_spans.py": 4,
    "tests/unit/storage/test_topic_registry.py": 30,
    "tests/unit/storage/test_writers.py::test_power_loss_at_every_call_and_the_batch_again": 1,
    "tests/unit/storage/tiers/test_faults.py::test_power_loss_at_every_call_of_the_disk": 1,
    "tests/unit/test_choices.py": 40,
    "tests/unit/test_config.py": 40,
    "tests/unit/test_errors.py": 200,
    "tests/unit/test_frames.py": 9,
    "tests/unit/test_setting_units.py": 40,
    "tests/unit/test_timespec.py": 300,
}
# Tests, or files of tests, that only `./run test all` runs. The value names the tests of the core
# that check the same behavior. It is empty for tests of rules that concern only maintainers.
LEFT_OUT: Final[Mapping[str, tuple[str, ...]]] = {
    "tests/examples/test_docs.py::test_block_with_kafkas_tools": (
        "tests/peers/test_quota_answers.py",
    ),
    # The pages' blocks on Spark need a session of their own.
    "tests/examples/test_docs.py::test_blocks_in_one_session": (
        "tests/examples/test_docs.py::test_python_is_valid",
        "tests/spark/jobs/test_audit.py",
        "tests/spark/jobs/test_bootstrap.py",
        "tests/spark/jobs/test_compact.py",
        "tests/spark/jobs/test_lag.py",
        "tests/spark/jobs/test_mirror.py",
        "tests/spark/jobs/test_reindex.py",
        "tests/spark/jobs/test_replay.py",
        "tests/spark/test_catalog.py",
        "tests/spark/test_sink.py",
        "tests/spark/test_source.py",
        "tests/spark/test_stream.py",
    ),
    "tests/fault/test_log_crash.py::test_every_prefix_of_the_calls_of_several_partitions": (
        "tests/fault/test_log_crash.py::test_every_prefix_of_the_calls",
        "tests/fault/test_log_crash.py::test_crash_during_recovery_of_several_partitions",
    ),
    "tests/fault/test_log_crash.py::test_seeded_states": (
        "tests/fault/test_log_crash.py::test_seeded_states_in_full",
    ),
    "tests/fault/test_log_crash.py::test_seeded_states_of_several_partitions": (
        "tests/fault/test_log_crash.py::test_crash_during_recovery_of_several_partitions",
    ),
    "tests/peers/test_back_and_forth.py": (
        "tests/peers/test_append_times.py",
        "tests/peers/test_compaction.py::test_kafka_continues_with_a_topic_compacted_by_tidelog",
        "tests/peers/test_own_directory.py",
    ),
    "tests/peers/test_bare_tokens.py": (
        "tests/peers/test_login_answers.py",
        "tests/server/test_login_sessions.py::test_a_session_of_bare_tokens_ends",
    ),
    "tests/peers/test_compaction.py::test_kafka_completes_a_crashed_cleaning_of_tidelog": (
        "tests/fault/test_compaction_crash.py",
        "tests/peers/test_compaction.py::test_kafka_continues_with_a_topic_compacted_by_tidelog",
    ),
    "tests/peers/test_demo_log.py": (
        "tests/peers/test_dump.py::test_every_file_is_accepted",
        "tests/peers/test_attached.py::test_kafka_accepts_every_attached_file",
    ),
    "tests/peers/test_doctor.py::test_a_brokers_directory_is_sound": (
        "tests/peers/test_doctor.py::test_logs_of_both_sides_are_sound",
    ),
    "tests/peers/test_follow.py::test_a_standby_that_was_promoted_and_follows_again": (
        "tests/unit/standby/test_follow_promotion.py",
    ),
    "tests/peers/test_follow.py::test_a_standby_continues_after_stops_of_either_side": (
        "tests/peers/test_follow.py::test_a_leader_that_lost_its_newest_records",
        "tests/unit/standby/test_follow.py",
    ),
    "tests/peers/test_generations_kafka.py::test_a_broker_takes_over": (
        "tests/peers/test_generations_kafka.py::test_no_deleted_key_returns",
    ),
    "tests/peers/test_group_offsets.py": ("tests/peers/test_consumer_group_takeover.py",),
    (
        "tests/peers/test_metadata_records.py"
        "::test_the_controllers_topic_is_none_that_clients_can_ask_for"
    ): (
        "tests/peers/test_quorum_answers.py",
        "tests/peers/test_read_answers.py",
    ),
    (
        "tests/peers/test_own_directory.py"
        "::test_a_rewind_by_the_append_clock_reads_exactly_the_later_appends"
    ): (
        "tests/peers/test_own_directory.py::test_seconds_behind_are_those_of_the_append_clock",
        "tests/peers/test_rewind.py::test_append_clock_of_stamped_topics_alone",
        "tests/unit/remote/test_group_rewind.py",
    ),
    "tests/peers/test_session_ends.py::test_a_session_lasts_until_its_token_ends": (
        "tests/peers/test_session_ends.py::test_a_client_with_an_ended_session_is_disconnected",
    ),
    "tests/peers/test_share_clients.py": (
        "tests/peers/test_share_fetch.py",
        "tests/server/test_share_groups.py",
        "tests/unit/server/shares/test_recovery.py",
    ),
    "tests/peers/test_sink_denied.py": (
        "tests/server/test_acl_clients.py::test_a_sink_without_rights_reports_the_missing_right",
    ),
    "tests/peers/test_stream_epochs.py": ("tests/unit/spark/test_stream_batches.py",),
    "tests/peers/test_tool_rights.py::test_clients_show_the_same": (
        "tests/peers/test_rights.py::test_admin_clients_show_the_same",
    ),
    "tests/peers/test_users_that_go.py": (
        (
            "tests/server/test_login_sessions.py"
            "::test_the_connection_of_a_removed_user_stays_until_its_reauthentication"
        ),
    ),
    **{
        f"tests/server/test_loop_existing.py::test_{objects}[100000]": (
            f"tests/server/test_loop_existing.py::test_{objects}[20000]",
        )
        for objects in (
            *("groups", "offsets_of_a_group", "members_of_a_group", "transactional_ids"),
            *("producers_of_a_partition", "acls", "users", "quotas"),
        )
    },
    (
        "tests/server/test_loop_old_clients.py"
        "::test_a_set_is_appended_at_the_log_end_despite_other_appends"
    ): ("tests/unit/storage/test_checked_sets.py",),
    "tests/spark/jobs/test_audit_broker.py": ("tests/spark/jobs/test_audit.py",),
    "tests/spark/jobs/test_bootstrap_kill.py": (
        "tests/fault/test_sink_failures.py::test_nth_call_of_a_load_fails",
        "tests/spark/jobs/test_bootstrap.py::test_a_job_loads_its_table_once",
    ),
    "tests/spark/jobs/test_commands.py::test_a_table_of_a_database_is_loaded": (
        "tests/spark/jobs/test_commands.py::test_a_table_is_loaded_and_a_range_is_replayed",
        "tests/unit/cli/test_spark_tables.py",
    ),
    "tests/spark/jobs/test_latency.py::test_the_command": (
        "tests/spark/jobs/test_latency.py::test_the_numbers_are_the_librarys",
        "tests/unit/cli/test_spark_summary.py",
    ),
    (
        "tests/spark/jobs/test_mirror.py"
        "::TestChanged::test_a_mirror_from_the_end_creates_the_topic_with_its_sources_settings"
    ): (
        (
            "tests/spark/jobs/test_mirror.py"
            "::TestChanged::test_several_sources_by_key_renamed_and_through_a_transform"
        ),
        "tests/unit/jobs/test_mirror_growth.py",
    ),
    (
        "tests/spark/jobs/test_mirror.py"
        "::TestDraftOfKip32::test_receive_times_increase_with_records_of_two_clusters"
    ): (
        (
            "tests/spark/jobs/test_mirror.py"
            "::TestDraftOfKip32::test_send_time_is_kept_and_receive_time_is_new"
        ),
    ),
    "tests/spark/jobs/test_mirror_broker.py": (
        "tests/peers/test_mirror_broker.py",
        "tests/unit/jobs/test_failover_map.py",
    ),
    "tests/spark/jobs/test_mirror_growth.py::test_new_topics_and_partitions_are_copied": (
        "tests/spark/jobs/test_mirror_growth.py::test_the_command_accepts_patterns_and_settings",
        "tests/unit/jobs/test_mirror_growth.py",
    ),
    "tests/spark/jobs/test_mirror_kill.py": ("tests/unit/jobs/test_mirror_crash.py",),
    "tests/spark/jobs/test_reindex.py::test_reindex_verifies_and_repairs_indexes": (
        "tests/property/test_repair.py",
        "tests/spark/jobs/test_reindex.py::test_damage_is_reported_and_not_repaired",
        "tests/unit/jobs/test_reindex_counts.py",
    ),
    "tests/spark/jobs/test_replay.py::test_a_finished_run_does_not_create_the_target_again": (
        "tests/spark/jobs/test_replay.py::test_a_run_continues_exactly_at_its_last_offset",
        "tests/unit/jobs/test_journal.py::test_done",
    ),
    "tests/spark/jobs/test_replay.py::test_a_rate_is_kept_without_sleeping": (
        "tests/spark/jobs/test_replay.py::test_a_run_continues_exactly_at_its_last_offset",
        "tests/unit/jobs/test_pace.py",
    ),
    "tests/spark/jobs/test_replay_kafka.py::test_records_are_replayed_to_a_broker_and_back": (
        "tests/spark/jobs/test_replay.py",
        "tests/spark/test_own_broker.py",
        "tests/spark/test_sink_stream.py::test_a_version_is_at_the_broker_once",
    ),
    "tests/spark/suite/test_connector.py": ("tests/spark/suite/test_sources.py",),
    "tests/spark/suite/test_sources.py::test_small_tasks": (
        "tests/spark/test_source.py::test_min_partitions",
        "tests/unit/spark/test_parts.py",
    ),
    "tests/spark/test_broker_kill.py": (
        "tests/server/kill",
        "tests/spark/test_sink_stream.py",
    ),
    "tests/spark/test_catalog.py::test_a_write_inside_foreach_batch_is_no_new_table": (
        "tests/unit/spark/test_new_tables.py",
    ),
    # The core runs the same jobs in one process, and in a classic session.
    "tests/spark/test_cluster.py": ("tests/spark/test_source.py", "tests/spark/test_sink.py"),
    "tests/spark/test_connect_jobs.py": (
        "tests/spark/jobs/test_bootstrap.py",
        "tests/spark/jobs/test_mirror.py",
        "tests/spark/jobs/test_replay.py",
    ),
    "tests/spark/test_executor_kill.py": (
        "tests/spark/test_sink.py::test_task_that_is_tried_again_writes_its_rows_once",
        "tests/unit/spark/test_broker_claims.py",
    ),
    "tests/spark/test_sink_kill.py": ("tests/fault/test_sink_failures.py",),
    "tests/spark/test_sink_stream.py::test_a_complete_result_is_appended_in_each_batch": (
        "tests/spark/test_sink_stream.py::test_a_repeated_batch_is_in_the_directory_once",
        "tests/spark/test_sink_stream.py::test_options_of_streams",
    ),
    "tests/spark/test_stream.py::test_available_now_reads_in_batches_and_then_only_new_records": (
        "tests/spark/test_stream.py::test_a_loss_is_a_named_error_or_is_skipped_if_allowed",
        "tests/unit/spark/test_stream_batches.py",
        "tests/unit/spark/test_stream_limits.py",
        "tests/unit/spark/test_stream_offset.py",
    ),
    "tests/spark/test_stream_broker.py": (
        "tests/spark/test_own_broker.py",
        "tests/spark/test_sink_stream.py",
        "tests/unit/spark/test_broker_backend.py",
    ),
    "tests/spark/test_stream_kill.py": (
        "tests/spark/test_stream.py",
        "tests/unit/spark/test_stream_batches.py",
    ),
    "tests/spark/test_tables.py::test_a_diff_is_the_librarys": (
        "tests/property/test_tables_model.py",
        "tests/spark/test_tables.py::test_a_table_is_the_librarys_by_partition_and_by_split",
    ),
    "tests/tidy/test_ci_run.py::test_a_process_that_crashes_or_hangs_fails_one_test_only": (),
    (
        "tests/tidy/test_ci_run.py"
        "::test_one_process_has_spark_another_one_kafka_and_each_file_is_in_one"
    ): (),
    "tests/tidy/test_names.py": (),
    "tests/tidy/test_repeats.py::test_no_function_stands_in_two_files": (),
    "tests/unit/storage/test_many_segments.py::test_more_segments_than_descriptors[10000-1024]": (
        "tests/unit/storage/test_many_segments.py::test_more_segments_than_descriptors[600-100]",
    ),
    "tests/unit/test_readme.py::test_spark": ("tests/spark", "tests/examples"),
}

# Some tests let each call fail, or crash at each call. In the core, they try only the first call
# and then every n-th one. This number is n.
MOMENTS: Final = 5
# The core tries the number of examples that a property requests, divided by this number.
EXAMPLES_DIVISOR: Final = 3


class _Run:
    one_in: ClassVar[int] = 1


def begin() -> None:
    """From now on, let tests of this process try failures at only every `MOMENTS`-th call."""
    _Run.one_in = MOMENTS


def one_in() -> int:
    """Return n: this process tries a failure or crash at the first call, then at every n-th one."""
    return _Run.one_in


def thinned(moments: Iterable[T]) -> Iterator[T]:
    """Yield the calls or crashes to try: all, or in the core the first and then every n-th one."""
    return islice(moments, 0, None, _Run.one_in)


def examples(count: int) -> settings:
    """Return hypothesis's settings with `count` examples, in the core with a third of them.

    Properties use this instead of the profile's number of examples.
    """
    return settings(max_examples=count if _Run.one_in == 1 else -(-count // EXAMPLES_DIVISOR))


def chosen(names: Sequence[str]) -> set[str]:
    """Return the node ids in `names` whose tests belong to the core."""
    cases: dict[str, list[str]] = {}
    for name in names:
        if not any(
            name == left or name.startswith((f"{left}::", f"{left}[", f"{left}/"))
            for left in LEFT_OUT
        ):
            cases.setdefault(name.partition("[")[0], []).append(name)
    return {name for function, every in cases.items() for name in _some(function, every)}


def _some(function: str, cases: Sequence[str]) -> Iterable[str]:
    fits = [folder for folder in CASES if f"{function}/".startswith((f"{folder}/", f"{folder}::"))]
    if not fits:
        return cases
    return sorted(cases, key=lambda name: zlib.crc32(name.encode()))[: CASES[max(fits, key=len)]]
