"""Effects of a target's settings on records: counts, and an error if records would be lost."""

from dataclasses import replace

import pytest

from tidelog.config import TopicConfig
from tidelog.jobs.bootstrap.columns import TableFacts
from tidelog.jobs.place_topics import config_of_broker
from tidelog.jobs.target_check import (
    Between,
    Effect,
    ExpectedWrite,
    Finding,
    Target,
    TargetLoses,
    check,
    count_text,
    ensure,
    lines,
)
from tidelog.remote.view import Count

NOW = 1_700_000_000_000
DAY = 86_400_000
TIMES = [NOW - 30 * DAY, NOW - 8 * DAY, NOW - DAY, NOW, NOW + DAY]


def between(times: list[int], *, is_exact: bool = True) -> Between:
    def counted(start: int | None, end: int | None) -> Count:
        found = [t for t in times if (start is None or start <= t) and (end is None or t < end)]
        return Count(len(found), is_exact)

    return counted


def target(**config: str) -> Target:
    given = {name.replace("_", "."): text for name, text in config.items()}
    parsed = TopicConfig.parse({"retention.ms": "-1"} | given)[0]
    return Target(place="data", topic="flights", partitions=2, config=parsed)


def load(times: list[int] = TIMES) -> ExpectedWrite:
    return ExpectedWrite(records=Count(len(times), True), between=between(times))


def of(findings: list[Finding], effect: Effect) -> list[Finding]:
    return [finding for finding in findings if finding.effect is effect]


def test_a_topic_that_keeps_all_has_only_the_limit_of_the_future() -> None:
    (finding,) = check(target(), load(), NOW)
    assert finding.effect is Effect.REFUSED
    assert finding.setting == "message.timestamp.after.max.ms=3600000"
    assert finding.text == (
        "1 record with create times after 2023-11-14T23:13:20.000Z would be refused"
    )
    assert check(target(), load(TIMES[:-1]), NOW) == []


def test_the_limits_are_inclusive_as_kafkas() -> None:
    config = {
        "message_timestamp_before_max_ms": str(DAY),
        "message_timestamp_after_max_ms": str(DAY),
    }
    assert check(target(**config), load([NOW - DAY, NOW + DAY]), NOW) == []
    found = check(target(**config), load([NOW - DAY - 1, NOW + DAY + 1]), NOW)
    assert [finding.records for finding in found] == [Count(1, True), Count(1, True)]


def test_a_limit_that_no_time_exceeds_is_none_of_unknown_times() -> None:
    written = ExpectedWrite(records=Count(5, True))
    (finding,) = check(target(), written, NOW)
    assert finding.text.endswith("would be refused; their number is unknown")
    for after_ms in (2**63 - 1, 2**63 - 1 - NOW):
        config = {"message_timestamp_after_max_ms": str(after_ms)}
        assert check(target(**config), written, NOW) == []


def test_log_append_time_overwrites_create_times_and_ignores_their_limits() -> None:
    config = {
        "message_timestamp_type": "LogAppendTime",
        "message_timestamp_before_max_ms": "1",
        "retention_ms": "1",
    }
    (finding,) = check(target(**config), load(), NOW)
    assert finding.effect is Effect.OVERWRITTEN
    assert finding.records == Count(5, True)
    assert "the create times of 5 records would be overwritten" in str(finding)


def test_without_create_times_there_are_none_to_lose() -> None:
    config = {"message_timestamp_type": "LogAppendTime", "retention_ms": "1"}
    assert (
        check(target(**config), ExpectedWrite(records=Count(5, True), has_times=False), NOW) == []
    )
    assert check(target(retention_ms="1"), ExpectedWrite(has_times=False), NOW) == []


@pytest.mark.parametrize(("without_time", "effects"), [(3, []), (2, [Effect.OVERWRITTEN])])
def test_a_table_whose_times_are_all_null_has_no_create_times(
    without_time: int, effects: list[Effect]
) -> None:
    facts = TableFacts(records=3, without_time=without_time, null_keys=0)
    found = check(target(message_timestamp_type="LogAppendTime"), facts.load(None), NOW)
    assert [finding.effect for finding in found] == effects


@pytest.mark.parametrize(
    ("clock", "deleted"), [("record", 2), ("record-capped", 2), ("append", None)]
)
def test_retention_deletes_what_is_old_on_its_clock(clock: str, deleted: int | None) -> None:
    config = {"retention_ms": str(7 * DAY), "tidelog_retention_clock": clock}
    found = of(check(target(**config), load(), NOW), Effect.DELETED)
    assert [finding.records for finding in found] == (
        [] if deleted is None else [Count(deleted, True)]
    )


def test_kafkas_clock_waits_for_the_future() -> None:
    config = {
        "tidelog_retention_clock": "record",
        "retention_ms": str(90 * DAY),
        "message_timestamp_after_max_ms": str(2 * DAY),
    }
    (finding,) = check(target(**config), load(), NOW)
    assert finding.effect is Effect.NOTE
    assert "1 record has a create time in the future" in finding.text


def test_a_topic_without_delete_deletes_nothing() -> None:
    config = {"cleanup_policy": "compact", "retention_ms": "1", "retention_bytes": "1"}
    given = ExpectedWrite(
        records=Count(1, True),
        between=between([NOW - DAY]),
        null_keys=Count(0, True),
        size_bytes=1_000,
    )
    (finding,) = check(target(**config), given, NOW)
    assert finding.text == "compaction will delete all records but the last one of each key"


def test_a_compacted_topic_refuses_records_without_a_key() -> None:
    known = ExpectedWrite(records=Count(9, True), between=between([]), null_keys=Count(3, True))
    found = check(target(cleanup_policy="compact"), known, NOW)
    assert [finding.effect for finding in found] == [Effect.REFUSED, Effect.NOTE]
    assert found[0].text == "3 records without a key would be refused"
    unknown = ExpectedWrite(records=Count(9, True), between=between([]))
    assert not any(f.is_loss for f in check(target(cleanup_policy="compact"), unknown, NOW))


def test_a_write_beyond_retention_by_size_is_reported() -> None:
    given = ExpectedWrite(between=between([]), size_bytes=201)
    (finding,) = check(target(retention_bytes="100"), given, NOW)
    assert finding.effect is Effect.DELETED
    assert check(target(retention_bytes="101"), given, NOW) == []


def test_larger_batches_at_the_source_give_a_note() -> None:
    given = ExpectedWrite(between=between([]), batch_bytes_max=2_000_000)
    (finding,) = check(target(), given, NOW)
    assert finding.effect is Effect.NOTE
    assert finding.setting == "max.message.bytes=1048588"
    assert check(target(max_message_bytes="2000000"), given, NOW) == []


def test_partitions_that_are_kept_must_be_there() -> None:
    given = ExpectedWrite(between=between([]), partitions=4)
    (finding,) = check(target(), given, NOW)
    assert finding.effect is Effect.REFUSED
    assert "need partitions 0 to 3, but the target has 2 partitions" in finding.text


def test_unknown_effects_are_notes_and_prevent_nothing() -> None:
    config = {"message_timestamp_before_max_ms": "1", "retention_ms": "1"}
    found = check(target(**config), ExpectedWrite(), NOW)
    assert [finding.effect for finding in found] == [Effect.NOTE] * 3
    assert all("is unknown" in finding.text for finding in found)


def test_bounds_are_reported_as_bounds() -> None:
    given = ExpectedWrite(between=between(TIMES, is_exact=False))
    found = check(target(retention_ms=str(DAY)), given, NOW)
    assert "up to 2 records created before" in of(found, Effect.DELETED)[0].text
    assert count_text(None) == "records"
    assert count_text(Count(1, True)) == "1 record"
    assert count_text(Count(2, False, is_bound=False)) == "about 2 records"


def test_a_loss_stops_the_job_unless_forced() -> None:
    findings = check(target(), load(), NOW)
    with pytest.raises(TargetLoses, match=r"^flights at data: message.timestamp.after") as caught:
        ensure(target(), findings, force=False)
    assert caught.value.findings == tuple(findings)
    ensure(target(), findings, force=True)
    ensure(target(), [], force=False)
    assert lines(findings)[0].startswith("loss: flights: message.timestamp.after.max.ms")


def test_equal_findings_on_several_topics_are_one_line_with_their_names() -> None:
    written = ExpectedWrite()
    topics = [f"t{number}" for number in range(6)]
    found = [
        finding
        for topic in topics
        for finding in check(replace(target(), topic=topic), written, NOW)
    ]
    unknown = "records with create times after 2023-11-14T23:13:20.000Z would be refused; their"
    setting = "message.timestamp.after.max.ms=3600000"
    assert lines(found) == [
        f"note: t0, t1, t2 and 3 other topics: {setting}: {unknown} number is unknown"
    ]
    assert lines(found[:2] * 2) == [f"note: t0, t1: {setting}: {unknown} number is unknown"]
    other = check(target(message_timestamp_after_max_ms="5"), written, NOW)
    assert [line.split(":")[1] for line in lines([*found[:1], *other])] == [" t0", " flights"]


def test_times_outside_of_the_calendar_are_accepted() -> None:
    config = {"message_timestamp_after_max_ms": str(2**63 - 1)}
    assert check(target(**config), load([2**63 - 1, 0]), NOW) == []
    config = {"retention_ms": str(2**63 - 1), "message_timestamp_before_max_ms": str(2**63 - 1)}
    assert of(check(target(**config), load([0]), NOW), Effect.DELETED) == []


def test_a_brokers_settings() -> None:
    config = config_of_broker(
        {
            "retention.ms": "5",
            "message.timestamp.type": "LogAppendTime",
            "some.later.setting": "x",
            "cleanup.policy": "compact",
        }
    )
    assert config.retention_ms == 5
    assert config.is_compacted
    assert config.tidelog_retention_clock.value == "record"


def test_counts_of_a_table_by_time_are_between_two_bounds() -> None:
    facts = TableFacts(records=10, without_time=2, null_keys=1, below={5: 3, 9: 6})
    ranges = [(None, 5), (5, 9), (9, None), (None, None), (9, 5), (6, 9), (5, 6)]
    assert [facts.between(*bounds) for bounds in ranges] == [
        Count(3, True),
        Count(3, True),
        Count(2, True),
        Count(8, True),
        Count(0, True),
        None,
        None,
    ]
    assert facts.load(4).null_keys == Count(1, True)
    assert facts.load(4).partitions == 4
