"""Representations of public objects in a REPL and a notebook: short, escaped, with both times."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.pages import Balanced

from tidelog.directory import Directory
from tidelog.display import LINES_SHOWN, Offsets
from tidelog.env import Env, ManualClock
from tidelog.frames import PARTITIONS_SIZED
from tidelog.keyed import Table
from tidelog.scan.count import Count, PartitionCount
from tidelog.types import (
    ClockName,
    NewRecord,
    OffsetAndTimestamp,
    RecordCount,
    TopicPartition,
)

NOON = 1_360_342_800_000  # 2013-02-08 17:00 UTC
MINUTE = 60_000
HOSTILE = b"<b>\x1b[2J\xe2\x80\xae"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Directory]:
    clock = ManualClock(NOON + 5 * MINUTE)
    with Directory.open(tmp_path / "data", writable=True, env=Env(clock=clock)) as directory:
        directory.create_topic("flights", partitions=2, config={"retention.ms": "-1"})
        directory.create_topic("planes", config={"cleanup.policy": "compact"})
        rows = [
            NewRecord(key=HOSTILE, value=b"\xff\xfe", timestamp=NOON),
            NewRecord(key=b"", value=None, timestamp=NOON + 1),
        ]
        directory.append("flights", rows, partition=0)
        directory.append("planes", rows[:1])
        yield directory


def html(shown: object) -> str:
    """Return the notebook's HTML; check that it is well-formed and escapes all record data."""
    text: str = shown._repr_html_()  # type: ignore[attr-defined] # all have it
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "<b>\\x1b" not in text
    assert text.isprintable()
    return text


class TestTexts:
    def test_the_text_of_a_directory_has_mode_topics_and_size(self, log: Directory) -> None:
        assert repr(log) == f"Directory({log.path!r}, writable, 2 topics, 167 B)"
        with Directory.open(log.path) as reader:
            assert "read only, 2 topics, 167 B)" in repr(reader)

    def test_a_directory_of_many_partitions_is_not_opened_for_its_size(
        self, log: Directory
    ) -> None:
        log.create_topic("wide", partitions=PARTITIONS_SIZED)
        assert repr(log).endswith("writable, 3 topics)")

    def test_topics_are_a_line_each(self, log: Directory) -> None:
        assert repr(log.topics()).splitlines() == [
            "2 topics",
            "  flights  2 partitions, retention.ms=-1",
            "  planes   1 partition, cleanup.policy=compact",
        ]
        assert repr(log.topic("planes")) == (
            "TopicInfo('planes', 1 partition, cleanup.policy=compact)"
        )

    def test_many_topics_are_cut(self, log: Directory) -> None:
        for number in range(LINES_SHOWN):
            log.create_topic(f"t{number}")
        assert repr(log.topics()).splitlines()[-1] == "  and 2 more"
        assert "and 2 more" in html(log.topics())

    def test_offsets_are_a_line_each_on_their_clock(self, log: Directory) -> None:
        found = log.offsets_at("flights", NOON, clock="append")
        assert repr(found).splitlines() == [
            "2 partitions, append clock, times in UTC",
            "  flights-0  offset 0 at 2013-02-08 17:05:00",
            "  flights-1  no record at or after this time",
        ]
        assert found == log.offsets_for_times(dict.fromkeys(found, NOON), clock="append")
        again = copy.deepcopy(found)
        assert isinstance(again, Offsets)
        assert (again, again.clock) == (found, ClockName.APPEND)
        assert "no record at or after this time" in html(found)

    def test_offsets_tell_of_records_without_an_append_time(self) -> None:
        place = TopicPartition("t", 0)
        for unknown, words in (
            (3, "3 earlier records without a known append time"),
            (None, "append times of earlier records may be unknown"),
        ):
            found = Offsets({place: OffsetAndTimestamp(5, NOON, None, unknown)}, ClockName.APPEND)
            assert words in repr(found)
            assert words in html(found)

    def test_a_count_is_its_number_unless_records_have_no_time(self) -> None:
        assert f"{RecordCount(7)} {RecordCount(7)!r}" == "7 7"
        partial = RecordCount(7, without_time=2, is_least=True)
        assert repr(partial) == "RecordCount(7, without_time=2, is_least=True)"
        assert f"{partial}" == "7"

    @pytest.mark.parametrize(
        ("without_time", "is_least", "text"),
        [
            (2, False, "7 records in 1 partition, and 2 records without a time on the clock"),
            (
                2,
                True,
                "7 records in 1 partition, and at least 2 records without a time on the clock",
            ),
            (0, True, "7 records in 1 partition"),
            (None, False, "7 records in 1 partition"),
        ],
    )
    def test_counts_mark_a_lower_bound_of_the_records_without_a_time(
        self, without_time: int | None, is_least: bool, text: str
    ) -> None:
        one = PartitionCount(
            records=7,
            without_time=without_time,
            from_zone_maps=0,
            log_bytes=0,
            sidecar_bytes=0,
            is_least=is_least,
        )
        count = Count(partitions={TopicPartition("t", 0): one})
        assert repr(count) == f"Count({text})"
        assert text in html(count)

    def test_plans_counts_scans_and_tables(self, log: Directory) -> None:
        scan = log.scan("flights", start=NOON)
        assert repr(scan).endswith(", flights, timestamp 2013-02-08 17:00:00 to open UTC)")
        assert repr(scan.plan()).startswith("ScanPlan(1 split, 2 partitions, ")
        assert repr(scan.counts()) == "Count(2 records in 2 partitions)"
        assert repr(log.table("planes", at=NOON)).endswith(
            "planes as of 2013-02-08 17:00:00 UTC, record clock)"
        )
        assert repr(log.diff("planes", NOON)).endswith(
            "planes from 2013-02-08 17:00:00 to now, UTC, record clock)"
        )


class TestNotebook:
    def test_records_show_both_times_and_no_column_of_one_value(self, log: Directory) -> None:
        text = html(log.scan("flights"))
        assert "<th>timestamp (UTC)</th><th>appendTimestamp (UTC)</th><th>key</th>" in text
        assert "<td>2013-02-08 17:00:00</td><td>2013-02-08 17:05:00</td>" in text
        assert "timestampType" not in text
        assert "<th>topic</th>" not in text
        assert "all shown are in flights-0" in text
        assert log.scan("flights").to_polars().columns[-1] == "appendTimestamp"
        assert log.scan("flights").to_table().column_names == log.scan("flights").schema.names

    def test_columns_that_were_requested_stay(self, log: Directory) -> None:
        text = html(log.scan("flights", columns=["topic", "value"]))
        assert "<th>topic</th><th>value</th>" in text
        assert "timestamp" not in text

    def test_records_of_several_topics_name_them(self, log: Directory) -> None:
        assert "<th>topic</th>" in html(log.scan())

    def test_bytes_and_control_characters_are_as_in_the_terminal(self, log: Directory) -> None:
        text = html(log.scan("flights"))
        assert "&lt;b&gt;\\x1b[2J\\u202e" in text
        assert "base64" in text
        assert "(empty)" in text
        assert "<td>-</td>" in text

    def test_append_times_that_no_record_has_are_a_note(self, log: Directory) -> None:
        for file in Path(log.path).glob("flights-*/*.appendtime"):
            file.unlink()
        with Directory.open(log.path) as reader:
            text = html(reader.scan("flights"))
        assert "append times unknown" in text
        assert "appendTimestamp" not in text

    def test_a_table_and_a_diff_show_rows(self, log: Directory) -> None:
        assert "first 1 row" in html(log.table("planes"))
        assert "added" in html(log.diff("planes", NOON - 1))
        assert "no topic" in html(log.table("nothing"))

    def test_the_text_of_a_large_table_reads_no_records(
        self, log: Directory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read(*_: object, **__: object) -> None:
            raise AssertionError("read")

        monkeypatch.setattr("tidelog.keyed.PICTURE_BYTES_MAX", 1)
        monkeypatch.setattr(Table, "to_arrow", read)
        assert "would have to be read; call to_polars()" in html(log.table("planes"))

    def test_directory_topic_plan_and_count(self, log: Directory) -> None:
        assert "retention.ms=-1" in html(log)
        assert "Topic planes" in html(log.topic("planes"))
        assert "Plan of 1 split<" in html(log.scan("flights").plan())
        assert "2 records in 2 partitions" in html(log.scan("flights").counts())

    def test_a_time_outside_the_calendar_is_shown(self, log: Directory) -> None:
        log.alter_config("planes", {"message.timestamp.after.max.ms": str(2**63 - 1)})
        log.append("planes", [NewRecord(key=b"k", timestamp=2**62)])
        assert f"{2**62} ms" in html(log.scan("planes"))
