"""`mirror`: copies topics from clusters and directories to another place, once or continuously.

Records keep their key, value, headers and, if the source returns it, create time. The target
assigns offsets and append times. The offset map (`jobs.offset_map`) contains the offsets at the
target. `tidelog failover` uses the map to move groups. docs/mirror.md describes the guarantees, and
lists what is not copied. The summary of a run has one row for each partition of a source.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Unpack

from tidelog.env import Env, os_env
from tidelog.errors import TidelogError
from tidelog.jobs.mirror.options import MirrorOptions
from tidelog.jobs.mirror.places import read_sources
from tidelog.jobs.mirror.plan import SPARK_DIR, MirrorSource, plan_mirror
from tidelog.jobs.mirror.run import Mirror, running
from tidelog.jobs.offset_map import Partitioning, SourcePartition
from tidelog.jobs.options import takes_options
from tidelog.jobs.place_topics import TopicFacts
from tidelog.spark.places import Place
from tidelog.spark.stream_offset import StreamOffset
from tidelog.storage.files import decode_topic_id, read_file
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class SummaryRow(NamedTuple):
    """The offsets that a run copied from one source partition, and the partition's lag.

    Attributes:
        source: Directory or cluster of the source.
        topic: Name of the topic at the source.
        partition: Number of the partition at the source.
        target: Directory or cluster of the target.
        target_topic: Name of the topic at the target.
        copied_from: First offset that this run copied.
        copied_to: End of the copied offsets, exclusive.
        offsets: Number of offsets from `copied_from` to `copied_to`.
        end_offset: End offset of the source partition, at the mirror's isolation level.
        lag: Number of offsets of the source partition that the mirror has not read yet.
    """

    source: str
    topic: str
    partition: int
    target: str
    target_topic: str
    copied_from: int
    copied_to: int
    offsets: int
    end_offset: int
    lag: int


def summary_rows(started: Mirror, env: Env) -> list[SummaryRow]:
    """Return one row for each source partition: the offsets that this run copied, and the lag.

    Some offsets have no record, because they belong to transaction markers or because compaction
    has removed the record. If such offsets follow the last copied record, they don't count as
    copied. But if the query has already read them, they don't count in the lag either.
    """
    plan = started.plan
    rows: list[SummaryRow] = []
    pairs, offset_map = plan.pairs, started.offset_map
    reached = read_reached(env, started.checkpoint)
    for number, facts in read_sources(plan, env).items():
        pair = pairs[number]
        for partition, end in enumerate(facts.ends):
            source_partition = SourcePartition(number, partition)
            before = started.start_map.copied.get(source_partition)
            after = offset_map.copied.get(source_partition)
            done = 0 if after is None else after.end
            begun = done if before is None and after is None else 0
            if before is not None:
                begun = before.end
            elif after is not None:
                begun = after.start
            read_to = _read_to(reached, pair.source, TopicPartition(pair.topic, partition), facts)
            rows.append(
                SummaryRow(
                    source=str(plan.sources[pair.source].place),
                    topic=pair.topic,
                    partition=partition,
                    target=str(plan.target),
                    target_topic=pair.target,
                    copied_from=begun,
                    copied_to=done,
                    offsets=done - begun,
                    end_offset=end,
                    lag=max(end - max(done, read_to), 0),
                )
            )
    return rows


def read_reached(env: Env, checkpoint: str) -> list[StreamOffset]:
    """Return, for each source, the offsets up to which the finished batches have read it.

    The offsets are from Spark's checkpoint. The result is empty if no batch is finished, or if the
    checkpoint is not readable. The lag then depends only on the copied records.
    """
    folder = f"{checkpoint}/{SPARK_DIR}"
    with suppress(OSError, ValueError, TidelogError):
        names = [entry.name for entry in env.files.list_dir(f"{folder}/commits")]
        done = max((int(name) for name in names if name.isdecimal()), default=None)
        if done is not None:
            version, _, *lines = read_file(env.files, f"{folder}/offsets/{done}").splitlines()
            if version == b"v1":
                return [StreamOffset.decode(json.loads(line)) for line in lines]
    return []


def _read_to(
    reached: Sequence[StreamOffset], source: int, name: TopicPartition, facts: TopicFacts
) -> int:
    """Return the offset up to which the query has read a partition; 0 if it is unknown."""
    if source >= len(reached) or name not in reached[source].positions:
        return 0
    topic_id = reached[source].topic_id(name.topic)
    if topic_id and facts.topic_id and decode_topic_id(facts.topic_id).hex != topic_id:
        return 0  # the topic was recreated, or a transform has changed the order of the sources
    return reached[source].positions[name].offset


def lags_by_batch(query: "StreamingQuery") -> dict[int, int]:
    """Return by batch id, for recent batches, the number of uncopied offsets of all sources."""
    lag_sums: dict[int, int] = {}
    for progress in query.recentProgress:
        fields = json.loads(progress.json)
        texts = [source.get("latestOffset") for source in fields.get("sources", ())]
        parsed = [text if isinstance(text, dict) else json.loads(text or "{}") for text in texts]
        lags = [one["metrics"]["offsetsBehindLatest"] for one in parsed if "metrics" in one]
        if lags:
            lag_sums[int(fields["batchId"])] = sum(lags)
    return lag_sums


_SUMMARY: Final = (
    "source string, topic string, partition int, target string, target_topic string,"
    " copied_from long, copied_to long, offsets long, end_offset long, lag long"
)


@takes_options(MirrorOptions, partitions=Partitioning)
def mirror(
    spark: "SparkSession",
    sources: Place | str | Sequence[Place | str | MirrorSource],
    topics: Iterable[str] | Mapping[str, str],
    target: Place | str,
    **options: Unpack[MirrorOptions],
) -> "DataFrame":
    """Copy topics, each record exactly once; return one row for each partition of a source.

    After a kill, the same call continues from the checkpoint.

    Args:
        spark: The session.
        sources: Directories, object stores' URLs or `kafka://HOST:PORT`; or `MirrorSource`.
        topics: Names of topics; or a mapping from names to names at the target. Several topics may
            have the same target.
        target: Directory or `kafka://HOST:PORT`.
        **options: Options, see `MirrorOptions`.

    Raises:
        TargetLoses, InvalidRequest, UnknownTopic, DirectoryLocked, ClusterFailure: The mirror can't
            start; no record was written.
        pyspark.errors.StreamingQueryException: A batch failed; the next run writes it again.
    """
    env = options["env"] or os_env()
    plan = plan_mirror(_listed(sources), topics, target, **options)
    with running(spark, plan, **options) as started:
        started.await_end(options["stopped"])
        return spark.createDataFrame(summary_rows(started, env), _SUMMARY)


def _listed(
    sources: Place | str | Sequence[Place | str | MirrorSource],
) -> list[Place | str | MirrorSource]:
    return [sources] if isinstance(sources, Place | str) else list(sources)
