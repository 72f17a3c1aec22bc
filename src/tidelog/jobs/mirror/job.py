"""`mirror`: topics of clusters and directories copied into those of another, batch or continuous.

Parts: the public function of the mirror, and its summary.

Records keep key, value, headers and create time; offsets and append times are the target's own. The
offset map says what went where (`jobs.offset_map`), and `tidelog failover` takes groups across
by it. docs/mirror.md says what is promised, and what is not copied.

What a mirror has to say of its run: batches, partitions, lag.
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.arguments import choice, reads_arguments
from tidelog.env import Env, os_env
from tidelog.jobs.mirror.commit import Watcher
from tidelog.jobs.mirror.places import read_sources
from tidelog.jobs.mirror.plan import TOPIC_WORD, MirrorOptions, MirrorSource, Settings, plan_mirror
from tidelog.jobs.mirror.run import Mirror, Transform, running
from tidelog.jobs.offset_map import Partitioning, SourcePartition
from tidelog.spark.places import Place
from tidelog.types import IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# source, topic, partition, target, target topic, copied from, copied to, offsets, end, lag
SummaryRow: TypeAlias = tuple[str, str, int, str, str, int, int, int, int, int]


def summary_rows(started: Mirror, env: Env) -> list[SummaryRow]:
    """A row for each partition of a source: what was copied in this run, and what is left.

    Offsets that hold no record (markers, what compaction took) count as copied only up to the last
    record that was copied, so a lag of a few offsets may be nothing but these.
    """
    plan = started.plan
    rows: list[SummaryRow] = []
    pairs, found = plan.pairs, started.found
    for number, facts in read_sources(plan, env).items():
        pair = pairs[number]
        for partition, end in enumerate(facts.ends):
            place = SourcePartition(number, partition)
            before = started.start_map.copied.get(place)
            after = found.copied.get(place)
            done = 0 if after is None else after.end
            begun = done if before is None and after is None else 0
            if before is not None:
                begun = before.end
            elif after is not None:
                begun = after.start
            rows.append(
                (
                    str(plan.sources[pair.place].place),
                    pair.topic,
                    partition,
                    str(plan.target),
                    pair.target,
                    begun,
                    done,
                    done - begun,
                    end,
                    max(end - done, 0),
                )
            )
    return rows


def lags_by_batch(query: "StreamingQuery") -> dict[int, int]:
    """How many offsets all sources had left behind each of the last batches, as Spark kept them."""
    found: dict[int, int] = {}
    for progress in query.recentProgress:
        told = json.loads(progress.json)
        texts = [source.get("latestOffset") for source in told.get("sources", ())]
        parsed = [text if isinstance(text, dict) else json.loads(text or "{}") for text in texts]
        lags = [one["metrics"]["offsetsBehindLatest"] for one in parsed if "metrics" in one]
        if lags:
            found[int(told["batchId"])] = sum(lags)
    return found


_SUMMARY: Final = (
    "source string, topic string, partition int, target string, target_topic string,"
    " copied_from long, copied_to long, offsets long, end_offset long, lag long"
)


@reads_arguments(partitions=Partitioning, settings=Settings)
def mirror(  # noqa: PLR0913 - one keyword for each way to choose
    spark: "SparkSession",
    sources: Place | str | Sequence[Place | str | MirrorSource],
    topics: Iterable[str] | Mapping[str, str],
    target: Place | str,
    *,
    checkpoint: str,
    partitions: str = Partitioning.KEPT,
    start: str = "earliest",
    isolation: str = "read_committed",
    continuous: bool = False,
    stopped: threading.Event | None = None,
    batch_records: int = 1_000_000,
    trigger_ms: int = 1_000,
    create: bool = False,
    force: bool = False,
    pattern: str | None = None,
    name: str = TOPIC_WORD,
    settings: str = Settings.REPORT,
    transform: Transform | None = None,
    watch: Watcher | None = None,
    source_options: Mapping[str, str] | None = None,
    sink_options: Mapping[str, str] | None = None,
    env: Env | None = None,
) -> "DataFrame":
    """Copy topics, exactly once; a row for each partition. The same call goes on after a kill.

    Args:
        spark: The session.
        sources: Directories, object stores' URLs or `kafka://HOST:PORT`; or `MirrorSource`.
        topics: Names; or name -> name at the target. Several may go into one.
        target: Directory or `kafka://HOST:PORT`.
        checkpoint: Folder of the driver with what a restart needs, and `offsets.map`.
        partitions: `kept`; `key`: by key; `any`: by a transform's column `targetPartition`.
        start: `earliest` or `latest`: where a new mirror begins.
        isolation: `read_committed` leaves aborted transactions out, or `read_uncommitted`.
        continuous: Go on until `stopped` is set; else stop at what is there at the start.
        stopped: Ends a continuous mirror.
        batch_records: About how many offsets of each source a batch takes, at most.
        trigger_ms: How often a continuous mirror looks for new records.
        create: Make topics that the target lacks, like their (first) source; partitions too.
        force: Go on although the target would lose records or their create times.
        pattern: Of whole names of topics that are copied too, also of those made meanwhile.
        name: Name at the target of what the pattern finds, with `{topic}` for its own.
        settings: Of a topic and its copy, where they differ: `report`, or `sync` sets the copy's.
        transform: Put between read and write; keeps `source`, `topic`, `partition` and `offset`.
        watch: Called after each batch.
        source_options: More options of the sources.
        sink_options: Of the sink, such as `compression`.
        env: Files and clock of the driver; the machine's where None.

    Raises:
        TargetLoses, InvalidRequest, UnknownTopic, DirectoryLocked: Nothing was written.
        pyspark.errors.StreamingQueryException: A batch failed; the next start writes it again.
    """
    options = MirrorOptions(
        checkpoint=checkpoint.rstrip("/"),
        continuous=continuous,
        batch_records=batch_records,
        trigger_ms=trigger_ms,
        create=create,
        force=force,
        settings=choice(Settings, settings, "settings"),
        source=tuple((source_options or {}).items()),
        sink=tuple((sink_options or {}).items()),
    )
    how = Partitioning(partitions), start, choice(IsolationLevel, isolation, "isolation")
    plan = plan_mirror(_listed(sources), topics, target, *how, pattern=pattern, name=name)
    run = partial(running, spark, plan, options, transform=transform, watch=watch)
    return _summary_of(spark, run, stopped, env or os_env())


def _listed(
    sources: Place | str | Sequence[Place | str | MirrorSource],
) -> list[Place | str | MirrorSource]:
    return [sources] if isinstance(sources, Place | str) else list(sources)


def _summary_of(
    spark: "SparkSession",
    run: Callable[[Env], AbstractContextManager[Mirror]],
    stopped: threading.Event | None,
    env: Env,
) -> "DataFrame":
    with run(env) as started:
        started.await_end(stopped)
        return spark.createDataFrame(summary_rows(started, env), _SUMMARY)
