"""`count` and `latency`: ranges of time, by zone maps and by reading."""

from typing import NoReturn

import pytest
from tests.worlds.command_line import NOW, Cli, at

from tidelog.amounts import duration_text
from tidelog.errors import StorageFailure

HOUR = 3_600_000
ZURICH = ("--zone", "Europe/Zurich")
HOUR_START = NOW - NOW % HOUR


@pytest.fixture
def topic(cli: Cli) -> Cli:
    """Create two partitions; the first has 4 records in a finished segment and 2 later records."""
    cli.ok("create", "flights", "-p", "2", "--config", "internal.segment.bytes=300")
    cli.append(at(NOW - 10), at(NOW - 5_000), at(NOW + 7, value=None), at(NOW - 10))
    cli.clock.advance(HOUR)
    cli.append(at(NOW + HOUR - 100, value=b"x" * 150), at(NOW))
    return cli


def test_a_range_of_a_start_and_a_length_is_an_example_of_the_help(
    topic: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    topic.ok("count", "--help")
    text = capsys.readouterr().out
    assert "tidelog count flights --during 2013-02-08..+7d --zone America/New_York" in text
    assert "08Z..+7d)" in text
    result = topic.ok("count", "flights", "--during", "2023-11-14..+7d", *ZURICH, "-o", "json")
    assert sum(int(str(row["records"])) for row in result.objects) == 6


class TestCountBy:
    """NOW is 22:13:20 UTC on Tuesday, November 14, which is 23:13:20 in Zurich."""

    def test_hours_without_records_are_listed(self, topic: Cli) -> None:
        topic.clock.advance(2 * HOUR)
        topic.append(at(NOW + 3 * HOUR), topic="flights")
        found = topic.ok("count", "flights", "--by", "hour", "-o", "json").objects
        assert [(row["start_ms"], row["records"]) for row in found] == [
            (HOUR_START, 5),
            (HOUR_START + HOUR, 1),
            (HOUR_START + 2 * HOUR, 0),
            (HOUR_START + 3 * HOUR, 1),
        ]
        assert all(row["end_ms"] == int(str(row["start_ms"])) + HOUR for row in found)

    def test_days_are_those_of_the_zone_and_the_range_cuts_them(self, topic: Cli) -> None:
        during = ("--during", "2023-11-14 23:00..2023-11-16 12:00", *ZURICH)
        found = topic.ok("count", "flights", "--by", "day", "-o", "json", *during).objects
        assert [(row["start"], row["end"], row["records"]) for row in found] == [
            ("2023-11-14T23:00:00.000+01:00", "2023-11-15T00:00:00.000+01:00", 5),
            ("2023-11-15T00:00:00.000+01:00", "2023-11-16T00:00:00.000+01:00", 1),
            ("2023-11-16T00:00:00.000+01:00", "2023-11-16T12:00:00.000+01:00", 0),
        ]
        people = topic.ok("count", "flights", "--by", "day", *during).lines
        assert people[0] == "flights has 6 records in this range of timestamps, in 3 days"
        assert people[1].split() == ["START", "(Europe/Zurich)", "RECORDS"]
        assert people[2].split()[-1] == "5"

    @pytest.mark.parametrize("unit", ["hour", "day", "week", "month"])
    @pytest.mark.parametrize("clock", ["record", "append"])
    def test_the_sum_is_that_of_a_count(self, topic: Cli, unit: str, clock: str) -> None:
        words = ("--clock", clock, "--from", str(NOW - 10), "-o", "json")
        found = topic.ok("count", "flights", "--by", unit, *words).objects
        whole = topic.ok("count", "flights", *words).objects
        assert sum(int(str(row["records"])) for row in found) == sum(
            int(str(row["records"])) for row in whole
        )

    def test_records_without_a_time_are_in_no_hour(self, cli: Cli) -> None:
        cli.ok("create", "flights")
        cli.append(at(-1), at(NOW))
        result = cli.ok("count", "flights", "--by", "hour", "-o", "json")
        assert [row["records"] for row in result.objects] == [1]
        assert "1 record has no timestamp and is not counted in any range" in result.err

    @pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
    def test_no_range_begins_before_1970(self, cli: Cli, zone: str) -> None:
        cli.ok("create", "flights", "-c", "message.timestamp.before.max.ms=9223372036854775807")
        cli.append(at(0))
        counted = ("count", "flights", "--by", "week", "--zone", zone, "-o", "json")
        (row,) = cli.ok(*counted).objects
        assert (row["start_ms"], row["records"]) == (0, 1)
        assert str(row["start"]).startswith(("1970-01-01T00", "1969-12-31T19"))

    def test_an_empty_topic_has_no_hours(self, cli: Cli) -> None:
        cli.ok("create", "flights")
        assert cli.ok("count", "flights", "--by", "hour").lines[0] == (
            "flights has 0 records, in 0 hours"
        )

    def test_a_table_shows_a_long_run_without_records_as_one_line(self, cli: Cli) -> None:
        cli.ok("create", "flights", "-c", "message.timestamp.before.max.ms=9223372036854775807")
        day = 24 * HOUR
        cli.append(at(0), at(31 * day), at(64 * day))
        lines = cli.ok("count", "flights", "--by", "day").lines
        assert lines[1].split() == ["START", "(UTC)", "RECORDS"]
        assert len(lines) == 2 + 1 + 30 + 1 + 1 + 1, "31 and more days would be one line"
        assert lines[-2].split() == ["...", "32", "days", "without", "records", "0"]
        assert lines[-1].split() == ["1970-03-06", "00:00:00", "1"]
        rows = cli.ok("count", "flights", "--by", "day", "-o", "json").objects
        assert [row["records"] for row in rows] == [1, *[0] * 30, 1, *[0] * 32, 1]
        assert cli.ok("count", "flights", "--by", "day", "-o", "csv").out.count("\n") == 66

    def test_scripts_get_topic_and_partition(self, topic: Cli) -> None:
        for target, number in (("flights", None), ("flights:0", 0)):
            row = topic.ok("count", target, "--by", "month", "-o", "json").objects[0]
            assert (row["topic"], row["partition"]) == ("flights", number)

    def test_far_times_are_refused_with_advice(self, topic: Cli) -> None:
        result = topic.run("count", "flights", "--by", "hour", "--from", "1971-01-01Z")
        assert result.code == 3
        assert "hours, more than 100,000; use a shorter range or a larger unit" in result.err
        result = topic.run("count", "flights", "--by", "day", "--zone-cache", "x")
        assert "--zone-cache has no use" in result.err


class TestCount:
    def test_count_prints_the_records_of_each_partition(self, topic: Cli) -> None:
        found = topic.ok("count", "flights", "-o", "json").objects
        assert [(row["partition"], row["records"]) for row in found] == [(0, 6), (1, 0)]
        assert found[0]["from_zone_maps"] == 4
        assert found[0]["sidecar_bytes_read"]

    @pytest.mark.parametrize(
        ("arguments", "records"),
        [
            (("--from", str(NOW - 10), "--to", str(NOW)), 2),
            (("--from", str(NOW - 10), "--to", str(NOW + 1)), 3),
            (("--from", f"{NOW}..{NOW + HOUR}"), 3),
            (("--to", str(NOW - 10)), 1),
            (("--from", "now", "--clock", "append"), 2),
            (("--to", "now", "--clock", "append"), 4),
            (("--isolation", "read_committed"), 6),
        ],
    )
    def test_ranges(self, topic: Cli, arguments: tuple[str, ...], records: int) -> None:
        (found,) = topic.ok("count", "flights:0", "-o", "json", *arguments).objects
        assert found["records"] == records

    @pytest.mark.parametrize(
        ("arguments", "records"),
        [
            # 22:00 UTC is 23:00 in Zurich; NOW is 22:13:20 UTC on November 14.
            (("--from", "2023-11-14 23:13:20 Europe/Zurich", "--to", "23:14"), 2),
            (("--from", "2023-11-14T22:13:20Z", "--to", "2023-11-14 23:14", *ZURICH), 2),
            (("--from", "2023-11-14 23:13:20..2023-11-14 23:14 Europe/Zurich"), 2),
        ],
    )
    def test_a_zone_is_that_of_its_own_text(
        self, topic: Cli, arguments: tuple[str, ...], records: int
    ) -> None:
        (found,) = topic.ok("count", "flights:0", "-o", "json", *arguments).objects
        assert found["records"] == records

    @pytest.mark.parametrize("command", ["count", "diff"])
    @pytest.mark.parametrize("zone", ["Z", " America/New_York"])
    def test_the_zone_of_one_side_is_that_of_the_other(
        self, topic: Cli, command: str, zone: str
    ) -> None:
        sides = ("--from", f"2023-11-14{zone}", "--to", "2023-11-15")
        whole = ("--from", f"2023-11-14{zone}", "--to", f"2023-11-15{zone}")
        assert topic.ok(command, "flights", *sides).out == topic.ok(command, "flights", *whole).out
        topic.ok(command, "flights", *sides, *ZURICH)

    def test_a_time_without_a_zone_is_refused(self, topic: Cli) -> None:
        result = topic.run("count", "flights", "--from", "2023-11-14", "--to", "2023-11-15")
        error, hint = result.err.splitlines()
        assert error == (
            "error: '2023-11-14': the time zone is missing; add Z, an offset such as -05:00 or a"
            " name such as America/New_York"
        )
        assert hint == "hint: --zone ZONE sets the zone of all times without one"

    def test_the_output_has_the_result_first_and_the_sum_last(self, topic: Cli) -> None:
        assert topic.ok("count", "flights").lines == [
            "flights has 6 records, in 2 partitions",
            "PARTITION  RECORDS",
            "        0        6",
            "        1        0",
            "    total        6",
        ]
        by_append = topic.ok("count", "flights", "--clock", "append", "--wide").lines
        assert "WITHOUT APPEND TIME" in by_append[1]

    def test_one_partition_is_one_sentence(self, topic: Cli) -> None:
        assert topic.ok("count", "flights:0").lines == ["flights:0 has 6 records"]
        assert topic.ok("count", "flights:1").lines == ["flights:1 has 0 records"]
        one = topic.ok("count", "flights:0", "--to", str(NOW - 10))
        assert one.lines == ["flights:0 has 1 record in this range of timestamps"]

    def test_costs_are_shown_on_demand(self, topic: Cli) -> None:
        lines = topic.ok("count", "flights:0", "--wide").lines
        assert "FROM ZONE MAPS" in lines[1]
        assert lines[2].split()[:5] == ["flights", "0", "6", "0", "record"]

    def test_programs_get_no_sentence_on_stdout(self, topic: Cli) -> None:
        result = topic.ok("count", "flights", "-o", "csv")
        assert result.lines[0].startswith(
            "topic,partition,records,without_time,clock,from_zone_maps"
        )
        assert "flights has 6 records" in result.err

    def test_records_without_a_time_are_reported(self, topic: Cli) -> None:
        topic.append(at(-1))
        result = topic.ok("count", "flights", "--from", str(NOW))
        assert "1 record has no timestamp and is not counted in any range" in result.err

    @pytest.mark.parametrize("target", ["flights:x", ":1", "flights:1:2"])
    def test_a_target_that_is_none(self, topic: Cli, target: str) -> None:
        result = topic.run("count", target)
        assert result.code == 3
        assert "TOPIC:P" in result.err

    def test_a_partition_that_does_not_exist(self, topic: Cli) -> None:
        result = topic.run("count", "flights:7")
        assert result.code == 1
        assert "partitions 0 to 1" in result.err


class TestLatency:
    def test_latency_prints_a_row_per_hour(self, topic: Cli) -> None:
        result = topic.ok("latency", "flights", "-o", "json")
        first, second = result.objects
        assert (first["hour_ms"], second["hour_ms"]) == (HOUR_START, HOUR_START + HOUR)
        assert [first[name] for name in ("records", "min_ms", "max_ms", "skew_ms_max")] == [
            4,
            -7,
            5_000,
            7,
        ]
        assert first["p50_ms"] == 10
        assert (second["records"], second["max_ms"], second["skew_ms_max"]) == (2, HOUR, None)
        assert first["percentile_error"] == 1 / 64
        assert "flights: 6 records: P50 10ms, P99 1h, worst 1h appended in the hour" in result.err
        assert "some were appended up to 7ms before their create time" in result.err
        assert "zone maps" not in result.err
        assert (
            "4 of 6 records were counted from zone maps"
            in topic.ok("latency", "flights", "--wide").err
        )

    def test_a_table_has_a_row_for_the_topic(self, topic: Cli) -> None:
        lines = topic.ok("latency", "flights").lines
        assert lines[0] == (
            "flights: 6 records: P50 10ms, P99 1h, worst 1h appended in the hour from 2023-11-14"
            " 23:00:00 (UTC); some were appended up to 7ms before their create time"
        )
        assert [line.split()[0] for line in lines[1:]] == ["TOPIC", "flights"]
        assert lines[2].split() == ["flights", "6", "10ms", "1h", "1h", "1h", "1h", "7ms"]

    def test_tables_round_the_percentiles_of_json(self, flights: Cli) -> None:
        late_ms = [1_589_000] * 60 + [8_520_000] * 39 + [77_700_000]
        flights.append(*[at(flights.clock.now_ms() - ms) for ms in late_ms])
        (row,) = flights.ok("latency", "flights", "--show", "topics", "-o", "json").objects
        names = ("p50_ms", "p90_ms", "p99_ms", "p999_ms")
        exact = [int(f"{row[name]}") for name in names]
        shown = ["26m30s", "2h20m", "2h20m", "21h35m"]
        assert shown[3] == duration_text(exact[3] / 1000)
        assert exact[0] not in (1_590_000, late_ms[0])
        table = flights.ok("latency", "flights", "--wide")
        assert table.lines[-1].split()[2:6] == shown
        assert f"P99 {shown[2]}, worst 21h35m appended in" in table.lines[0]
        assert "percentiles have an error of at most 1.6%" in table.err

    def test_hours_are_shown_on_demand(self, topic: Cli) -> None:
        lines = topic.ok("latency", "flights", "--show", "hours").lines
        assert lines[1].split()[:4] == ["APPEND", "TIME", "(UTC)", "SPAN"]
        assert len(lines) == 4
        topics = topic.ok("latency", "flights", "--show", "topics", "-o", "json").objects
        assert [(row["records"], row["p50_ms"]) for row in topics] == [(6, 10)]

    def test_the_latest_records_are_shown_on_demand(self, topic: Cli) -> None:
        rows = topic.ok("latency", "flights", "--show", "records", "-o", "json").objects
        assert [row["latency_ms"] for row in rows] == sorted(
            (row["latency_ms"] for row in rows), key=lambda ms: -int(str(ms))
        )
        assert len(rows) == 6
        first = rows[0]
        assert (first["topic"], first["partition"], first["latency_ms"]) == ("flights", 0, HOUR)
        assert int(str(first["append_time_ms"])) - int(str(first["create_time_ms"])) == HOUR
        lines = topic.ok("latency", "flights", "--show", "records", "-n", "2").lines
        assert lines[1].split()[:6] == ["TOPIC", "PARTITION", "OFFSET", "CREATE", "TIME", "(UTC)"]
        assert len(lines) == 4
        early = ("--to", str(NOW), "--show", "records", "-o", "json")
        assert len(topic.ok("latency", "flights", *early).objects) == 4
        assert topic.ok("latency", "flights:1", "--show", "records", "-o", "json").objects == []

    def test_the_worst_hour_is_named(self, topic: Cli) -> None:
        in_zurich = "worst 1h appended in the hour from 2023-11-15 00:00:00 (Europe/Zurich)"
        for words in ((), ("--show", "hours"), ("--by", "hour"), ("--by", "day")):
            assert in_zurich in topic.ok("latency", "flights", *words, *ZURICH).lines[0]

    def test_help_says_which_records_are_read(
        self, cli: Cli, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cli.ok("latency", "--help")
        text = " ".join(capsys.readouterr().out.split())
        assert "in active segments, in segments without a zone map, and in segments whose" in text
        assert "--late and --delay read all records of the range" in text

    def test_the_worst_unit_is_the_one_of_by(self, topic: Cli) -> None:
        lines = topic.ok("latency", "flights", "--by", "day", *ZURICH).lines
        assert lines[1] == (
            "flights: the day with the largest P99 is 2023-11-15 (Europe/Zurich): 1h, 2 records"
        )

    def test_a_note_gives_the_error_of_percentiles(self, topic: Cli) -> None:
        note = "note: percentiles are off by at most 1.6%, and rounded by at most another 1.6%\n"
        for words in ((), ("--show", "hours")):
            assert topic.ok("latency", "flights", *words).err.count(note) == 1
        records = topic.ok("latency", "flights", "--show", "records")
        empty = topic.ok("latency", "flights:1")
        script = topic.ok("latency", "flights", "-o", "json")
        assert all("percentiles" not in one.err for one in (records, empty, script))

    def test_one_hour_is_not_called_the_worst(self, topic: Cli) -> None:
        assert len(topic.ok("latency", "flights", "--to", str(NOW)).lines) == 3

    def test_a_limit_takes_the_worst_hours_first(self, topic: Cli) -> None:
        for words in (("--show", "hours"), ("--by", "hour")):
            rows = topic.ok("latency", "flights", *words, "-n", "1", "-o", "json").objects
            assert [(row["hour_ms"], row["records"]) for row in rows] == [(HOUR_START + HOUR, 2)]
            assert len(topic.ok("latency", "flights", *words, "-n", "1").lines) == 3

    def test_a_limit_allows_any_range(self, topic: Cli) -> None:
        words = ("--by", "hour", "--from", "1971-01-01Z")
        refused = topic.run("latency", "flights", *words)
        assert "hours, more than 100,000; use a shorter range" in refused.err
        rows = topic.ok("latency", "flights", *words, "-n", "5", "-o", "json").objects
        assert [row["hour_ms"] for row in rows] == [HOUR_START + HOUR, HOUR_START]
        day = topic.ok(
            "latency", "flights", "--by", "day", "--from", str(NOW), "-n", "1", "-o", "json"
        )
        assert [(row["hour_ms"], row["hours"]) for row in day.objects] == [(HOUR_START, 2)]

    def test_hours_without_records_have_a_row(self, topic: Cli) -> None:
        topic.clock.advance(2 * HOUR)
        topic.append(at(NOW + 3 * HOUR))
        lines = topic.ok("latency", "flights", "--show", "hours").lines[2:]
        assert [line.split()[2:4] for line in lines] == [
            ["1h", "4"],
            ["1h", "2"],
            ["1h", "0"],
            ["1h", "1"],
        ]
        assert lines[2].split()[4:] == ["-"] * 6

    def test_days_are_those_of_the_zone_from_the_start(self, topic: Cli) -> None:
        during = ("--during", "2023-11-14..2023-11-16", *ZURICH)
        rows = topic.ok("latency", "flights", "--by", "day", *during, "-o", "json").objects
        assert [(row["hour"], row["hours"], row["records"]) for row in rows] == [
            ("2023-11-14T00:00:00.000+01:00", 24, 4),
            ("2023-11-15T00:00:00.000+01:00", 24, 2),
        ]
        table = topic.ok("latency", "flights", "--by", "day", *during).lines
        assert [line.split()[:4] for line in table[3:]] == [
            ["2023-11-14", "00:00:00", "1d", "4"],
            ["2023-11-15", "00:00:00", "1d", "2"],
        ]

    def test_hours_of_a_zone_are_exact_if_its_offset_is_half_an_hour(self, topic: Cli) -> None:
        """22:13 UTC is 03:43 in Kolkata: each hour of UTC overlaps two hours of Kolkata."""
        zone = ("--zone", "Asia/Kolkata", "-o", "json")
        rows = topic.ok("latency", "flights", "--by", "hour", *zone).objects
        assert [(row["hour"], row["records"]) for row in rows] == [
            ("2023-11-15T03:00:00.000+05:30", 4),
            ("2023-11-15T04:00:00.000+05:30", 2),
        ]

    def test_a_long_range_is_grouped_and_says_so(self, topic: Cli) -> None:
        topic.clock.advance(10 * 24 * HOUR)
        topic.append(at(NOW + 10 * 24 * HOUR))
        result = topic.ok("latency", "flights", "--show", "hours", *ZURICH)
        assert [line.split()[2] for line in result.lines[2:]] == ["1d"] * 12
        assert "grouped by day; --by hour shows each hour" in result.err
        by_hour = topic.ok("latency", "flights", "--by", "hour", *ZURICH)
        assert any("hours without records" in line for line in by_hour.lines)
        assert "grouped" not in by_hour.err

    @pytest.mark.parametrize(
        "words",
        [
            ("-n", "3"),
            ("--late", "--show", "hours"),
            ("--by", "day", "--show", "topics"),
        ],
    )
    def test_options_of_other_tables_are_refused(self, topic: Cli, words: tuple[str, ...]) -> None:
        result = topic.run("latency", "flights", *words)
        assert result.code == 3
        assert "--show" in result.err

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (("--late", "-n", "3"), "add --by hour or --by day"),
            (("--late", "--by", "day", "--delay", "5m"), "leave one of them out"),
            (("--by", "day", "--delay", "5m"), "leave one of them out"),
        ],
    )
    def test_options_of_late_records_are_refused(
        self, topic: Cli, words: tuple[str, ...], text: str
    ) -> None:
        result = topic.run("latency", "flights", *words)
        assert result.code == 3
        assert text in result.err

    def test_late_records_are_counted_by_day(self, topic: Cli) -> None:
        topic.clock.advance(24 * HOUR)
        topic.append(at(NOW + 25 * HOUR), at(NOW), at(NOW + 24 * HOUR))
        by_day = ("latency", "flights", "--late", "--by", "day", *ZURICH)
        lines = topic.ok(*by_day).lines
        assert lines[1] == (
            "flights: the day with most records out of order is 2023-11-16 (Europe/Zurich): 2 of 3"
            " records"
        )
        assert lines[0:3:2] == [
            "flights: 5 of 9 records are out of order in their partitions (56%), by up to 1d1h",
            "flights: 3 of 9 records were created on another day (Europe/Zurich) than appended",
        ]
        assert lines[3].endswith("  RECORDS  OUT OF ORDER  LATE BY UP TO  CREATED ON ANOTHER DAY")
        assert [line.split() for line in lines[4:]] == [
            ["2023-11-14", "00:00:00", "4", "2", "5s", "0"],
            ["2023-11-15", "00:00:00", "2", "1", "1h", "1"],
            ["2023-11-16", "00:00:00", "3", "2", "1d1h", "2"],
        ]
        (row,) = topic.ok(*by_day, "-n", "1", "-o", "json").objects
        assert (row["start"], row["out_of_order"]) == ("2023-11-16T00:00:00.000+01:00", 2)
        assert (row["late_ms_max"], row["created_outside"]) == (25 * HOUR, 2)

    def test_late_records_are_counted_by_hour_and_month(self, topic: Cli) -> None:
        topic.clock.advance(24 * HOUR)
        topic.append(at(NOW - 30 * 24 * HOUR))
        late = ("latency", "flights", "--late", "--by")
        lines = topic.ok(*late, "hour").lines
        assert lines[1].endswith(" began at 2023-11-14 22:00:00 (UTC): 2 of 4 records")
        assert lines[2].endswith(" 2 of 7 records were created in another hour (UTC) than appended")
        assert lines[3].endswith("  CREATED IN ANOTHER HOUR")
        assert [line.split()[2] for line in lines[4:]] == ["4", "2", *["0"] * 23, "1"]
        assert topic.ok(*late, "month").lines[2] == (
            "flights: 1 of 7 records was created in another month (UTC) than appended"
        )

    def test_late_records_without_an_append_time_are_in_no_day(self, topic: Cli) -> None:
        topic.data.joinpath("flights-0", "00000000000000000000.appendtime").unlink()
        result = topic.ok("latency", "flights", "--late", "--by", "day")
        assert "flights: 4 records have no append time and are in no day" in result.err
        assert result.lines[2].startswith("flights: 0 of 2 records were created on another day ")
        assert topic.ok("latency", "flights:1", "--late", "--by", "day").lines == [
            "flights: no record has a create time"
        ]

    def test_a_range_may_be_whole_hours(self, topic: Cli) -> None:
        found = topic.ok("latency", "flights", "-o", "json", "--from", "now").objects
        assert [row["hour_ms"] for row in found] == [HOUR_START + HOUR]
        found = topic.ok("latency", "flights", "-o", "json", "--to", str(NOW)).objects
        assert [row["hour_ms"] for row in found] == [HOUR_START]

    def test_a_bulk_load_is_not_counted_in_the_verdict(self, topic: Cli) -> None:
        topic.clock.advance(2 * HOUR)
        old = [at(NOW - day * 24 * HOUR) for day in range(1, 121)]
        for one in old:
            topic.append(one)
        result = topic.ok("latency", "flights")
        line = (
            "flights: 6 records: P50 10ms, P99 1h, worst 1h appended in the hour from 2023-11-14"
            " 23:00:00 (UTC); some were appended up to 7ms before their create time; not counted: a"
            " bulk load of 120 records (95.2%) appended from 2023-11-15 01:13:00 to 01:14:00, up to"
            " 120d3h after their create time"
        )
        assert result.lines[0] == line
        assert result.lines[1].startswith("TOPIC")
        assert [one.split()[:-6] for one in result.lines[2:]] == [
            ["flights,", "without", "the", "load", "6"],
            ["flights,", "the", "load", "120"],
        ]
        assert [row["records"] for row in topic.ok("latency", "flights", "-o", "json").objects]
        assert line in topic.ok("latency", "flights", "-o", "json").err
        lines = topic.ok("latency", "flights", "--by", "day").lines
        assert lines[0] == line
        assert lines[1].startswith("APPEND TIME"), "the load's day is not the worst one"
        hours = topic.ok("latency", "flights", "--show", "hours", "--from", "-1h").lines
        assert hours[0] == (
            "flights: all 120 records are a bulk load appended from 2023-11-15 01:13:00 to 01:14:00"
            " (UTC), up to 120d3h after their create time"
        )
        topic.clock.advance(24 * HOUR)
        topic.append(at(topic.clock.now_ms() - 2 * HOUR))
        lines = topic.ok("latency", "flights", "--by", "day").lines
        assert lines[1] == (
            "flights: the day with the largest P99 outside the day of the bulk load is 2023-11-16"
            " (UTC): 2h, 1 record"
        )

    def test_the_worst_latency_beside_a_bulk_load_has_its_hour(
        self, topic: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidelog.storage.clocks.latency.HOURS_LIMIT", 2)
        for late_ms in (0, 0, 0, 3 * HOUR, 0):
            topic.clock.advance(HOUR)
            topic.append(at(topic.clock.now_ms() - late_ms))
        topic.clock.advance(100 * HOUR)
        for day in range(100, 250):
            topic.append(at(NOW - day * 24 * HOUR))
        (row, *_) = topic.ok("latency", "flights", "--show", "hours", "-o", "json").objects
        assert int(str(row["hours"])) > 1
        assert (
            "worst 3h appended in the hour from 2023-11-15 03:00:00 (UTC); some were appended up to"
            " 7ms before their create time; not counted: "
            in (topic.ok("latency", "flights").lines[0])
        )

    def test_the_worst_latency_has_its_hour_if_hours_are_joined(
        self, topic: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidelog.storage.clocks.latency.HOURS_LIMIT", 2)
        for late_ms in (0, 0, 0, 3 * HOUR, 0):
            topic.clock.advance(HOUR)
            topic.append(at(topic.clock.now_ms() - late_ms))
        (row, *_) = topic.ok("latency", "flights", "--show", "hours", "-o", "json").objects
        assert int(str(row["hours"])) > 1
        line = topic.ok("latency", "flights").lines[0]
        assert line.startswith(
            "flights: 11 records: P50 10ms, P99 3h, worst 3h appended in the hour from"
            " 2023-11-15 03:00:00 (UTC); some"
        )

    @pytest.mark.parametrize("error", [StorageFailure("/x", "read", "EIO"), OSError(2, "x")])
    def test_a_bulk_load_keeps_its_hours_if_a_file_can_not_be_read(
        self, topic: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        topic.clock.advance(2 * HOUR)
        for day in range(1, 121):
            topic.append(at(NOW - day * 24 * HOUR))

        def refuse(*_: object) -> NoReturn:
            raise error

        monkeypatch.setattr("tidelog.scan.latency_loads._narrow_window", refuse)
        line = topic.ok("latency", "flights").lines[0]
        assert "appended from 2023-11-15 01:00:00 to 02:00:00, up to" in line

    def test_the_latency_of_an_empty_partition_is_unknown(self, topic: Cli) -> None:
        result = topic.ok("latency", "flights:1")
        assert result.lines[0].startswith("flights: no record of the range")

    def test_records_lost_by_watermark_delays_are_counted(self, topic: Cli) -> None:
        delays = ("--delay", "4s", "--delay", "10ms", "--delay", "1h")
        result = topic.ok("latency", "flights", "--late", "-o", "json", *delays)
        # Three records are late: their times are 4,990 ms, 17 ms and 3,599,900 ms below the largest
        # earlier time. The third of them follows the record of NOW + 1 h - 100 ms.
        assert [(row["delay_ms"], row["lost"]) for row in result.objects] == [
            (10, 3),
            (4_000, 2),
            (HOUR, 0),
        ]
        assert "3 of 6 records are out of order in their partitions (50%), by" in result.err
        assert "with a watermark per partition, a delay of 1h loses no record" in result.err

    @pytest.mark.parametrize("words", [(), ("--late",)])
    @pytest.mark.parametrize("is_read", [True, False])
    def test_lost_segments_are_named(
        self, topic: Cli, words: tuple[str, ...], is_read: bool
    ) -> None:
        topic.append(at(NOW + HOUR, value=b"x" * 150))
        assert "offsets" not in topic.ok("latency", "flights", *words).err
        segments = sorted(topic.data.glob("flights-0/*.log"))
        start, end = (int(path.stem) for path in segments[1:3])
        for path in topic.data.glob(f"flights-0/{start:020d}.*"):
            path.unlink()
        for path in topic.data.glob("flights-0/*.zones") if is_read else ():
            path.unlink()
        noted = topic.ok("latency", "flights", *words).err
        assert f"note: flights-0: offsets {start} to {end - 1}: missing" in noted

    def test_equal_delays_are_one_row(self, topic: Cli) -> None:
        lines = topic.ok("latency", "flights", "--late").lines
        assert lines[0].startswith("flights: 3 of 6 records are out of order")
        assert lines[2].split() == ["flights", "0s", "3", "50%"]
        assert lines[-1].split() == ["flights", "1h", "to", "1d", "0", "0%"]


@pytest.mark.parametrize("bound", [("--from", "1970-01-01Z"), ("--from", "0")])
def test_a_bound_at_the_epoch_is_a_bound(cli: Cli, bound: tuple[str, ...]) -> None:
    """A record without a time is in no range, however early the start of the range is."""
    cli.ok("create", "flights")
    cli.append(at(NOW), at(-1))
    assert [row["records"] for row in cli.ok("count", "flights", "-o", "json").objects] == [2]
    counted = cli.ok("count", "flights", "-o", "json", *bound)
    assert [row["records"] for row in counted.objects] == [1]
    assert "1 record has no time" in counted.err
    assert len(cli.ok("read", "flights", "-o", "json").objects) == 2
    assert len(cli.ok("read", "flights", "-o", "json", *bound).objects) == 1


class TestZoneOfTheQuestion:
    """Output is in the time zone that all given times name, unless --zone is given."""

    @pytest.mark.parametrize(
        ("options", "offset"),
        [
            (("--from", "2023-11-14 12:00 America/New_York"), "-05:00"),
            (("--from", "2023-11-14 12:00 America/New_York", "--to", "23:00"), "-05:00"),
            (("--during", "2023-11-14 America/New_York"), "-05:00"),
            (("--from", "2023-11-14T12:00-0500[America/New_York]"), "-05:00"),
            (("--from", "2023-11-14T12:00+0530"), "+05:30"),
            (("--from", "2023-11-14T12:00+0530", "--to", "2023-11-15T12:00+05:30"), "+05:30"),
            (("--from", "2023-11-14 Asia/Tokyo", "--to", "2023-11-16 America/New_York"), "Z"),
            (("--from", "2023-11-14 Asia/Tokyo", "--zone", "America/New_York"), "-05:00"),
            (("--from", "2023-11-14Z"), "Z"),
            (("--from", "-1d"), "Z"),
            ((), "Z"),
        ],
    )
    def test_read_prints_times_in_the_zone_of_its_bounds(
        self, topic: Cli, options: tuple[str, ...], offset: str
    ) -> None:
        found = topic.ok("read", "flights", "-o", "json", *options).objects
        assert found
        assert all(str(row["timestamp"]).endswith(offset) for row in found)

    def test_offsets_and_latency_print_times_in_the_zone_of_their_bounds(self, topic: Cli) -> None:
        time = "2023-11-14 12:00 America/New_York"
        (found, _) = topic.ok("offsets", "flights", "--at", time, "-o", "json").objects
        assert found["time"] == "2023-11-14T17:13:19.990-05:00"
        hours = topic.ok("latency", "flights", "--from", time, "-o", "json").objects
        assert hours
        assert all(str(row["hour"]).endswith("-05:00") for row in hours)


class TestDuring:
    @pytest.mark.parametrize(
        ("text", "records"),
        [
            ("2023-11-14 UTC", 6),
            ("today Asia/Tokyo", 6),
            ("2023-11 UTC", 6),
            ("2023 UTC", 6),
            ("yesterday UTC", 0),
            ("2023-11-14 17:00..18:00 America/New_York", 5),
            ("2h ago", 6),
        ],
    )
    def test_whole_days_and_ranges(self, topic: Cli, text: str, records: int) -> None:
        (found,) = topic.ok("count", "flights:0", "--during", text, "-o", "json").objects
        assert found["records"] == records

    @pytest.mark.parametrize("other", ["--from", "--to"])
    def test_during_excludes_from_and_to(self, topic: Cli, other: str) -> None:
        for command in ("count", "read", "latency"):
            result = topic.run(command, "flights", "--during", "2023-11-14Z", other, "now")
            assert result.code == 3
            assert "leave --from and --to out" in result.err

    def test_reading_on_has_no_end(self, topic: Cli) -> None:
        result = topic.run("read", "flights", "--during", "2023-11-14Z", "--follow")
        assert result.code == 3
        assert "--follow has no end" in result.err
