"""`replay`: a range of time of one topic once more, to a topic, to Parquet, or to a console.

1. The offsets that hold the range are found and fixed (`places`).
2. The target's settings are held against what is about to come (`checks`).
3. Chunk after chunk is read, filtered by the records' own times, and written under the chunk's
   number (`chunks`, `places`), held to a rate (`pace`), and noted (`journal`).
"""

from typing import TYPE_CHECKING, Final

from tidelog.arguments import choice, reads_arguments
from tidelog.jobs.chunks import Rate, Transform, total
from tidelog.jobs.replay.options import ReplayOptions, ReplayOutcome, ReplayPartitions
from tidelog.jobs.replay.places import parse_target
from tidelog.jobs.replay.run import Replay
from tidelog.jobs.target_check import lines, new_target
from tidelog.spark.places import Place, as_place
from tidelog.types import ClockName, IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SUMMARY: Final = (
    "source string, topic string, target string, start_ms long, end_ms long, clock string,"
    " partitions int, offsets long, records long, size_bytes long, chunks long, seconds double,"
    " was_resumed boolean, findings array<string>"
)


@reads_arguments(partitions=ReplayPartitions)
def replay(  # noqa: PLR0913 - one keyword for each way to choose
    spark: "SparkSession",
    source: Place | str,
    topic: str,
    *,
    to: Place | str,
    to_topic: str | None = None,
    start: int | str | None = None,
    end: int | str | None = None,
    clock: str = ClockName.RECORD,
    isolation: str = "read_committed",
    partitions: str | None = None,
    rate: Rate | str | None = None,
    progress: str | None = None,
    transform: Transform | None = None,
    force: bool = False,
    sink: dict[str, str] | None = None,
    create: int | None = None,
    config: dict[str, str] | None = None,
) -> "DataFrame":
    """Replay a topic's records of a range of time; a summary of one row.

    Args:
        spark: The session.
        source: Where the topic is: a directory, an object store's URL, or `kafka://HOST:PORT`.
        topic: Its name.
        to: Where the records go: a place, `parquet:PATH`, or `console`.
        to_topic: The topic there; the same name where None. It must exist unless `create` is given.
        start: Earliest time, inclusive, in ms or in the grammar of docs/time.md; None for no bound.
        end: Time to stop before, exclusive; None for all that is there when the replay starts.
        clock: `record` or `append`.
        isolation: `read_committed` leaves out aborted and open transactions, or `read_uncommitted`.
        partitions: `keep` the partitions' numbers, or choose by `key` anew; None keeps them where
            the target has as many as the source, else chooses by key.
        rate: `50000/s` records or `10 MB/s` of keys and values, on average from the start.
        progress: Local file of the driver that makes the replay resumable: the same call goes on
            exactly where it stopped, also after a kill.
        transform: Put between read and write, on each chunk. Without `rate` and `progress`, a
            directory or Parquet gets all in one chunk.
        force: Go on although the target would refuse or lose records.
        sink: More options of the sink, such as `compression`.
        create: Partitions of the target topic, which is made where it is missing.
        config: Settings of a topic that is made.

    Raises:
        TargetLoses: The target would refuse or lose records; nothing was written.
        InvalidRequest, InvalidTime, UnknownTopic: As their names say; nothing was written.
        OffsetsGone: Retention has taken what was still to be read.
    """
    options = ReplayOptions(
        source=as_place(source),
        topic=topic,
        to=parse_target(to),
        to_topic=to_topic,
        start=start,
        end=end,
        clock=choice(ClockName, clock, "clock"),
        isolation=choice(IsolationLevel, isolation, "isolation"),
        partitions=partitions,
        rate=Rate.parse(rate) if isinstance(rate, str) else rate,
        progress=progress,
        force=force,
        sink=tuple((sink or {}).items()),
        new=new_target(create, config),
    )
    return summary(spark, options, Replay(spark, options, transform=transform).run())


def summary(spark: "SparkSession", options: ReplayOptions, outcome: ReplayOutcome) -> "DataFrame":
    """The outcome as a DataFrame of one row."""
    question = outcome.question
    target = f"{options.to_topic or options.topic} at {options.to}"
    row = (
        str(question.place),
        question.topic,
        str(options.to) if isinstance(options.to, str) else target,
        *question.times,
        question.clock.value,
        len({span.partition for span in outcome.planned}),
        total(outcome.planned),
        outcome.records,
        outcome.size_bytes,
        outcome.chunks,
        outcome.seconds,
        outcome.was_resumed,
        lines(outcome.findings),
    )
    return spark.createDataFrame([row], _SUMMARY)
