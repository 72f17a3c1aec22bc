"""`retain`: retention in a directory without a running broker; messages of `produce` and `why`."""

import io
from collections.abc import Callable

import pytest
from tests.worlds.command_line import NOW, Cli, TerminalInput, at

import tidelog
from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings

DAY = 86_400_000


@pytest.fixture
def topic(cli: Cli) -> Cli:
    """Create three finished segments of one record each, a day apart; retention is one day."""
    cli.ok("create", "t", "--config", f"retention.ms={DAY}", "--config", "segment.ms=1")
    for _ in range(3):
        cli.append(at(cli.clock.now_ms()), topic="t")
        cli.clock.advance(DAY)
    cli.append(at(cli.clock.now_ms()), topic="t")
    return cli


def test_a_dry_run_lists_the_segments_that_a_run_deletes(topic: Cli) -> None:
    shown = topic.ok("retain", "--dry-run", "-o", "json")
    assert [(row["partition"], row["base_offset"]) for row in shown.objects] == [
        (0, 0),
        (0, 1),
    ]
    assert "2 segments of" in shown.err
    assert "would be deleted" in shown.err
    assert len(topic.ok("read", "t", "-o", "json").objects) == 4
    done = topic.ok("retain", "t", "-o", "json")
    assert done.objects == shown.objects
    assert [row["offset"] for row in topic.ok("read", "t", "-o", "json").objects] == [2, 3]
    assert topic.ok("retain", "-o", "json").objects == []


def test_a_narrow_table_has_a_line_for_each_segment_and_ages_with_units(topic: Cli) -> None:
    topic.variables["COLUMNS"] = "80"
    lines = topic.ok("retain", "--dry-run", "--show", "segments").out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("t ")] == ["t", "t"]
    shown = topic.ok("retain", "--dry-run", "-o", "json").objects
    reasons = [row["reason"] for row in shown]
    assert reasons == [
        f"largest record timestamp is {age} old, over retention.ms={DAY}" for age in ("3d", "2d")
    ]


def test_retain_prints_a_line_for_each_partition(topic: Cli) -> None:
    verdict, heading, *rows, _ = topic.ok("retain", "--dry-run").out.splitlines()
    assert verdict.startswith("2 segments of ")
    assert verdict.endswith(" would be deleted")
    names = ["TOPIC", "PARTITION", "SEGMENTS", "FIRST OFFSET", "LAST OFFSET", "SIZE", "RULES"]
    assert heading.split() == " ".join(names).split()
    assert [row.split()[:5] for row in rows] == [["t", "0", "2", "0", "1"]]
    segments = topic.ok("retain", "--dry-run", "--show", "segments").out
    assert segments.count("retention.ms=") == 2
    topic.ok("retain")
    assert topic.ok("retain").out == "0 segments deleted\n"


def test_a_dry_run_without_expired_segments_says_what_comes_next(cli: Cli) -> None:
    cli.ok("create", "aged", "-p", "2", "-c", f"retention.ms={DAY}", "-c", "segment.ms=1")
    cli.ok("create", "compacted", "-c", "cleanup.policy=compact")
    cli.ok("create", "empty", "-c", f"retention.ms={DAY}")
    cli.ok("create", "kept", "-c", "retention.ms=-1")
    cli.ok("create", "sized", "-c", "retention.ms=-1", "-c", "retention.bytes=1000")
    cli.ok("create", "unset")
    for topic in ("compacted", "kept", "sized", "unset"):
        cli.append(at(NOW, key=b"k"), topic=topic)
    cli.append(at(NOW), topic="aged", partition=1)
    cli.clock.advance(1_000)
    for partition in (0, 1):
        cli.append(at(cli.clock.now_ms()), topic="aged", partition=partition)
    cli.variables["COLUMNS"] = "200"
    lines = cli.ok("retain", "--dry-run").lines
    after_roll = "are appended after the roll of this segment"
    assert lines == [
        "0 segments would be deleted",
        "aged: 3 segments; next: offsets 0..0 of aged:1 after 2023-11-15 22:13:20 (UTC)",
        "compacted: compacted; retention.ms is not used",
        "empty: no records",
        "kept: 1 segment, kept forever (retention.ms=-1)",
        f"sized: 1 segment; next: offsets 0..0 of sized:0 by size once 1 kB more {after_roll}",
        "unset: 1 segment, kept forever (no known age limit)",
    ]
    assert cli.ok("retain", "kept", "--dry-run").lines == [lines[0], lines[4]]
    assert cli.ok("retain", "kept").lines == ["0 segments deleted"]
    assert cli.ok("retain", "--dry-run", "-o", "json").out == ""
    zoned = cli.ok("retain", "aged", "--dry-run", "--zone", "Asia/Tokyo").lines[1]
    assert zoned.endswith(" after 2023-11-16 07:13:20 (Asia/Tokyo)")
    assert cli.run("retain", "--dry-run", "--zone", "Mars").code == 3


def test_a_dry_run_says_what_comes_after_the_expired_segments(topic: Cli) -> None:
    topic.variables["COLUMNS"] = "200"
    line = "t: 2 other segments; next: offsets 2..2 of t:0 after 2023-11-17 22:13:20 (UTC)"
    assert topic.ok("retain", "--dry-run").lines[-1] == line
    topic.clock.advance(5 * DAY)
    assert topic.ok("retain", "--dry-run").lines[-1] == "t: no other records"


def test_a_dry_run_counts_from_the_times_of_the_segment_that_remains(cli: Cli) -> None:
    """`retention.bytes` deletes the first segment now, so its later time keeps no other segment."""
    limits = (f"retention.ms={DAY}", "retention.bytes=1", "internal.segment.bytes=100")
    cli.ok("create", "t", *(text for one in limits for text in ("-c", one)))
    cli.append(at(NOW), topic="t")
    cli.clock.advance(1_000)
    cli.append(at(NOW - 1_000), topic="t")
    cli.variables["COLUMNS"] = "200"
    _, _, row, line = cli.ok("retain", "--dry-run").lines
    assert row.split()[:5] == ["t", "0", "1", "0", "0"]
    assert line == (
        "t: 1 other segment; next: offsets 1..1 of t:0 after 2023-11-15 22:13:19 (UTC); offsets"
        " 1..1 of t:0 by size once 1 B more are appended after the roll of this segment"
    )


def test_one_note_names_the_topics_without_a_known_age_limit(cli: Cli) -> None:
    cli.ok("create", "t0")
    note = "of its own, and no broker's default is known: nothing is deleted by age; `tidelog"
    assert cli.ok("retain").err.startswith(f"note: t0 has no retention.ms {note} config t0 --data ")
    for number in range(1, 6):
        cli.ok("create", f"t{number}")
    (line,) = cli.ok("retain").err.splitlines()
    named = "6 topics have no retention.ms of their own (t0, t1, t2, t3, t4, ...)"
    assert line.startswith(f"note: {named}, and no broker's default is known: their segments are ")
    assert "`tidelog config TOPIC --data " in line


def test_a_dry_run_leaves_internal_topics_out(cli: Cli) -> None:
    for name in ("__consumer_offsets", "flights"):
        cli.ok("create", name)
    assert cli.ok("retain", "--dry-run").lines[1:] == ["flights: no records"]
    assert cli.ok("retain", "--dry-run", "__consumer_offsets").lines[1:] == [
        "__consumer_offsets: no records"
    ]


def test_a_dry_run_names_only_offsets_that_can_be_read(cli: Cli) -> None:
    cli.ok("create", "t", "-c", "retention.ms=1d")
    cli.append(*[at(NOW)] * 5, topic="t")
    cli.ok("delete-records", "t:0", "--offset", "3", "--yes")
    assert "next: offsets 3..4 of t:0 after " in cli.ok("retain", "--dry-run").lines[-1]
    cli.ok("delete-records", "t:0", "--offset", "5", "--yes")
    assert cli.ok("retain", "--dry-run").lines[-1] == "t: no records"


@pytest.mark.parametrize("clock", ["append", "record-capped"])
def test_a_plan_considers_the_former_rounding_of_append_times(cli: Cli, clock: str) -> None:
    """Stored append times were rounded down, so records may have arrived later.

    After the appends, the topic's granularity was reduced. The plan must use the old granularity.
    """
    rounding = "tidelog.append.time.granularity.ms"
    settings = (f"{rounding}=60000", "segment.ms=1", f"tidelog.retention.clock={clock}")
    cli.ok("create", "t", *(text for one in settings for text in ("--config", one)))
    cli.clock.set(NOW // 60_000 * 60_000 + 50_000)
    for _ in range(2):
        cli.append(at(cli.clock.now_ms() + 60_000), topic="t")
        cli.clock.advance(DAY)
    cli.ok("config", "t", "--set", f"{rounding}=1", "--set", f"retention.ms={2 * DAY + 10_000}")
    (first, *_) = cli.ok("why", "t", "-o", "json").objects
    planned = cli.ok("retain", "t", "--dry-run", "-o", "json").objects
    assert cli.ok("retain", "t", "-o", "json").objects == planned == []
    assert first["due"] is None
    cli.clock.advance(10_001)
    (planned_row,) = cli.ok("retain", "t", "--dry-run", "-o", "json").objects
    assert cli.ok("retain", "t", "-o", "json").objects == [planned_row]


def test_retain_asks_for_confirmation_on_a_terminal(topic: Cli) -> None:
    topic.asked = True
    for answer, line_break in ((b"\n", ""), (b"n\n", ""), (b"", "\n")):
        result = topic.ok("retain", stdin=answer)
        assert result.err.startswith("delete 2 segments of ")
        end = f"? [y/N] {line_break}nothing was deleted; --dry-run shows the segments\n"
        assert result.err.endswith(end)
        assert result.out == ""
    assert len(topic.ok("retain", "--dry-run", "-o", "json").objects) == 2
    assert "2 segments of" in topic.ok("retain", stdin=b"y\n").out
    assert "[y/N]" not in topic.ok("retain").err, "there is nothing to delete"


class SlowAnswers(TerminalInput):
    """Terminal input that calls `wait` before each answer, and ends with Ctrl-C."""

    def __init__(self, answers: bytes, wait: Callable[[], None]) -> None:
        super().__init__(answers)
        self._wait = wait

    def readline(self, size: int | None = -1, /) -> bytes:
        self._wait()
        answer = super().readline(size)
        if not answer:
            raise KeyboardInterrupt
        return answer


def test_segments_that_expire_during_the_question_need_a_confirmation_too(topic: Cli) -> None:
    later_ms = topic.clock.now_ms() + DAY

    def answered(answers: bytes) -> tuple[int, list[str]]:
        stdin, err = SlowAnswers(answers, lambda: topic.clock.set(later_ms)), io.StringIO()
        surroundings = Surroundings(env=topic.env, stdin=stdin, stdout=io.StringIO(), stderr=err)
        code = run(["retain", "--data", str(topic.data)], surroundings)
        return code, [part.split(" of ")[0] for part in err.getvalue().split("? [y/N] ")]

    questions = ["delete 2 segments", "delete 3 segments"]
    assert answered(b"y\n") == (130, [*questions, "interrupted; nothing was deleted\n"])
    assert answered(b"y\n") == (0, [questions[1], ""])
    assert [row["offset"] for row in topic.ok("read", "t", "-o", "json").objects] == [3]


def test_retain_with_yes_asks_no_question(topic: Cli) -> None:
    topic.asked = True
    assert topic.ok("retain", "--yes").err == ""
    assert topic.ok("retain", "--dry-run", "-o", "json").objects == []


def test_the_library_does_the_same(topic: Cli) -> None:
    with tidelog.open(str(topic.data), env=topic.env) as directory:
        due = directory.retain(dry_run=True)
        assert [one.end_offset for one in due] == [1, 2]
    with tidelog.open(str(topic.data), env=topic.env, writable=True) as directory:
        assert directory.retain("t") == due
        assert directory.retain("t") == []


def test_the_output_of_why_names_retain(topic: Cli) -> None:
    assert "`tidelog retain`" in topic.ok("why", "t").out


def test_the_output_of_why_has_the_deleted_offsets(topic: Cli) -> None:
    assert "offsets 0.." not in topic.ok("why", "t").out
    hint = "offsets before START were deleted; `tidelog why t` names the rule"
    assert hint not in topic.ok("describe", "t").lines
    topic.ok("retain", "t")
    assert hint in topic.ok("describe", "t").lines
    verdict, *lines = topic.ok("why", "t").lines
    by = "deleted by retention.ms=86400000 (1d)"
    assert verdict.startswith(f"offsets 0 to 1 were {by} at 2023-11-17 22:13:20; t has 2 segments")
    clock, newest = "tidelog.retention.clock=record-capped", "newest timestamp 2023-11-15 22:13:20"
    assert f"  offsets 0..1 were {by}, {clock} at 2023-11-17 22:13:20 ({newest})" in lines
    (topic.data / "t-0" / "deletion-history").unlink()
    assert (
        topic.ok("why", "t")
        .lines[0]
        .startswith("2 offsets were deleted by a rule that is not recorded; t has 2 segments")
    )
    gone = "offsets 0..1 were deleted by retention or delete-records; which of the two, when, and"
    assert gone in topic.ok("why", "t").out


def test_the_output_of_why_names_delete_records_where_the_files_still_exist(cli: Cli) -> None:
    cli.ok("create", "t", "--config", "internal.segment.bytes=300")
    for _ in range(12):
        cli.append(*[at(NOW)] * 2, topic="t")
    bases = [one["base_offset"] for one in cli.ok("why", "t", "-o", "json").objects]
    assert bases[:3] == [0, 6, 12]
    cli.variables["COLUMNS"] = "200"

    def deleted() -> list[str]:
        (cli.data / "t-0" / "deletion-history").unlink(missing_ok=True)
        lines = cli.ok("why", "t").lines
        return [one.strip() for one in lines if one[:2] == "  " and " were deleted " in one]

    unsure = ", or by retention that has not yet removed their files"
    for offset, rest in ((3, ""), (6, unsure), (8, "")):
        cli.ok("delete-records", "t:0", "--offset", str(offset), "--yes")
        assert deleted() == [f"offsets 0..{offset - 1} were deleted by delete-records{rest}"]
    cli.ok("retain", "t")
    unknown = "which of the two, when, and the times of these records are not recorded"
    assert deleted() == [
        f"offsets 0..5 were deleted by retention or delete-records; {unknown}",
        "offsets 6..7 were deleted by delete-records",
    ]


def test_a_segment_below_the_log_start_keeps_its_append_times(cli: Cli) -> None:
    cli.ok("create", "t", "--config", "segment.ms=1", "--config", "retention.ms=-1")
    for _ in range(3):
        cli.append(at(cli.clock.now_ms()), topic="t")
        cli.clock.advance(DAY)

    def append_times() -> list[str]:
        return [line for line in cli.ok("why", "t").lines if "append times" in line]

    before = append_times()
    assert len(before) == 3
    assert "first 20" in before[0]
    cli.ok("delete-records", "t:0", "--before", "now", "--yes")
    assert append_times() == before


def test_why_begins_with_the_number_of_offsets_that_each_rule_deleted(cli: Cli) -> None:
    cli.ok("create", "t", "--config", "segment.ms=1", "--config", f"retention.ms={3 * DAY}")
    for _ in range(6):
        cli.append(at(cli.clock.now_ms()), topic="t")
        cli.clock.advance(DAY)
    cli.ok("retain", "t", "--yes")
    start = cli.ok("offsets", "t", "--at", "earliest", "-o", "json").objects[0]["offset"]
    assert isinstance(start, int)
    assert cli.ok("why", "t").lines[0].startswith(f"offsets 0 to {start - 1} were deleted by reten")
    cli.ok("delete-records", "t:0", "--offset", "5", "--yes")
    rules = f"{start} by retention.ms, {5 - start} by delete-records"
    verdict = cli.ok("why", "t").lines[0]
    assert verdict.startswith(f"5 offsets were deleted ({rules}), the last, offset"), verdict
    assert "by delete-records at " in verdict
    history = cli.data / "t-0" / "deletion-history"
    lines = history.read_text().splitlines(keepends=True)
    history.write_text("".join(line for line in lines if "retention.ms" not in line))
    rules = f"{start} by a rule that is not recorded, {5 - start} by delete-records"
    assert f"5 offsets were deleted ({rules}), the last" in cli.ok("why", "t").lines[0]
    history.write_text("7\nof a later release\n")
    later = "deletion history of version 7; this release reads up to version 0"
    shown = cli.ok("why", "t:0").lines
    assert any(line.strip() == later for line in shown), shown
    assert not any("damaged" in line for line in shown)


def test_the_topic_view_of_why_has_one_line_on_deleted_offsets(cli: Cli) -> None:
    cli.ok("create", "t", "--partitions", "3", "--config", "segment.ms=1")
    for partition in range(3):
        for _ in range(3):
            cli.append(at(cli.clock.now_ms()), topic="t", partition=partition)
            cli.clock.advance(DAY)
    cli.ok("delete-records", "t:0", "--offset", "2", "--yes")
    cli.ok("delete-records", "t:2", "--offset", "1", "--yes")
    verdict, _, _, *lines = cli.ok("why", "t").lines
    by = "by delete-records at 2023-11-23 22:13:20"
    assert verdict.startswith(f"3 offsets were deleted, the last, offsets 0 to 1 of t:0, {by}; t ")
    assert lines[0] == "offsets deleted by delete-records: t:0 0..1, t:2 0..0"
    assert "--show deletions each deletion" in cli.ok("why", "t").err
    rows = cli.ok("why", "t", "--show", "deletions", "-o", "json").objects
    assert [(row["partition"], row["first_offset"], row["end_offset"]) for row in rows] == [
        (0, 0, 2),
        (2, 0, 1),
    ]
    for partition in (0, 2):
        (cli.data / f"t-{partition}" / "deletion-history").unlink()
    rule = "delete-records, or by retention that has not yet removed their files"
    line = f"offsets deleted by {rule}: t:0 0..1, t:2 0..0"
    assert line in cli.ok("why", "t").lines
    cli.ok("retain", "t")
    line = "offsets deleted by retention or delete-records: t:0 0..1, t:2 0..0; which of the two,"
    assert line in " ".join(cli.ok("why", "t").out.split())


def test_no_segment_is_deleted_by_age_without_retention_ms(cli: Cli) -> None:
    cli.ok("create", "t", "--config", "segment.ms=1")
    cli.append(at(NOW), topic="t")
    cli.clock.advance(30 * DAY)
    cli.append(at(cli.clock.now_ms()), topic="t")
    result = cli.ok("retain", "-o", "json")
    assert result.objects == []
    assert "t has no retention.ms of its own" in result.err


def test_no_note_on_a_topic_that_is_only_compacted(cli: Cli) -> None:
    cli.ok("create", "c", "--config", "cleanup.policy=compact")
    assert cli.ok("retain").err == ""
    cli.ok("create", "b", "--config", "cleanup.policy=compact,delete")
    assert [line.split()[1] for line in cli.ok("retain").err.splitlines()] == ["b"]


@pytest.mark.parametrize(
    ("setting", "is_told"),
    [
        (f"retention.ms={DAY}", True),
        ("retention.ms=-1", False),
        ("tidelog.retention.clock=append", False),
        ("message.timestamp.type=LogAppendTime", False),
        ("cleanup.policy=compact", False),
    ],
)
def test_produce_reports_rows_that_retention_will_delete(
    cli: Cli, setting: str, is_told: bool
) -> None:
    cli.ok("create", "t", "--config", setting)
    rows = cli.data.parent / "rows.csv"
    rows.write_text(f"key,value,at\na,1,{NOW - 2 * DAY}\na,2,{NOW}\na,3,{NOW - 30 * DAY}\n")
    arguments = ("--key", "key", "--value", "value", "--time", "at")
    result = cli.ok("produce", "t", "--from", str(rows), *arguments)
    count = 2 if setting.startswith("retention.ms") else 1
    records = f"{count} appended records are" if count > 1 else "1 appended record is"
    assert (f"note: {records} older than" in result.err) is is_told


def test_produce_reports_if_only_a_broker_would_delete_rows(cli: Cli) -> None:
    """Without `retention.ms`, only a broker deletes rows, because it has a default retention."""
    cli.ok("create", "t")
    old = ("produce", "t", "--value", "x", "--time", str(NOW - 30 * DAY))
    said = cli.ok(*old).err
    assert "a broker that serves the directory may delete it with its segment" in said
    cli.ok("config", "t", "--set", f"retention.ms={DAY}")
    assert "the topic's retention.ms: retention deletes it with its segment" in cli.ok(*old).err


def test_config_notes_segments_that_the_new_retention_would_delete(topic: Cli) -> None:
    assert topic.ok("config", "t", "--set", "retention.ms=30d").err == ""
    (note,) = topic.ok("config", "t", "--set", f"retention.ms={DAY}").err.splitlines()
    assert note.startswith("note: retention would now delete 2 segments of ")
    assert topic.ok("config", "t", "--set", "compression.type=zstd").err == ""
    assert "would now delete" in topic.ok("config", "t", "--set", "log.retention.hours=1").err
    assert note.endswith(f"(`tidelog retain t --data {topic.data} --dry-run` shows them)")
    assert topic.ok("config", "t").err == ""
