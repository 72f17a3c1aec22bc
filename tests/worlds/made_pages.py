"""Every page that tidelog creates, from synthetic results: long, wide, odd and empty pages."""

import math
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
from examples.demo import story

from tidelog.cli.jobs import audit, bootstrap, lag, latency, mirror, reindex, replay
from tidelog.cli.options import Encoding, Format, SparkAccess
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.audit.results import AuditResults, Bucket, Difference, Last, TopicFigures
from tidelog.jobs.bootstrap.columns import TableFacts
from tidelog.jobs.bootstrap.job import BootstrapOutcome, PartitionResult
from tidelog.jobs.lag.job import GroupLag
from tidelog.jobs.latency.tables import LatencyResult, TopicTimes
from tidelog.jobs.mirror.job import SummaryRow
from tidelog.jobs.mirror.options import BatchDone
from tidelog.jobs.mirror.plan import MirrorPlan, MirrorSource
from tidelog.jobs.reindex.job import ReindexResult
from tidelog.jobs.reindex.work import PartDone
from tidelog.jobs.replay.hours import Hours
from tidelog.jobs.replay.run import ReplayOutcome
from tidelog.jobs.source_ranges import Question
from tidelog.pages import Provenance, Report, Table
from tidelog.remote.group_lag import AgeClock, Observation, Unread, lag_of
from tidelog.remote.view import Count
from tidelog.scan.latency import TopicLateness
from tidelog.spark.offset_ranges import OffsetRange
from tidelog.spark.places import Place
from tidelog.storage.clocks.latency import LatencyByHour
from tidelog.types import HOUR_MS, TopicPartition

ZONE = "America/New_York"
# 2013-01-01T00:00Z, in hours.
YEAR = 376_944
DAY_MS = 24 * HOUR_MS
# Keys as hostile producers write them: with control characters, right-to-left marks and markup, or
# very long.
KEYS = (
    *(b"\x00\x1b[31mred", "evil\u202egpj.exe".encode(), b"<script>alert(1)</script>", b"", None),
    *(b"k" * 1_500, b"a\tb\nc", b"\xff\xfe\x00", "日本語🛫".encode(), b"plain", b"12345"),
)
ORIGIN = Provenance(
    time="2026-11-27 03:00:00 America/New_York",
    version="0.1.0",
    command="tidelog spark latency data flights --report latency.html --zone America/New_York",
    locations={"Place": "data"},
    span="from 2013-01-01 00:00:00 to before 2014-01-01 00:00:00",
    zone=ZONE,
)


def _hours(count: int, value: Callable[[int], int], first: int = YEAR) -> LatencyByHour:
    """Return latencies of `count` hours with ten records each; every ninth day is missing."""
    found = LatencyByHour()
    for hour in range(count):
        if hour // 24 % 9 != 4:
            for number in range(10):
                found.at((first + hour) * HOUR_MS).add(value(hour) + number * 60_000)
    return found


def latency_page(hours: int = 24 * 365) -> Report:
    """Return a page of a year by hours, with one load that arrived a month late."""

    def value(hour: int) -> int:
        if hour == hours - 5:
            return 28 * DAY_MS
        return int(600_000 * (1 + math.sin(hour / 24))) - 120_000

    lost = {0: 40_000, 1_000: 39_000, 60_000: 30_000, 300_000: 21_000, 600_000: 9_000}
    lost |= {1_800_000: 800, HOUR_MS: 90, 6 * HOUR_MS: 7, DAY_MS: 0}
    late = TopicLateness(records=90_000, out_of_order=40_000, lost=lost)
    late.late.add(7 * HOUR_MS)
    topic = TopicTimes(90_000, 12, _hours(hours, value), _hours(hours, value), late)
    small = TopicTimes(20, 0, _hours(2, value), _hours(2, value), TopicLateness(records=20))
    result = LatencyResult({"flights": topic, "aircraft": small}, 124_827_582, ["one\x1bnote"])
    return replace(latency.page("data", result, ZONE), origin=ORIGIN)


def lag_page() -> Report:
    """Return a page of three groups: one without lag, and two with a lag of five years."""

    def seen(partition: int, end: int, committed: int) -> Observation:
        unread = None
        if committed < end:
            unread = Unread(committed, YEAR * HOUR_MS, AgeClock.APPEND)
        left = Count(end - committed, is_exact=True)
        return Observation(
            partition=TopicPartition("flights", partition),
            now_ms=(YEAR + 24 * 365 * 5) * HOUR_MS,
            monotonic_ms=0,
            committed=committed,
            start=0,
            end=end,
            left=left,
            unread=unread,
            member="loader-7f3c2b1a-client-with-a-long-name/10.1.2.3",
        )

    groups = []
    for name, committed in (("loader", 8_000), ("planes", 84_000), ("done", 90_000)):
        group = GroupLag(name)
        for partition in range(4):
            one = seen(partition, 90_000, committed)
            group.partitions.append(lag_of(one, one))
        if committed < 90_000:
            for hour in range(24 * 200):
                at = (YEAR + hour) * HOUR_MS
                group.hours["flights", "record", at] = 5 + hour % 24
                if name == "loader":
                    group.hours["flights", "append", at] = 5 + hour % 24
        groups.append(group)
    broken = ["loader: 328,000 records left"]
    page = lag.page("kafka://broker:9092", groups, broken, "--max-lag 100000", ZONE)
    return replace(page, origin=ORIGIN)


def audit_page(differences: int = 2_000) -> Report:
    """Return a page that compares two copies of a topic, which differ in hostile keys."""
    found = []
    for number in range(differences):
        at = Last(partition=number % 4, offset=number, create_ms=(YEAR + number) * HOUR_MS + 5)
        kind = list(Kind)[number % 3]
        found.append(
            Difference(
                topic="orders",
                kind=kind,
                key=KEYS[number % len(KEYS)],
                bucket_ms=at.create_ms // HOUR_MS * HOUR_MS,
                a=None if kind is Kind.EXTRA else at,
                b=None if kind is Kind.MISSING else at,
            )
        )
    kinds = {kind: sum(one.kind is kind for one in found) for kind in list(Kind)[:3]}
    figures = TopicFigures(topic="orders", keys=(61_300, 61_290), records=(90_000, 89_000))
    figures.kinds = {kind: count for kind, count in kinds.items() if count}
    buckets = [
        Bucket(
            topic="orders",
            partition=0,
            start_ms=(YEAR + 3 * number) * HOUR_MS,
            span_ms=HOUR_MS,
            records=(7, 7 - number % 2),
            is_equal=number % 2 == 0,
        )
        for number in range(70)
    ]
    results = AuditResults(
        differences=found,
        topics=[figures],
        buckets=buckets,
        cuts={("a", TopicPartition("orders", 0)): (0, 90_000)},
        log_bytes=5,
        state_bytes=5,
        all_bytes=5,
        kept_runs=0,
        chance=1e-12,
        notes=["orders: 9 of 10 keys are shown"],
    )
    request = audit.AuditCommand(
        a="east",
        b="west",
        during=None,
        show=audit.AuditShow.DIFFERENCES,
        html="audit.html",
        command_config=None,
        to_command_config=None,
        store={},
        to_store={},
        spark=SparkAccess(master=None, conf={}),
        key_as=Encoding.AUTO,
        kind=Format.TABLE,
        zone=ZONE,
    )
    return replace(audit.page(request, None, results), origin=ORIGIN)


def mirror_page(batches: int = 30) -> Report:
    """Return a page of a mirror of two sources, which has run this many batches."""
    sources = tuple(
        MirrorSource(place=Place(name), topics={"orders": "orders"}) for name in ("east", "north")
    )
    done = [
        BatchDone(
            batch_id=number,
            records=1_000 + 10 * number,
            was_done=False,
            at_ms=0,
            elapsed_ms=900,
        )
        for number in range(batches)
    ]
    rows = [
        SummaryRow("east", "orders", n, "mir", "orders", 0, 900, 900, 950, 50) for n in range(4)
    ]
    lags = {number: 90_000 // (number + 1) for number in range(batches)}
    return mirror.report_of(MirrorPlan(sources=sources, target=Place("mir")), rows, done, lags, [])


def bootstrap_page() -> Report:
    """Return a page of a job that loaded a table with a year of records in one commit."""
    hours = {YEAR + hour: 40 + hour % 24 for hour in range(24 * 365)}
    parts = tuple(
        PartitionResult(
            partition=n,
            first_offset=0,
            end_offset=84_000 + n,
            size_bytes=31_000_000 + n * 500_000,
            segments=3,
            append_ms=YEAR * HOUR_MS,
        )
        for n in range(4)
    )
    facts = TableFacts(records=336_776, without_time=0, null_keys=0, hours=hours)
    outcome = BootstrapOutcome(
        job_id="id", partitions=parts, facts=facts, seconds=12.5, was_done=False
    )
    request = bootstrap.Request(
        table="jdbc:postgresql://reader:hunter2@db/shop?password=hunter2",
        topic="flights",
        input_format=None,
        options=(),
        compression=None,
        report="page.html",
        spark=SparkAccess(master=None, conf={}),
        kind=Format.TABLE,
        zone=ZONE,
    )
    rows = [["flights", n, 0, 84_000 + n, 84_000 + n, 31_000_000, 3, 5] for n in range(4)]
    return bootstrap._report(request, "data", outcome, rows)


def reindex_page() -> Report:
    """Return a page of a valid directory."""
    done = [PartDone(topic="flights", partition=n, segments=13, log_bytes=31_000) for n in range(4)]
    return replace(reindex.page("data", ReindexResult(done=done, top=[])), origin=ORIGIN)


def replay_page() -> Report:
    """Return a page of one replayed day."""
    question = Question(
        place=Place("data"), topic="flights", times=(YEAR * HOUR_MS, (YEAR + 24) * HOUR_MS)
    )
    outcome = ReplayOutcome(
        question=question,
        to=Place("copy"),
        to_topic="flights",
        planned=(OffsetRange(TopicPartition("flights", 1), 5, 25),),
        records=12_345,
        size_bytes=1_000_000,
        chunks=2,
        seconds=1.5,
        was_resumed=True,
        findings=(),
    )
    hours = {YEAR + n: 30 + n for n in range(24)}
    sizes = {n: 250_000 + n for n in range(4)}
    by_clock = {"record": hours, "append": {YEAR + 9_000: 12_345}}
    counts = Hours(by_clock, dict(sizes), sizes)
    return replace(replay._report(outcome, counts, ZONE), origin=ORIGIN)


def demo_page() -> Report:
    """Return the demo's page of the storm day."""
    rows = [
        {
            "hour": hour,
            "origin": origin,
            "departures": 0 if hour > last else 20 - hour % 7,
            "cancelled": hour if hour > last - 2 else 1,
            "late_p50": math.nan if hour > last else hour - 8.0,
            "late_p90": math.nan if hour > last else hour * 9.5,
        }
        for origin, last in (("EWR", 15), ("JFK", 22), ("LGA", 17))
        for hour in range(5, 24)
    ]
    columns = ["partition", "departed at", "due at", "first offset by record clock"]
    cells = [[str(n), "2013-02-08 12:01", "2013-02-08 12:00", f"{8_355 + n:,}"] for n in range(4)]
    clocks = Table(columns, cells)
    read = Table(["read", "rows", "bytes read", "share"], [["by timestamp", "930", "1", "1.5%"]])
    report = story.Report(
        title="8 February 2013 at New York's airports",
        lead=story.LEAD,
        day=pd.DataFrame(rows),
        clocks=clocks,
        why=["The record clock gives the first offset whose flight was due at noon or later."],
        reads=read,
        why_bytes=story.WHY_BYTES,
        aircraft=Table(["aircraft", "due"], [["N14228", "2013-02-08 12:00"]]),
        why_aircraft=story.why_aircraft(336_776, 4_043, 4_043),
        files=Table(["file", "count", "bytes"], [[".log: the records", "12", "124,827,582"]]),
        settings=story.settings_table(),
        settings_notes=["Each record was appended when it left."],
        checked=["rows: equal"],
        origin=ORIGIN,
    )
    return story.page(report)


def made_pages() -> dict[str, Report]:
    """Return all pages by name."""
    return {
        "latency": latency_page(),
        "lag": lag_page(),
        "audit": audit_page(),
        "audit-equal": audit_page(0),
        "mirror": mirror_page(),
        "mirror-once": mirror_page(1),
        "bootstrap": bootstrap_page(),
        "reindex": reindex_page(),
        "replay": replay_page(),
        "demo": demo_page(),
    }
