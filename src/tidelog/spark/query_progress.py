"""Progress of a streaming query from Spark's progress reports: `tidelog.spark.progress(query)`."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.amounts import plural
from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a query as of its last micro-batch.

    Attributes:
        topics: Topics that the query reads.
        batch: Number of the micro-batch, -1 before the first micro-batch.
        offsets_behind: Number of unread offsets in all partitions.
        seconds_behind: Largest age in seconds of the partitions' first unread records, by the
            records' timestamps. 0 if no record is unread. None if the age is unknown, for example
            because brokers don't report times of offsets.
        append_seconds_behind: Largest age in seconds of the partitions' first unread records, by
            append time. 0 if no record is unread; None if the age is unknown.
        rows_read: Number of rows read in the micro-batches that Spark still reports (the last 100
            by default).
        rows_written: Number of rows that the sink reports as written in the same micro-batches.
            Equals `rows_read` for sinks in Python, which report no number.
        lost: Ranges of offsets that were lost in the same micro-batches, as text; at most 20 of
            each micro-batch.
    """

    topics: tuple[str, ...] = ()
    batch: int = -1
    offsets_behind: int = 0
    seconds_behind: float | None = None
    append_seconds_behind: float | None = None
    rows_read: int = 0
    rows_written: int = 0
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the progress as one line for a log."""
        ages = [("created", self.seconds_behind), ("appended", self.append_seconds_behind)]
        ages_text = [f"{word} {age:,.1f} s ago" for word, age in ages if age is not None]
        oldest = (
            f" (the oldest {', '.join(ages_text)})" if self.offsets_behind and ages_text else ""
        )
        lost = f", {plural(len(self.lost), 'range')} lost" if self.lost else ""
        return (
            f"{', '.join(self.topics)}: batch {self.batch}, {plural(self.offsets_behind, 'offset')}"
            f" behind{oldest}, {plural(self.rows_written, 'row')} written{lost}"
        )


def progress(query: "StreamingQuery") -> Progress:
    """Return the progress of a streaming query that reads from tidelog.

    Args:
        query: The query, running or ended.

    Raises:
        InvalidRequest: The query does not read from `format("tidelog")`.
    """
    return read_progress([json.loads(one.json) for one in query.recentProgress])


def read_progress(batches: "Sequence[Mapping[str, object]]") -> Progress:
    """Return the progress from Spark's reports of micro-batches, oldest first.

    Raises:
        InvalidRequest: The query does not read from `format("tidelog")`.
    """
    if not batches:
        return Progress()
    reports = [_source_reports(batch) for batch in batches]
    if not reports[-1]:
        raise InvalidRequest('the query reads nothing from format("tidelog")')
    last = reports[-1]
    rows_read = sum(_count(batch, "numInputRows") for batch in batches)
    written = [_count(_mapping(batch.get("sink")), "numOutputRows") for batch in batches]
    return Progress(
        topics=tuple(sorted({topic for one in last for topic in _mapping(one.get("latest"))})),
        batch=_count(batches[-1], "batchId"),
        offsets_behind=sum(_count(_mapping(o.get("metrics")), "offsetsBehindLatest") for o in last),
        seconds_behind=_oldest(last, "record"),
        append_seconds_behind=_oldest(last, "append"),
        rows_read=rows_read,
        rows_written=sum(written) if all(count >= 0 for count in written) else rows_read,
        lost=_lost(reports),
    )


def _source_reports(batch: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the reports of tidelog's sources in a micro-batch's progress."""
    sources = batch.get("sources")
    reports = []
    for source in sources if isinstance(sources, list) else []:
        latest = source.get("latestOffset")
        content = _mapping(json.loads(latest) if isinstance(latest, str) else latest)
        if "metrics" in content and "behind" in content:
            reports.append(content)
    return reports


def _lost(reports: list[list[Mapping[str, object]]]) -> tuple[str, ...]:
    texts = [one.get("lost") for of_batch in reports for one in of_batch]
    return tuple(str(text) for of_one in texts if isinstance(of_one, list) for text in of_one)


def _oldest(reports: list[Mapping[str, object]], clock: str) -> float | None:
    ages = [_mapping(one.get("secondsBehind")).get(clock) for one in reports]
    numbers = [float(age) for age in ages if isinstance(age, int | float)]
    return max(numbers, default=None)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _count(of: Mapping[str, object], name: str) -> int:
    value = of.get(name, 0)
    return int(value) if isinstance(value, int | float) else 0
