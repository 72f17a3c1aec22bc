"""The file `deletion-history`: its format, its bound, its events, and its damage."""

from contextlib import suppress

import pytest
from tests.faults import Fault, FaultKind, SeededEnv
from tests.worlds.directories.logs import (
    DAY_MS,
    PATH,
    SMALL,
    TOPIC,
    bases,
    fill,
    names,
    new_log,
    path_of,
    put,
    read,
    reader_of,
    reopen,
    write,
)

from tidelog.config import TopicConfig
from tidelog.errors import CorruptFile, StorageFailure, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage.checks.directory_check import DirectoryCheck
from tidelog.storage.directory.topic_retention import PartitionStory, deletion_text, explain
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.deletion_history import (
    DELETION_HISTORY_FILE,
    EVENTS_MAX,
    DeletionEvent,
    StartRule,
    decode_events,
    encode_events,
    joined,
    read_deletions,
)

FIRST = DeletionEvent(1_000, 1_000, "time", "retention.ms=5", 0, 42, 900)
SECOND = DeletionEvent(2_000, 2_000, "delete-records", "-", 42, 50)
AGE = f"retention.ms={DAY_MS},tidelog.retention.clock=record"


def events(env: SeededEnv) -> list[DeletionEvent]:
    found, problems = read_deletions(env.files, f"{PATH}/{TOPIC}-0")
    assert problems == []
    return found


def story(env: SeededEnv) -> PartitionStory:
    return explain(reader_of(env), TopicConfig())


class TestFormat:
    def test_the_bytes_of_a_file(self) -> None:
        line = "1000 1000 time retention.ms=5 0 42 900"
        expected = f"0\n{line} {crc32c(line.encode()):08x}\n".encode()
        assert encode_events([FIRST]) == expected
        assert decode_events(encode_events([FIRST, SECOND])) == ([FIRST, SECOND], [])

    @pytest.mark.parametrize("cut", range(1, len(encode_events([SECOND])) - 2))
    def test_a_torn_line_is_left_out(self, cut: int) -> None:
        found, problems = decode_events(encode_events([FIRST, SECOND])[:-cut])
        assert found == [FIRST]
        assert problems == ["line 3: no line end"]

    def test_a_changed_bit_costs_one_line(self) -> None:
        data = encode_events([FIRST, SECOND])
        for at in range(2, len(encode_events([FIRST])) - 1):
            flipped = bytearray(data)
            flipped[at] ^= 1
            found, problems = decode_events(flipped)
            assert FIRST not in found
            assert SECOND in found
            assert problems

    @pytest.mark.parametrize(
        "event",
        [
            FIRST._replace(start_offset=-1),
            FIRST._replace(end_offset=0),
            FIRST._replace(rule="\x1b[31m"),
            FIRST._replace(settings="a b"),
        ],
    )
    def test_a_line_that_no_writer_writes_is_left_out(self, event: DeletionEvent) -> None:
        found, problems = decode_events(encode_events([event, SECOND]))
        assert found == [SECOND]
        assert len(problems) == 1
        assert problems[0].isprintable()

    @pytest.mark.parametrize("data", [b"", b"7", b"07\n", b"0", b"\xff\xfe nothing of ours"])
    def test_another_version_is_refused(self, data: bytes) -> None:
        with pytest.raises(CorruptFile, match="of the deletion history, 0 expected"):
            decode_events(data)

    def test_a_file_of_a_later_release_is_not_damaged(self) -> None:
        text = "deletion history of version 7; this release reads up to version 0"
        with pytest.raises(UnsupportedVersion, match=text):
            decode_events(b"7\n1 2 3\n")

    def test_only_events_that_continue_each_other_are_joined(self) -> None:
        later = FIRST._replace(first_ms=3_000, last_ms=3_000, start_offset=42, end_offset=60)
        whole = FIRST._replace(last_ms=3_000, end_offset=60)
        assert joined([FIRST, later]) == [whole]
        unknown = later._replace(largest_timestamp=-1)
        assert joined([FIRST, unknown]) == [whole._replace(largest_timestamp=-1)]
        for other in (
            SECOND,
            later._replace(settings="retention.ms=6"),
            later._replace(start_offset=43),
        ):
            assert joined([FIRST, other]) == [FIRST, other]


class TestEvents:
    def test_one_run_has_one_event_for_each_rule(self) -> None:
        config = {"tidelog.retention.clock": "record", "retention.ms": str(DAY_MS)}
        env, directory, log = new_log(SMALL | config | {"segment.ms": "1"})
        now_ms = env.clock.now_ms()
        for age in (5, 4, 3, 2, 0):
            put(log, now_ms - age * DAY_MS, value=b"v" * 400)
        sizes = [segment.size_bytes for segment in log.segments]
        assert len(sizes) == 5
        directory.alter_config(TOPIC, {"retention.bytes": str(sum(sizes[2:]))})
        assert len(log.apply_retention()) == 4
        assert events(env) == [
            DeletionEvent(
                *(now_ms, now_ms, "size", f"retention.bytes={sum(sizes[2:])}"),
                *(0, 2, now_ms - 4 * DAY_MS),
            ),
            DeletionEvent(now_ms, now_ms, "time", AGE, 2, 4, now_ms - 2 * DAY_MS),
        ]
        (_, _, size), (_, _, age_event) = story(env).deleted_ranges
        assert size is not None
        assert age_event is not None
        assert deletion_text(age_event, None) == (
            f"retention.ms={DAY_MS} (1d), tidelog.retention.clock=record at 2013-02-08 17:00:00"
            " (newest timestamp 2013-02-06 17:00:00)"
        )

    def test_the_append_clock_is_named(self) -> None:
        config = {"tidelog.retention.clock": "append", "retention.ms": str(DAY_MS)}
        env, _, log = new_log(config)
        put(log, env.clock.now_ms() + 5 * DAY_MS)
        first_ms = env.clock.now_ms() + 5 * DAY_MS
        env.clock.advance(2 * DAY_MS)
        log.apply_retention()
        (event,) = events(env)
        assert event.settings == f"retention.ms={DAY_MS},tidelog.retention.clock=append"
        assert (event.start_offset, event.end_offset) == (0, 1)
        assert event.largest_timestamp == first_ms

    def test_deleted_records_are_recorded_once(self) -> None:
        env, _, log = new_log(SMALL)
        fill(log, 30)
        second = bases(log)[1]
        log.delete_records(second + 1)
        now_ms = env.clock.now_ms()
        expected = [DeletionEvent(now_ms, now_ms, StartRule.DELETE_RECORDS, "-", 0, second + 1)]
        assert events(env) == expected
        log.delete_records(second)
        log.apply_retention()  # deletes the first segment's files
        assert bases(log)[0] == second
        assert events(env) == expected
        log.advance_start(second + 2, StartRule.TIER_DISABLED)
        assert events(env)[1:] == [
            DeletionEvent(
                *(now_ms, now_ms, "tier-disabled", "remote.log.delete.on.disable=true"),
                *(second + 1, second + 2),
            )
        ]

    def test_a_run_that_deletes_nothing_writes_nothing(self) -> None:
        env, _, log = new_log(SMALL)
        fill(log, 30)
        log.apply_retention()
        assert DELETION_HISTORY_FILE not in names(env)

    def test_many_events_stay_within_the_bound(self) -> None:
        env, _, log = new_log()
        put(log, *range(1, 1_001))
        start_ms = env.clock.now_ms()
        for offset in range(1, 1_001):
            env.clock.advance(1_000)
            log.delete_records(offset)
            assert len(events(env)) <= EVENTS_MAX
        last_ms = env.clock.now_ms()
        assert joined(events(env)) == [
            DeletionEvent(start_ms + 1_000, last_ms, StartRule.DELETE_RECORDS, "-", 0, 1_000)
        ]
        assert len(events(env)) > EVENTS_MAX // 2

    def test_many_events_of_different_rules_lose_the_oldest(self) -> None:
        env, _, log = new_log()
        put(log, *range(1, 201))
        for offset in range(1, 201):
            rule = StartRule.COPY if offset % 2 else StartRule.DELETE_RECORDS
            log.advance_start(offset, rule)
        assert [event.end_offset for event in events(env)] == [*range(201 - EVENTS_MAX, 201)]
        start, end, event = story(env).deleted_ranges[0]
        assert (start, end, event) == (0, 200 - EVENTS_MAX, None)

    def test_a_copy_begins_after_the_deletions_of_its_leader(self) -> None:
        env, _, log = new_log()
        log.truncator.begin_at(100)
        now_ms = env.clock.now_ms()
        copy = DeletionEvent(now_ms, now_ms, StartRule.COPY, "-", 0, 100)
        assert events(env) == [copy]
        ((_, _, found),) = story(env).deleted_ranges
        assert found == copy
        assert deletion_text(copy, None) == (
            "the leader (found when copying) at 2013-02-08 17:00:00"
        )
        log.truncator.begin_at(40)
        assert story(env).deleted_ranges == [(0, 40, copy._replace(end_offset=40))]
        put(log, 1, 2, 3)
        log.delete_records(42)
        assert [event[2:] for event in events(env)] == [
            (StartRule.COPY, "-", 0, 40, -1),
            (StartRule.DELETE_RECORDS, "-", 40, 42, -1),
        ]


class TestDamage:
    def test_a_file_of_a_later_release_is_reported_and_left(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        env, directory, log = new_log()
        put(log, 1, 2, 3)
        log.delete_records(1)
        directory.close()
        write(env, DELETION_HISTORY_FILE, later := b"7\n1 2 3\n")
        text = "deletion history of version 7; this release reads up to version 0"
        assert story(env).deletion_problems == [text]
        check = DirectoryCheck(env.files, PATH, clock=env.clock)
        check.load()
        (finding,) = check.findings()
        assert (finding.damage, finding.remedy) == (text, "use the release that wrote it")
        directory, log = reopen(env)
        log.delete_records(2)
        assert log.log_start_offset == 2
        assert any("can't record the deletion" in line for line in caplog.messages)
        assert read(env, DELETION_HISTORY_FILE) == later

    @pytest.mark.parametrize("data", [b"\0\1", b"", b"x\n1 2 3\n", b"0" + b"\n" * 2**17])
    def test_an_unreadable_file_makes_the_deletions_unknown(self, data: bytes) -> None:
        env, directory, log = new_log()
        put(log, 1, 2, 3)
        log.delete_records(1)
        directory.close()
        write(env, DELETION_HISTORY_FILE, data)
        explained = story(env)
        assert explained.deleted_ranges == [(0, 1, None)]
        assert len(explained.deletion_problems) == 1
        check = DirectoryCheck(env.files, PATH, clock=env.clock)
        check.load()
        (finding,) = check.findings()
        assert finding.path == path_of(DELETION_HISTORY_FILE)
        assert finding.remedy == "which rules deleted earlier offsets is unknown"
        directory, log = reopen(env)
        assert directory.reports == []
        log.delete_records(2)
        assert [event[4:6] for event in events(env)] == [(1, 2)]

    def test_segments_that_cannot_be_read_are_deleted(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 30)
        directory.alter_config(TOPIC, {"retention.bytes": "700"})

        def unreadable(_segment: object) -> tuple[int, int]:
            raise StorageFailure("t", "read", "bad sector")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClosedSegment, "largest_record", unreadable)
            assert log.apply_retention()
        (event,) = events(env)
        assert (event.rule, event.largest_timestamp) == ("size", -1)
        assert caplog.text == ""

    def test_a_failing_write_leaves_the_log_online(self, caplog: pytest.LogCaptureFixture) -> None:
        failed = set()
        for call in range(30):
            env, directory, log = new_log(SMALL)
            fill(log, 30)
            log.delete_records(1)
            directory.alter_config(TOPIC, {"retention.bytes": "700"})
            env.files.writes.fault = Fault(env.files.calls + call, FaultKind.EIO)
            with suppress(StorageFailure):
                log.apply_retention()
            env.files.writes.fault = None
            for _, operation, path in env.files.writes.failed:
                if DELETION_HISTORY_FILE in path:
                    failed.add(operation)
                    assert log.failure is None
                    assert bases(log)[0] > 0
                    assert [event.rule for event in events(env)] == ["delete-records"]
                    assert "can't record the deletion" in caplog.text
        assert failed >= {"write", "sync", "rename"}
