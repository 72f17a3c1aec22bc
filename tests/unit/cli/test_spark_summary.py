"""Summaries and pages of jobs, from plain values."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.cli import output
from tidelog.cli.jobs.reindex import in_short
from tidelog.cli.jobs.replay import COLUMNS, _report
from tidelog.cli.jobs.session import clock_plots, save_report
from tidelog.cli.latency import hour_table
from tidelog.cli.options import Format
from tidelog.cli.surroundings import InvalidInput, Surroundings
from tidelog.jobs.reindex.job import ReindexResult
from tidelog.jobs.reindex.work import PartDone
from tidelog.jobs.replay.hours import Hours
from tidelog.jobs.replay.job import summary_row
from tidelog.jobs.replay.run import ReplayOutcome
from tidelog.jobs.source_ranges import Question
from tidelog.jobs.target_check import Effect, Finding
from tidelog.pages import Provenance, Report, Text
from tidelog.spark.offset_ranges import OffsetRange
from tidelog.spark.places import Place
from tidelog.storage.checks import Finding as Damage
from tidelog.storage.checks import Severity
from tidelog.storage.clocks.latency import LatencyByHour
from tidelog.types import TopicPartition

HOUR = 3_600_000
# 2013-02-08T12:00Z and 2026-11-21T19:00Z, in hours since the epoch.
MADE, APPENDED = 377_868, 498_691
OUTCOME = ReplayOutcome(
    question=Question(place=Place("data"), topic="flights", times=(MADE * HOUR, None)),
    to=Place("copy"),
    to_topic="flights",
    planned=(OffsetRange(TopicPartition("flights", 1), 5, 25),),
    records=12_345,
    size_bytes=1_000_000,
    chunks=2,
    seconds=1.5,
    was_resumed=True,
    findings=(Finding(effect=Effect.NOTE, setting="a=1", text="<b>"),),
)


def test_many_topics_with_times_before_and_after_1970_have_two_rows_each() -> None:
    """Each topic has a row for the times before 1970 and a row for the times from 1970 on."""
    latencies = []
    for number in range(50):
        by_hour = LatencyByHour()
        for hour in (-2, -1, 0, 1):
            by_hour.add(hour * HOUR, 5)
        latencies.append(((f"topic-{number}",), by_hour))
    _, rows = hour_table(latencies, None, "topic")
    assert len(rows) == 100
    assert {row[0] for row in rows} == {f"topic-{number}" for number in range(50)}


def test_the_line_about_a_reindex_counts_all_partitions_and_the_directory() -> None:
    """The numbers that are added to a total all differ, so a total shows if one was left out."""
    fault = Damage("data/x", "damaged", "rebuild it", repairable=True)
    warning, note = (replace(fault, severity=each) for each in (Severity.WARNING, Severity.NOTE))
    done = [
        PartDone(
            topic="t",
            partition=number,
            found=[replace(fault, path=f"data/{file}") for file in range(2 + number)],
            left=[note, *[replace(fault, path="data/0")] * (number + 1), *[warning] * 10],
            segments=1_000 + number,
            log_bytes=7_000_000,
            maps_there=2_000 + number,
            maps_built=30 + number,
        )
        for number in range(2)
    ]
    result = ReindexResult(done=done, top=[fault, *[warning] * 100, note])
    assert in_short("data", result) == (
        "data: findings; 2 partitions, 2,001 segments, 14 MB; 124 findings left, 3 files repaired,"
        " zone maps: 61 built, 4,001 already present"
    )


def printed(kind: Format) -> str:
    out = io.StringIO()
    row = summary_row(OUTCOME)
    output.print_summary(Surroundings(stdout=out), COLUMNS, row, kind)
    return out.getvalue()


def test_a_summary_for_people_is_a_line_for_each_figure() -> None:
    lines = printed(Format.TABLE).splitlines()
    told = {name: text.strip() for name, text in (line.split("  ", 1) for line in lines)}
    assert told["records"] == "12,345"
    assert told["target"] == "flights at copy"
    assert told["start (UTC)"] == "2013-02-08 12:00:00"
    assert told["end (UTC)"] == "-"
    assert told["size"] == "1 MB"
    assert told["was resumed"] == "yes"
    assert told["findings"] == "note: a=1: <b>"


def test_a_summary_for_scripts_is_an_object() -> None:
    told = json.loads(printed(Format.JSON))
    assert (told["records"], told["offsets"], told["start_ms"]) == (12_345, 20, MADE * HOUR)
    assert told["end"] is None
    assert told["findings"] == ["note: a=1: <b>"]


def test_a_page_shows_hours_on_both_clocks() -> None:
    made = {MADE: 7, MADE + 1: 5, MADE + 2: 9}
    hours = Hours({"record": made, "append": {APPENDED: 12}}, {1: 12}, {1: 99})
    page = _report(OUTCOME, hours, None).html()
    assert "Records read at the source, by hour" in page
    assert "timestamp in UTC, by hour" in page
    assert '<td class="d">2013-02-08 12:00</td><td class="n">7</td>' in page
    assert "append time: records: 12 (2026-11-21 19:00)." in page
    assert "99 B" in page
    assert "note: a=1: &lt;b&gt;" in page


def test_each_clock_has_its_own_axis() -> None:
    plot = clock_plots({"append": {APPENDED: 1}, "record": {MADE: 1}}, "By {step}")
    assert plot.title == "By hour"
    assert list(plot.axes) == ["timestamp", "append time"]
    assert [axis.title for axis in plot.axes.values()] == [
        "timestamp in UTC, by hour",
        "append time in UTC, by hour",
    ]


def test_an_unwritable_page_is_an_error_after_the_job(tmp_path: Path) -> None:
    report, provenance = Report("t", [Text("x")]), Provenance(time="now", version="1")
    with pytest.raises(InvalidInput, match="the job itself has finished"):
        save_report(Surroundings(), str(tmp_path / "none" / "page.html"), report, provenance)


@pytest.mark.parametrize(
    ("span", "title", "row"),
    [
        ("from 2013-02-08", "Audit, from 2013-02-08", "from 2013-02-08"),
        ("", "Audit", "everything"),
    ],
)
def test_a_page_has_its_range_in_title_and_footer(
    tmp_path: Path, span: str, title: str, row: str
) -> None:
    path = tmp_path / "page.html"
    provenance = Provenance(time="now", version="1", span=span)
    save_report(Surroundings(stderr=io.StringIO()), str(path), Report("Audit", []), provenance)
    page = re.sub('<span class="d">|</span>', "", path.read_text())
    assert f"<h1>{title}</h1>" in page
    assert f"<dt>Range</dt><dd>{row}</dd>" in page


def test_names_of_columns_are_unique() -> None:
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)
    assert output.Column("start", output.Kind.TIME) in COLUMNS
