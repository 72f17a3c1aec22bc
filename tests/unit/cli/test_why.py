"""`tidelog why`, and how `describe` shows retention and unknown times."""

import os
from typing import cast

import pytest
from tests.worlds.command_line import NOW, Cli, at

import tidelog

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
WEEK = ("-c", "retention.ms=7d")
ANY_TIME = ("-c", f"message.timestamp.after.max.ms={2**62}")


@pytest.fixture
def tides(cli: Cli) -> Cli:
    """Create three segments of one record each, with times in the past, next year, and now."""
    cli.ok(
        "create",
        "tides",
        "-c",
        "internal.segment.bytes=90",
        "-c",
        "retention.bytes=1000",
        *WEEK,
        *ANY_TIME,
    )
    for time in (NOW - DAY_MS, NOW + 365 * DAY_MS, NOW):
        cli.append(at(time), topic="tides")
        cli.clock.advance(1_000)
    return cli


def part(segment: dict[str, object], name: str) -> dict[str, object]:
    return cast("dict[str, object]", segment[name])


def test_an_empty_segment_has_no_time_of_its_end(cli: Cli) -> None:
    cli.ok("create", "empty", "--partitions", "2", *WEEK)
    cli.append(at(NOW), topic="empty")
    cli.append(at(NOW), topic="empty", partition=1)
    cli.clock.advance(2 * WEEK_MS)
    cli.ok("retain", "empty", "--yes")
    for line in cli.ok("why", "empty").lines[-2:]:
        assert line.split()[-3:] == ["takes", "appends", "-"]
    for segment in cli.ok("why", "empty", "-o", "json").objects:
        for name in ("kept", "kafka"):
            keeping = part(segment, name)
            assert (keeping["until"], keeping["until_ms"], keeping["behind"]) == (None,) * 3
    heading, *rows = (line.split(",") for line in cli.ok("why", "empty", "-o", "csv").lines)
    for row in rows:
        cells = dict(zip(heading, row, strict=True))
        assert cells["kept_until"] == cells["kafka_until"] == ""


def test_each_segment_has_reasons_for_its_roll_and_its_retention(tides: Cli) -> None:
    old, future, active = tides.ok("why", "tides:0", "-o", "json").objects
    assert [(s["base_offset"], s["end_offset"]) for s in (old, future, active)] == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    assert part(old, "rolled") == {
        "reason": "size",
        "at": "2023-11-14T22:13:21.000Z",
        "at_ms": NOW + 1_000,
    }
    assert part(active, "rolled")["reason"] == "open"
    kept = part(old, "kept")
    assert (kept["until_ms"], kept["record_offset"]) == (NOW - DAY_MS + WEEK_MS, 0)
    assert (kept["basis"], kept["is_exact"]) == ("record timestamp", True)
    kept = part(future, "kept")
    assert (kept["until_ms"], kept["basis"]) == (NOW + 1_000 + WEEK_MS, "append time")
    assert (kept["record_offset"], kept["record_ms"]) == (1, NOW + 365 * DAY_MS)
    assert part(active, "kept")["behind"] == 1, "a pass ends at the first segment that stays"


def test_a_segment_of_the_append_clock_counts_from_its_last_record(tides: Cli) -> None:
    tides.ok("config", "tides", "--set", "tidelog.retention.clock=append")
    kept = [part(s, "kept") for s in tides.ok("why", "tides", "-o", "json").objects]
    assert [each["basis"] for each in kept] == ["append time"] * 3
    assert [each["record_offset"] for each in kept] == [0, 1, 2]


def test_kafkas_retention_is_shown(tides: Cli) -> None:
    old, future, active = tides.ok("why", "tides", "-o", "json").objects
    assert part(old, "kafka")["until_ms"] == part(old, "kept")["until_ms"]
    year = NOW + 365 * DAY_MS + WEEK_MS
    assert part(future, "kafka")["until_ms"] == part(active, "kafka")["until_ms"] == year
    assert part(active, "kafka")["behind"] == 1


def test_the_record_with_the_largest_time_is_named_also_in_the_newest_segment(cli: Cli) -> None:
    cli.ok("create", "late", *WEEK)
    for time_ms in (NOW - 3, NOW - 1, NOW - 2):
        cli.append(at(time_ms), topic="late")
    for clock in ("record", "record-capped"):
        cli.ok("config", "late", "--set", f"tidelog.retention.clock={clock}")
        (active,) = cli.ok("why", "late", "-o", "json").objects
        kept = part(active, "kept")
        assert (kept["record_offset"], kept["record_ms"]) == (1, NOW - 1)


def test_due_segments_have_the_limit_that_applies(tides: Cli) -> None:
    assert [s["due"] for s in tides.ok("why", "tides", "-o", "json").objects] == [None] * 3
    tides.clock.set(NOW + WEEK_MS)
    dues = [s["due"] for s in tides.ok("why", "tides", "-o", "json").objects]
    assert dues == ["time", None, None]
    tides.clock.set(NOW + 2 * WEEK_MS)
    dues = [s["due"] for s in tides.ok("why", "tides", "-o", "json").objects]
    assert dues == ["time"] * 3


def test_an_age_is_rounded_down(cli: Cli) -> None:
    cli.ok("create", "old", "-c", "retention.ms=1d")
    cli.append(at(NOW), topic="old")
    cli.clock.advance(29 * 3_600_000 - 1)
    assert "largest record timestamp is 1d4h old" in cli.ok("why", "old").out


def test_the_remaining_bytes_before_retention_by_size_are_shown(tides: Cli) -> None:
    segments = tides.ok("why", "tides", "-o", "json").objects
    sizes = [cast("int", s["bytes"]) for s in segments]
    rooms = [s["size_room_bytes"] for s in segments]
    assert rooms == [1000 - sum(sizes[1:]), 1000 - sizes[2], 1000]


def test_the_text_has_reasons_and_times(tides: Cli) -> None:
    text = tides.ok("why", "tides:0").out
    earlier = "record-capped (age by the earlier of timestamp and append time), retention.ms="
    settings = text.splitlines()[1]
    assert settings.startswith(f"settings: tidelog.retention.clock={earlier}604800000 (7d), ")
    assert settings.endswith("cleanup.policy=delete; times in UTC")
    assert "rolled by segment.bytes at 2023-11-14 22:13:21" in text
    assert "the timestamp of record 0" in text
    assert "record 1, 2023-11-14 22:13:21; its timestamp is 2024-11-13" in text
    assert "because the earlier segment at 1 is kept until then" in text
    assert "takes appends" in text
    assert "deletion      possible by age after that; by size once" in text
    assert "more are appended; by `tidelog delete-records`\n" in text
    assert "in Kafka      kept as long as by tidelog" in text
    assert "in Kafka      kept until 2024-11-20" in text


class TestSegments:
    """Without `--show`, a topic of several partitions has one line for each segment."""

    @pytest.fixture
    def tides(self, tides: Cli) -> Cli:
        tides.ok("partitions", "tides", "--to", "2")
        return tides

    def test_a_verdict_precedes_one_line_for_each_segment(self, tides: Cli) -> None:
        verdict, settings, heading, *rows = tides.ok("why", "tides").lines
        assert verdict.startswith("tides has 3 segments of ")
        assert verdict.endswith(
            " in 2 partitions; the next one, in tides:0, is kept until 2023-11-20 22:13:20"
            " by retention.ms"
        )
        assert settings.startswith("settings: tidelog.retention.clock=record-capped (age by ")
        assert heading.split()[:5] == ["PARTITION", "FIRST", "OFFSET", "LAST", "OFFSET"]
        assert [row.split()[:3] for row in rows] == [["0", str(n), str(n)] for n in range(3)]
        assert rows[0].split()[-3:] == ["segment.bytes", "2023-11-20", "22:13:20"]

    def test_all_partitions_of_the_next_segments_are_named(self, cli: Cli) -> None:
        cli.ok("create", "tides", "-p", "5", *WEEK)
        for partition in range(5):
            cli.append(at(NOW), topic="tides", partition=partition)
        assert (
            cli.ok("why", "tides")
            .lines[0]
            .endswith(
                "; the next 5, in tides:0, tides:1, tides:2 and 2 more partitions, are kept until"
                " 2023-11-21 22:13:20 by retention.ms"
            )
        )
        assert (
            cli.ok("why", "tides:4")
            .lines[0]
            .endswith("; the next one is kept until 2023-11-21 22:13:20 by retention.ms")
        )

    def test_the_last_ms_of_a_second_is_shown_as_the_end_of_the_second(self, cli: Cli) -> None:
        cli.ok("create", "tides", *WEEK)
        cli.append(at(NOW - 1), topic="tides")
        verdict, *_, row = cli.ok("why", "tides", "--show", "segments").lines
        assert verdict.endswith("; the next one is kept until 2023-11-21 22:13:20 by retention.ms")
        assert row.split()[-2:] == ["2023-11-21", "22:13:20"]
        details = cli.ok("why", "tides").out
        assert "kept until    2023-11-21 22:13:20, retention.ms after the timestamp" in details
        (segment,) = cli.ok("why", "tides", "-o", "json").objects
        assert part(segment, "kept")["until"] == "2023-11-21T22:13:19.999Z"
        cli.clock.set(NOW - 1 + WEEK_MS)
        assert "due for deletion" not in cli.ok("why", "tides").lines[0]
        cli.clock.set(NOW + WEEK_MS)
        assert "1 is due for deletion" in cli.ok("why", "tides").lines[0]

    def test_due_segments_are_marked(self, tides: Cli) -> None:
        tides.clock.set(NOW + WEEK_MS)
        verdict, _, heading, first, *_ = tides.ok("why", "tides").lines
        assert "; 1 is due for deletion; the next 2, in tides:0, are kept until " in verdict
        assert (heading.split()[-1], first.split()[-1]) == ("DUE", "time")

    def test_details_on_demand_and_for_one_partition(self, tides: Cli) -> None:
        details = tides.ok("why", "tides", "--show", "details").out
        assert "\ntides:0\n  offset 0, " in details
        assert "\ntides:1\n  no segments yet" in details
        assert "    in Kafka  " in tides.ok("why", "tides:0").out
        assert "    in Kafka  " not in tides.ok("why", "tides:0", "--show", "segments").out

    def test_json_has_no_other_form(self, tides: Cli) -> None:
        result = tides.run("why", "tides", "--show", "details", "-o", "json")
        assert (result.code, "--show applies only to tables" in result.err) == (3, True)


def test_the_records_that_compaction_left_are_counted(cli: Cli) -> None:
    cli.ok("create", "planes", "-p", "2", "-c", "cleanup.policy=compact")
    value = b"v" * 150_000
    cli.append(*(at(NOW + number, b"k", value) for number in range(4)), topic="planes")
    assert "compaction" not in cli.ok("why", "planes", "--show", "details").out
    cli.ok("compact", "planes", "--roll")
    text = cli.ok("why", "planes:0").out
    verdict = text.splitlines()[0]
    rule = "compaction, which keeps the last record of each key,"
    assert verdict.endswith(f"; {rule} left 1 record of 4 offsets; none has an age limit")
    assert "    compaction    left 1 record of 4 offsets\n" in text
    first = "  the first record has offset 3: compaction keeps only the last record of each key\n"
    assert first in text
    assert "cleanup.policy=compact, so retention.ms=604800000 (7d) is not used;" in text
    rolled = "rolled by a request at 2023-11-14 22:13:20, such as `tidelog compact --roll`"
    merged = "made by compaction, which may merge segments; the last of them was"
    assert f"{merged} {rolled}" in " ".join(text.split())
    (heading,) = [line for line in cli.ok("why", "planes").lines if "RECORDS LEFT" in line]
    lines = cli.ok("why", "planes").lines
    row = lines[lines.index(heading) + 1].split()
    assert (row[:4], row[6]) == (["0", "0", "3", "1"], "compaction")
    next((cli.data / "planes-0").glob("*.zones")).unlink()
    text = cli.ok("why", "planes:0").out
    assert "; compaction may have removed records of 4 offsets; none has" in text
    assert "may have removed records of its 4 offsets" in text


def test_records_below_the_log_start_are_not_records_that_compaction_left(cli: Cli) -> None:
    cli.ok("create", "planes", "-c", "cleanup.policy=compact,delete", "-c", "retention.ms=-1")
    cli.append(*(at(NOW, key=key) for key in (b"a", b"a", b"b", b"b", b"c")), topic="planes")
    cli.ok("compact", "planes", "--roll")  # leaves offsets 1, 3 and 4
    cli.ok("delete-records", "planes:0", "--offset", "2", "--yes")
    text = cli.ok("why", "planes:0").out
    assert "    compaction    left 2 records of 3 offsets\n" in text
    assert "  the first record has offset 3: " in text
    (segment, _) = cli.ok("why", "planes:0", "-o", "json").objects
    assert (segment["records"], segment["removed_by_compaction"]) == (2, 1)


def test_offsets_that_compaction_emptied_do_not_lack_an_append_time(cli: Cli) -> None:
    cli.ok("create", "planes", "-c", "cleanup.policy=compact")
    for number in range(6):
        cli.append(at(NOW, key=b"k%d" % (number == 2)), topic="planes")
        cli.clock.advance(1_000)
    cli.ok("compact", "planes", "--roll")  # leaves offsets 2 and 5
    (segment, _) = cli.ok("why", "planes:0", "-o", "json").objects
    assert part(segment, "append")["unknown"] == []
    assert cli.ok("describe", "planes").lines[-1].endswith("  -")
    for path in (cli.data / "planes-0").glob("*.appendtime"):
        path.unlink()
    described = cli.ok("describe", "planes").out
    assert described.splitlines()[-2].endswith("  2..5")
    assert described.endswith(
        "append clock: no append time is stored for the offsets listed as unknown\n"
    )


def test_facts_that_all_segments_share_are_printed_once(tides: Cli) -> None:
    tides.ok("config", "tides", "--set", "cleanup.policy=compact")
    lines = tides.ok("why", "tides:0").lines
    at_all = lines.index("  all segments")
    assert lines[at_all + 1 : at_all + 4] == [
        "    kept until    forever: cleanup.policy=compact has no `delete`",
        "    deletion      only by `tidelog delete-records`",
        "    in Kafka      kept as long as by tidelog",
    ]
    assert [line.split()[0] for line in lines].count("in") == 1


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        ("record", "age by timestamp (record)"),
        ("append", "age by append time (append)"),
        ("record-capped", "age by the earlier of timestamp and append time (record-capped)"),
    ],
)
def test_describe_explains_the_clock_of_retention(tides: Cli, clock: str, words: str) -> None:
    tides.ok("config", "tides", "--set", f"tidelog.retention.clock={clock}")
    assert f"retention   {words}" in tides.ok("describe", "tides").out


def test_rows_for_spreadsheets(tides: Cli) -> None:
    lines = tides.ok("why", "tides", "-o", "csv").lines
    assert lines[0].startswith("topic,partition,base_offset,end_offset,bytes,rolled")
    assert len(lines) == 4


def test_unlimited_retention_has_a_reason(cli: Cli) -> None:
    cli.ok("create", "kept", "-c", "retention.ms=-1")
    cli.append(at(NOW), topic="kept")
    assert "forever: retention.ms=-1" in cli.ok("why", "kept").out
    cli.ok("create", "compacted", "-c", "cleanup.policy=compact")
    cli.append(at(NOW, key=b"k"), topic="compacted")
    assert "forever: cleanup.policy=compact" in cli.ok("why", "compacted").out
    cli.ok("create", "empty")
    assert "no segments yet" in cli.ok("why", "empty").out


def test_segments_that_another_rule_deletes_are_not_kept_forever(cli: Cli) -> None:
    limits = ("-c", "retention.ms=-1", "-c", "internal.segment.bytes=90")
    cli.ok("create", "kept", *limits)
    for number in range(3):
        cli.append(at(NOW + number), topic="kept")
    cli.ok("delete-records", "kept:0", "--offset", "1", "--yes")
    lines = cli.ok("why", "kept", "--show", "segments").lines
    rows = [line.split() for line in lines if line.split()[:1] == ["0"]]
    assert [row[-5:] for row in rows[:1]] == [["the", "next", "run", "log", "start"]]
    assert [row[-2:] for row in rows[1:]] == [["forever", "-"]] * 2
    assert "kept forever: retention.ms=-1" in lines
    details = cli.ok("why", "kept:0").lines
    until = [line.split("kept until")[1].strip() for line in details if "kept until" in line]
    assert until == ["the next run", *["forever: retention.ms=-1"] * 2]
    cli.ok("config", "kept", "--set", "retention.bytes=1")
    text = cli.ok("why", "kept", "--show", "segments").out
    assert text.count("the next run") == 2
    assert text.count(" forever") == 2  # the active segment, and its reason


def test_a_segment_that_another_rule_deletes_now_has_no_later_end(tides: Cli) -> None:
    """Age would delete the segment later, but size makes the next run delete it."""
    tides.ok("config", "tides", "--set", "retention.bytes=1")
    assert "the next run" in tides.ok("why", "tides", "--show", "segments").out
    segments = tides.ok("why", "tides", "-o", "json").objects
    ends = [(one["due"], part(one, "kept")["until_ms"] is None) for one in segments]
    assert ends == [("size", True), ("size", True), (None, False)]
    assert [part(one, "kept")["until"] for one in segments][:2] == [None, None]
    heading, *rows = (line.split(",") for line in tides.ok("why", "tides", "-o", "csv").lines)
    cells = [dict(zip(heading, row, strict=True)) for row in rows]
    assert [(one["due"], one["kept_until"] == "") for one in cells][:2] == [("size", True)] * 2


def test_no_retention_is_shown_that_retain_does_not_apply(tides: Cli) -> None:
    tides.ok("config", "tides", "--unset", "retention.ms", "--set", "retention.bytes=-1")
    tides.clock.set(NOW + 2 * WEEK_MS)
    assert tides.ok("retain", "--dry-run", "-o", "json").objects == []
    segments = tides.ok("why", "tides", "-o", "json").objects
    assert [s["due"] for s in segments] == [None] * 3
    assert [part(s, "kept")["until_ms"] for s in segments] == [None] * 3
    text = tides.ok("why", "tides").out
    assert "retention.ms not set" in text
    assert text.splitlines()[0].endswith("; none has a known age limit")
    assert text.count("kept until    forever without a broker: the topic has no retention.ms") == 1
    assert "(only brokers apply the default, 7d)" in text


@pytest.mark.parametrize("target", ["tides:x", "tides:0:1", "tides:-1"])
def test_a_target_that_is_none(tides: Cli, target: str) -> None:
    result = tides.run("why", target)
    assert result.code == 3
    assert "TOPIC:P" in result.err


def test_a_partition_that_does_not_exist(tides: Cli) -> None:
    result = tides.run("why", "tides:7")
    assert result.code == 1
    assert "only partition 0" in result.err


class TestForeign:
    """A directory that another program wrote: it has no append times and no segment notes."""

    @pytest.fixture
    def foreign(self, tides: Cli) -> Cli:
        for path in (tides.data / "tides-0").iterdir():
            if path.suffix in (".appendtime", ".zones") or path.name in (
                "segment-notes",
                "append-time-checkpoint",
            ):
                path.unlink()
            else:
                os.utime(path, (NOW / 1000 - 60, NOW / 1000 - 60))
        return tides

    def test_retention_that_a_copy_would_change_is_marked(self, foreign: Cli) -> None:
        _, future, _ = foreign.ok("why", "tides", "-o", "json").objects
        assert part(future, "kept")["basis"] == "file modification time"
        assert part(future, "kept")["leans_on_file_time"] is True
        assert part(future, "rolled")["reason"] == "unknown"
        text = foreign.ok("why", "tides").out
        assert "a copy of the files may change it" in text
        assert "rolled by another program" in text
        assert "append times  unknown" in text

    def test_describe_reports_retention_by_file_time_until_the_log_is_opened_for_writing(
        self, foreign: Cli
    ) -> None:
        (topic,) = foreign.ok("describe", "tides", "-o", "json").objects
        (facts,) = cast("list[dict[str, object]]", topic["partition_facts"])
        assert facts["retention_by_file_time"] == [[1, 3]]
        assert (
            "depends on the modification times of their files"
            in foreign.ok("describe", "tides").out
        )
        foreign.append(at(NOW), topic="tides")
        (topic,) = foreign.ok("describe", "tides", "-o", "json").objects
        (facts,) = cast("list[dict[str, object]]", topic["partition_facts"])
        assert facts["retention_by_file_time"] == []

    def test_records_with_valid_timestamps_do_not_depend_on_file_times(self, cli: Cli) -> None:
        """If timestamps are plausible, retention doesn't depend on the file's modification time."""
        cli.ok("create", "sound")
        cli.append(at(NOW - DAY_MS), topic="sound")
        (cli.data / "sound-0" / "segment-notes").unlink()
        for path in (cli.data / "sound-0").glob("*.appendtime"):
            path.unlink()
        (topic,) = cli.ok("describe", "sound", "-o", "json").objects
        (facts,) = cast("list[dict[str, object]]", topic["partition_facts"])
        assert facts["retention_by_file_time"] == []


def test_describe_shows_the_smallest_and_the_largest_time(tides: Cli) -> None:
    (topic,) = tides.ok("describe", "tides", "-o", "json").objects
    assert topic["retention_clock"] == "record-capped"
    (facts,) = cast("list[dict[str, object]]", topic["partition_facts"])
    record = part(facts, "record")
    assert record["smallest_ms"] == NOW - DAY_MS
    assert record["largest_ms"] == NOW + 365 * DAY_MS
    assert record["smallest_unsearched"] == []


def test_a_large_segment_without_a_zone_map_is_not_read_for_its_smallest_time(cli: Cli) -> None:
    cli.ok("create", "large")
    cli.append(*(at(NOW - n, value=b"v" * 50_000) for n in range(4)), topic="large")
    (topic,) = cli.ok("describe", "large", "-o", "json").objects
    (facts,) = cast("list[dict[str, object]]", topic["partition_facts"])
    assert part(facts, "record")["smallest_unsearched"] == [[0, 4]]
    shown = cli.ok("describe", "large").out
    assert shown.splitlines()[-3].endswith("  0..3")
    assert "the offsets listed as unknown have no zone map and may have a smaller time" in shown


def test_a_roll_storm_is_reported_with_the_limits_to_set(cli: Cli) -> None:
    cli.ok("create", "storm", "-c", "segment.ms=1000")
    for turn in range(14):
        cli.append(at(NOW - 100_000 + 2_000 * turn), topic="storm")
        cli.clock.advance(1)
    assert "many small segments" in cli.ok("why", "storm").out
    text = cli.ok("describe", "storm").out
    assert "many small segments: the last 10 segments" in text
    assert "segment.ms" in text


def test_sizes_after_a_compaction_give_no_advice_on_segments(cli: Cli) -> None:
    small, large = "internal.segment.bytes=2000", "internal.segment.bytes=1000000"
    cli.ok("create", "storm", "-c", "segment.ms=1000", "-c", "cleanup.policy=compact", "-c", small)
    for turn in range(14):
        record = at(NOW - 100_000 + 2_000 * turn, b"%d" % turn, b"v" * 1_500)
        cli.append(record, topic="storm")
        cli.clock.advance(1)
    cli.ok("config", "storm", "--set", large)
    assert "many small segments" in cli.ok("describe", "storm").out
    cli.ok("config", "storm", "--set", small)
    cli.append(at(NOW, b"1"), topic="storm")
    cli.ok("compact", "storm", "--roll")
    cli.ok("config", "storm", "--set", large)
    assert len(cli.ok("why", "storm", "-o", "json").objects) > 10
    assert "many small segments" not in cli.ok("describe", "storm").out
    assert "many small segments" not in cli.ok("why", "storm").out


@pytest.mark.parametrize("seconds", [0, 1, 10**9, 4 * 10**9])
def test_a_copy_with_other_file_times_gives_the_same_output(tides: Cli, seconds: int) -> None:
    """Lookups on both clocks and retention don't depend on the times of files."""
    questions = [
        ("why", "tides", "-o", "json"),
        ("describe", "tides", "-o", "json"),
        *(
            ("offsets", "tides", "--at", str(at_ms), "--clock", clock, "-o", "json")
            for at_ms in (NOW - 2 * DAY_MS, NOW, NOW + 1, NOW + 1_500, NOW + 10 * DAY_MS)
            for clock in ("record", "append")
        ),
    ]
    before = [tides.run(*question).out for question in questions]
    for path in [*(tides.data / "tides-0").iterdir(), *tides.data.iterdir()]:
        os.utime(path, (seconds, seconds))
    assert [tides.run(*question).out for question in questions] == before


def test_a_zone_map_gives_the_exact_record_and_the_smallest_time(cli: Cli) -> None:
    """The first record's time is a year ahead, so its age is counted from its append time.

    The second record is older by its own time, and expires earlier.
    """
    cli.ok("create", "mixed", "-c", "internal.segment.bytes=160", *WEEK, *ANY_TIME)
    cli.append(at(NOW + 365 * DAY_MS), topic="mixed")
    cli.clock.advance(DAY_MS + 3)  # times that are all multiples of a number look rounded
    cli.append(at(NOW - DAY_MS), topic="mixed")
    cli.append(at(NOW), at(NOW), topic="mixed")
    closed, _ = cli.ok("why", "mixed", "-o", "json").objects
    assert closed["end_offset"] == 2
    kept = part(closed, "kept")
    assert (kept["counted_ms"], kept["is_exact"], kept["record_offset"]) == (NOW, True, 0)
    assert part(closed, "record")["smallest_ms"] == NOW - DAY_MS
    next(cli.data.glob("mixed-0/*.zones")).unlink()
    closed, _ = cli.ok("why", "mixed", "-o", "json").objects
    kept = part(closed, "kept")
    assert (kept["counted_ms"], kept["is_exact"]) == (NOW + DAY_MS + 3, False), "errs to keeping"
    assert "the append time at the latest" in cli.ok("why", "mixed").out


@pytest.mark.parametrize("number", [0, 1])
def test_offsets_that_are_lost_are_reported(tides: Cli, number: int) -> None:
    """`describe` and `why` report exactly the lost offsets, and no offset of a complete log."""
    assert all(one["lost"] is None for one in tides.ok("why", "tides", "-o", "json").objects)
    assert "lost" not in tides.ok("why", "tides").out + tides.ok("describe", "tides").out
    folder = tides.data / "tides-0"
    os.truncate(folder / f"{number:020}.log", 0)
    text = f"{number}..{number}: missing between two segments"
    (line,) = [one for one in tides.ok("why", "tides").out.splitlines() if "lost" in one]
    assert text in line
    (line,) = [one for one in tides.ok("describe", "tides").out.splitlines() if "lost" in one]
    assert line.startswith(f"partition 0: offsets {number}..{number} are lost: missing between")
    expected: list[list[int] | None] = [None, None, None]
    expected[number] = [number, number + 1]
    found = tides.ok("why", "tides", "-o", "json").objects
    assert [one["lost"] for one in found] == expected
    (whole,) = tides.ok("describe", "tides", "-o", "json").objects
    (facts,) = cast("list[dict[str, object]]", whole["partition_facts"])
    assert facts["lost"] == [[number, number + 1]]


def test_gaps_of_a_compacted_topic_are_no_loss(tides: Cli) -> None:
    with tidelog.open(tides.data, writable=True, env=tides.env) as directory:
        directory.alter_config("tides", {"cleanup.policy": "compact,delete"})
    os.truncate(tides.data / "tides-0" / f"{1:020}.log", 0)
    assert "lost" not in tides.ok("why", "tides").out + tides.ok("describe", "tides").out
