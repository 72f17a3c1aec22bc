"""Request and outcome of a replay: plain values."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidelog.errors import InvalidRequest
from tidelog.jobs.chunks import Rate, Spans
from tidelog.jobs.replay.places import CONSOLE
from tidelog.jobs.source_ranges import Question
from tidelog.jobs.target_check import Finding, NewTarget
from tidelog.spark.places import Place
from tidelog.types import ClockName, IsolationLevel


class ReplayPartitions(StrEnum):
    """Which partition a record goes to."""

    KEEP = "keep"
    KEY = "key"


KEEP: Final = ReplayPartitions.KEEP


BY_KEY: Final = ReplayPartitions.KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Request of a replay.

    Attributes:
        source: Where the topic is.
        topic: The topic.
        to: A place, `parquet:PATH` or `console`.
        to_topic: Name of the topic there; the same where None.
        start: Start of the range, inclusive, as it was given; None where open.
        end: End of the range, exclusive, as it was given; None where open.
        range_text: The range as people wrote it, where start and end are what that meant: by it a
            restart knows that the same was asked.
        clock: Which of a record's two times the range is about.
        isolation: What is seen of transactions.
        partitions: `keep`, `key`, or None for what fits.
        rate: The limit, None for no such.
        progress: File that makes it resumable, None for no such.
        force: Go on although the target would lose records.
        sink: More options of the sink, such as `compression`.
        new: How the topic is made where it is missing; None where it must be there.
    """

    source: Place
    topic: str
    to: Place | str
    to_topic: str | None = None
    start: int | str | None = None
    end: int | str | None = None
    range_text: str | None = None
    clock: ClockName = ClockName.RECORD
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    partitions: str | None = None
    rate: Rate | None = None
    progress: str | None = None
    force: bool = False
    sink: tuple[tuple[str, str], ...] = ()
    new: NewTarget | None = None

    def check(self) -> None:
        """Check that the options fit each other; raises InvalidRequest."""
        if self.to == CONSOLE and self.progress is not None:
            raise InvalidRequest("a console remembers nothing: leave progress out")
        is_same = self.to == self.source and self.to_topic in (None, self.topic)
        if is_same and not self.force:
            raise InvalidRequest(
                f"{self.topic} would be replayed into itself: name another topic to write to,"
                " or force it"
            )

    def asked(self) -> dict[str, str]:
        """What a restart must ask alike."""
        return {
            "source": str(self.source),
            "topic": self.topic,
            "to": str(self.to),
            "to_topic": self.to_topic or "",
            "range": self.range_text or f"{_text(self.start)}..{_text(self.end)}",
            "clock": self.clock.value,
            "isolation": self.isolation.name.lower(),
            "partitions": self.partitions or "",
            "sink": json.dumps(sorted(self.sink)),
        }


def _text(side: int | str | None) -> str:
    return "" if side is None else str(side)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """Outcome of a replay.

    Attributes:
        question: What was read, with its times fixed.
        planned: The offsets that held it.
        records: Records written, by this and earlier starts.
        size_bytes: Their keys and values.
        chunks: Chunks written, by this and earlier starts.
        seconds: How long this start took.
        was_resumed: Whether an earlier start had begun.
        findings: What the checks found.
    """

    question: Question
    planned: Spans
    records: int
    size_bytes: int
    chunks: int
    seconds: float
    was_resumed: bool
    findings: tuple[Finding, ...] = field(default=())
