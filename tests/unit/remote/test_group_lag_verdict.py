"""The sentence about lag: none, one and many partitions, and invalid positions."""

from math import inf

from tidelog.cli.lag import _sum_row, _table_row
from tidelog.cli.options import Format
from tidelog.remote.group_lag import (
    AgeClock,
    Observation,
    PartitionLag,
    State,
    Unread,
    lag_of,
    over_limits,
)
from tidelog.remote.lag_verdict import lag_sum, lag_verdict, lags_verdict
from tidelog.remote.view import Count
from tidelog.types import TopicPartition

NOW = 1_700_000_000_000


def lag(
    partition: int = 0,
    *,
    left: int = 0,
    age_ms: int | None = 0,
    committed: int | None = 10,
    start: int = 0,
    end: int | None = None,
    is_exact: bool = True,
    clock: AgeClock | None = None,
    now_ms: int = NOW,
) -> PartitionLag:
    time_ms = None if age_ms is None else now_ms - age_ms
    seen = Observation(
        partition=TopicPartition("t", partition),
        now_ms=now_ms,
        monotonic_ms=0,
        committed=committed,
        start=start,
        end=(committed or 0) + left if end is None else end,
        left=Count(left, is_exact=is_exact),
        unread=Unread(0, time_ms, clock) if left else None,
    )
    return lag_of(seen, seen)


def test_nothing() -> None:
    assert lag_verdict("g", []) == "group g has no partitions to report"
    assert lags_verdict({}) == "no group has committed offsets"


def test_all_is_read() -> None:
    assert lag_verdict("g", [lag()]) == "group g has read all of 1 partition"
    assert lag_verdict("g", [lag(0), lag(1)]) == "group g has read all of 2 partitions"


def test_one_record() -> None:
    assert lag_verdict("g", [lag(left=1, age_ms=3_200)]) == (
        "group g is 1 record and 3.2s behind on t-0"
    )


def test_many_records() -> None:
    lags = [lag(0, left=1_000, age_ms=192_000), lag(1, left=240, age_ms=60_000), lag(2), lag(3)]
    assert lag_verdict("billing", lags) == (
        "group billing is 1,240 records and 3m12s behind on t-0 and t-1 (2 of 4 partitions);"
        " worst: t-0, 1,000 records, 3m12s"
    )


def test_a_lag_of_a_week_or_more_has_the_time_of_the_oldest_unread_record() -> None:
    week_ms = 7 * 86_400_000
    old, older = lag(0, left=1, age_ms=week_ms), lag(1, left=1, age_ms=2 * week_ms)
    part = "; the oldest unread record is from"
    assert lag_verdict("g", [old, older]).endswith(f"{part} 2023-10-31 22:13:20 (UTC)")
    assert lags_verdict({"g": [old]}, "Europe/Zurich").endswith(
        f"{part} 2023-11-07 23:13:20 (Europe/Zurich)"
    )
    groups = {"a": [lag()], "g": [old]}
    assert lags_verdict(groups, "Europe/Zurich").endswith("2023-11-07 23:13:20 (Europe/Zurich)")
    assert part not in lag_verdict("g", [lag(left=1, age_ms=week_ms - 1)])


def test_the_worst_partition_has_the_oldest_unread_record() -> None:
    few_old = lag(0, left=2, age_ms=90_000, is_exact=False)
    many_old, new = lag(1, left=5, age_ms=90_000), lag(2, left=99, age_ms=1_000)
    assert "; worst: t-1, 5 records, 1m30s" in lag_verdict("g", [few_old, many_old, new])
    assert "; worst: t-0, at most 2 records, 1m30s" in lag_verdict("g", [new, few_old])
    ageless = [lag(3, left=1, age_ms=None), lag(4, left=2, age_ms=None)]
    assert lag_verdict("g", ageless).endswith("; worst: t-4, 2 records")


def test_a_few_partitions_are_named_and_topics_of_more() -> None:
    lags = [lag(number, left=1, age_ms=1_000) for number in range(5)]
    few, more = lag_verdict("g", lags[:3]), lag_verdict("g", lags)
    assert "behind on t-0, t-1 and t-2 (3 of 3 partitions); worst" in few
    assert "behind on 5 of 5 partitions (topic t); worst" in more


def test_an_inexact_lag_is_an_upper_bound() -> None:
    lags = [lag(0, left=3, age_ms=None, is_exact=False), lag(1)]
    assert lag_verdict("g", lags) == (
        "group g is at most 3 records behind on t-0 (1 of 2 partitions)"
    )


def test_positions_that_are_wrong() -> None:
    lags = [
        lag(0, committed=None, left=5, age_ms=1_000),
        lag(1, committed=None, left=5, age_ms=1_000),
        lag(2, committed=3, start=7, end=7),
        lag(3, committed=9, end=8),
    ]
    assert [one.state for one in lags[1:]] == [State.NO_COMMIT, State.LOST, State.BEYOND_END]
    assert lag_verdict("g", lags) == (
        "group g has read all of 2 partitions with a committed offset; t-0 and t-1 have no"
        " committed offset and are not counted; 1 partition has lost records; 1 partition is"
        " committed beyond the end"
    )
    assert lag_sum(lags).state == "2 no commit, 4 records lost in 1 partition, 1 beyond the end"


def test_lost_records_are_counted_as_records() -> None:
    lost = lag(committed=3, start=13_110, end=13_110)
    also_lost = lag(1, committed=6, start=7, end=7)
    assert lag_sum([lost]).state == "13,107 records lost"
    assert lag_sum([lost, lag(1)]).state == "13,107 records lost in 1 partition"
    assert lag_sum([lost, also_lost]).state == "13,108 records lost in 2 partitions"
    assert lag_sum([also_lost]).state == "1 record lost"
    assert _table_row(lost)[-1] == "13,107 records lost"
    assert _table_row(also_lost)[-1] == "1 record lost"


def test_a_group_that_does_not_catch_up_in_one_partition_never_does() -> None:
    fast, slow = lag(0, left=5), lag(1, left=5)
    object.__setattr__(fast, "catch_up_s", 2.0)
    object.__setattr__(slow, "catch_up_s", inf)
    assert lag_verdict("g", [fast]).endswith("; it catches up in 2s")
    assert lag_verdict("g", [fast, slow]).endswith("; at the current rates it does not catch up")


def test_several_groups() -> None:
    done, late = [lag()], [lag(left=2, age_ms=90_000)]
    later = [lag(left=1, age_ms=180_000)]
    assert lags_verdict({"a": done, "b": done}) == "all 2 groups have read everything"
    assert lags_verdict({"a": late}) == "group a is 2 records and 1m30s behind on t-0"
    assert lags_verdict({"a": done, "b": late}) == (
        "1 of 2 groups is behind, the furthest: group b is 2 records and 1m30s behind on t-0"
    )
    assert lags_verdict({"a": late, "b": later}) == (
        "2 of 2 groups are behind, the furthest: group b is 1 record and 3m behind on t-0"
    )


def test_several_groups_hide_no_wrong_position() -> None:
    done, lost, beyond = [lag()], [lag(committed=3, start=7, end=7)], [lag(committed=9, end=8)]
    assert lags_verdict({"a": done, "b": lost, "c": beyond}) == (
        "all 3 groups have read everything; 1 partition has lost records;"
        " 1 partition is committed beyond the end"
    )
    assert lags_verdict({"a": [lag(left=1, age_ms=1_000)], "b": lost}) == (
        "1 of 2 groups is behind, the furthest: group a is 1 record and 1s behind on t-0;"
        " of other groups 1 partition has lost records"
    )


def test_a_partition_without_a_commit_is_not_unread() -> None:
    """Without a commit, the group may start at the log end: `auto.offset.reset` is unknown."""
    new, read = lag(0, committed=None, left=50, age_ms=90_000), lag(1, left=3, age_ms=2_000)
    sentence = "group g is 3 records and 2s behind on t-1 (1 of 2 partitions)"
    part = "t-0 has no committed offset and is not counted"
    assert lag_verdict("g", [new, read]) == f"{sentence}; {part}"
    total = lag_sum([new, read])
    assert (total.records, total.behind_ms, total.partitions) == (3, 2_000, 2)
    assert total.catch_up_s == lag_sum([read]).catch_up_s
    assert lag_verdict("g", [new]) == (
        "group g has no committed offset in t-0; records there are not counted"
    )
    assert lags_verdict({"a": [new], "b": [lag()]}) == (
        "no unread records after the committed offsets of 2 groups; t-0 (group a) has no committed"
        " offset and is not counted"
    )
    topic, partition, committed, end, *rest = _table_row(new)
    assert (topic, partition, committed, end) == ("t", 0, None, 50)
    assert rest[:5] == [None] * 5
    assert rest[-1] == "no commit"


def test_at_most_three_partitions_without_a_commit_are_named() -> None:
    new = [lag(number, committed=None, left=5, age_ms=1_000) for number in range(5)]
    read = lag(9)
    done = "group g has read all of 1 partition with a committed offset"
    assert lag_verdict("g", [*reversed(new[:3]), read]) == (
        f"{done}; t-0, t-1 and t-2 have no committed offset and are not counted"
    )
    assert lag_verdict("g", [*new, read]) == (
        f"{done}; t-0, t-1, t-2 and 2 more partitions have no committed offset and are not counted"
    )
    assert lag_verdict("g", [*new[:4], read]).endswith(
        "; t-0, t-1, t-2 and 1 more partition have no committed offset and are not counted"
    )
    assert lag_verdict("g", new) == (
        "group g has no committed offset in t-0, t-1, t-2 and 2 more partitions; records there are"
        " not counted"
    )
    behind = [lag(left=1, age_ms=1_000)]
    assert lags_verdict({"a": behind, "b": [new[0], read], "c": [new[0], new[1], read]}) == (
        "1 of 3 groups is behind, the furthest: group a is 1 record and 1s behind on t-0; of other"
        " groups t-0 (group b), t-0 (group c) and t-1 (group c) have no committed offset and are"
        " not counted"
    )
    lost = [lag(committed=3, start=7, end=7)]
    assert lags_verdict({"a": behind, "b": new, "c": lost}).endswith(
        "; of other groups t-0 (group b), t-1 (group b), t-2 (group b) and 2 more partitions have"
        " no committed offset and are not counted; of other groups 1 partition has lost records"
    )


def test_a_limit_counts_from_the_log_start_without_a_commit() -> None:
    new = lag(0, committed=None, left=50, age_ms=90_000)
    assert over_limits([new], max_lag=49, max_ms=60_000) == [
        "t-0: no committed offset, 50 records in the log, limit 49",
        "t-0: no committed offset, first record 1m30s old, limit 1m",
    ]
    assert over_limits([new], max_lag=50, max_ms=90_000) == []


def test_the_tables_name_the_worst_partition_of_the_sentence() -> None:
    lags = [lag(0, left=9, age_ms=1_000), lag(7, left=5, age_ms=90_000), lag(3)]
    assert "; worst: t-7, 5 records, 1m30s" in lag_verdict("g", lags)
    assert _sum_row("t", lags, Format.TABLE)[:6] == ["t", 3, 2, "14", "t-7", 90_000]
    assert _sum_row("t", [lag()], Format.JSON)[:6] == ["t", 1, 0, 0, None, 0]


def test_the_sentence_names_the_clock_of_the_age() -> None:
    words = {
        AgeClock.APPEND: "3s (by append time)",
        AgeClock.LOG_APPEND_TIME: "3s (by LogAppendTime)",
        AgeClock.CREATE_TIME: "3s (by create time)",
    }
    for clock, age in words.items():
        old, new = lag(0, left=1, age_ms=3_000, clock=clock), lag(1, left=1, age_ms=1_000)
        assert lag_verdict("g", [new, old]).startswith(f"group g is 2 records and {age} behind on")


def test_a_time_before_1970_is_said_to_be_one() -> None:
    old = lag(left=1, age_ms=NOW + 5)
    assert lag_verdict("g", [old]).endswith(
        "; the oldest unread record is from before 1970 (timestamp -5 ms)"
    )
