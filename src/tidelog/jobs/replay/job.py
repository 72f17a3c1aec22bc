"""`replay`: writes one topic's records of a time range again, to a topic, Parquet or a console.

1. The offsets that contain the range are planned once (`source_ranges`).
2. The target's settings are checked against the expected records (`target_check`).
3. Each chunk of the offsets is read, filtered by the time of each record on the range's clock, and
   written under the chunk's number (`run`, `targets`). The journal stores the state of each chunk
   (`run`), and the writes are limited to a rate (`chunks`).
"""

from typing import TYPE_CHECKING, Final, Unpack

from tidelog.jobs.chunks import total
from tidelog.jobs.options import takes_options
from tidelog.jobs.replay.options import ReplayOptions
from tidelog.jobs.replay.run import Replay, ReplayOutcome
from tidelog.jobs.target_check import lines
from tidelog.spark.places import Place, as_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SUMMARY: Final = (
    "source string, topic string, target string, start_ms long, end_ms long, clock string,"
    " partitions int, offsets long, records long, size_bytes long, chunks long, seconds double,"
    " was_resumed boolean, findings array<string>"
)


@takes_options(ReplayOptions)
def replay(
    spark: "SparkSession", source: Place | str, topic: str, **options: Unpack[ReplayOptions]
) -> "DataFrame":
    """Replay a topic's records of a time range; return a summary of one row.

    Args:
        spark: The session.
        source: Where the topic is: a directory, an object store's URL, or `kafka://HOST:PORT`.
        topic: Name of the topic.
        **options: Options, see `ReplayOptions`.

    Raises:
        TargetLoses: The target would refuse or lose records; nothing was written.
        InvalidRequest, InvalidTime, UnknownTopic: An option or a topic is invalid; nothing was
            written.
        OffsetsGone: Records were deleted, for example by retention, before they were read.
    """
    outcome = Replay(as_place(source), topic, **options).run(spark)
    return spark.createDataFrame([summary_row(outcome)], _SUMMARY)


def summary_row(outcome: ReplayOutcome) -> tuple[str | int | float | list[str] | None, ...]:
    """Return the outcome as a row of the summary."""
    question, to = outcome.question, outcome.to
    return (
        str(question.place),
        question.topic,
        f"{outcome.to_topic} at {to}" if isinstance(to, Place) else to,
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
