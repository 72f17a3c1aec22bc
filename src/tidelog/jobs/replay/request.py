"""Request and outcome of a replay: plain values."""

import json
from dataclasses import dataclass, field
from typing import Final

from tidelog.arguments import choice
from tidelog.errors import InvalidRequest
from tidelog.jobs.chunks import Rate, Spans
from tidelog.jobs.replay.options import ReplayOptions, ReplayPartitions
from tidelog.jobs.replay.places import CONSOLE, parse_target
from tidelog.jobs.source_ranges import Question
from tidelog.jobs.target_check import Finding, NewTarget, new_target
from tidelog.spark.places import Place
from tidelog.types import ClockName, IsolationLevel

KEEP: Final = ReplayPartitions.KEEP


BY_KEY: Final = ReplayPartitions.KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """Request of a replay: its `ReplayOptions` with the source, read and checked.

    Attributes:
        range_text: The range as people wrote it, where start and end are what that meant: by it a
            restart knows that the same was asked.
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
        """Values that a restarted replay must have in common with its first run."""
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


def request_of(
    source: Place,
    topic: str,
    options: ReplayOptions,
    *,
    range_text: str | None = None,
) -> ReplayRequest:
    """The request that all options of a replay make; raises InvalidRequest."""
    rate = options["rate"]
    return ReplayRequest(
        source=source,
        topic=topic,
        to=parse_target(options["to"]),
        to_topic=options["to_topic"],
        start=options["start"],
        end=options["end"],
        range_text=range_text,
        clock=choice(ClockName, options["clock"], "clock"),
        isolation=choice(IsolationLevel, options["isolation"], "isolation"),
        partitions=options["partitions"],
        rate=Rate.parse(rate) if isinstance(rate, str) else rate,
        progress=options["progress"],
        force=options["force"],
        sink=tuple((options["sink"] or {}).items()),
        new=new_target(options["create"], options["config"]),
    )


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
