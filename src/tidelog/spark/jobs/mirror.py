"""`mirror`: topics of clusters and directories copied into those of another, batch or continuous.

Records keep key, value, headers and create time; offsets and append times are the target's own. The
offset map says what went where (`cluster.offset_map`), and `tidelog failover` takes groups across
by it. docs/mirror.md says what is promised, and what is not copied.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.arguments import choice, reads_arguments
from tidelog.cluster.offset_map import Partitioning
from tidelog.env import Env, os_env
from tidelog.spark.jobs.mirror_batches import Watcher
from tidelog.spark.jobs.mirror_growth import Settings
from tidelog.spark.jobs.mirror_options import MirrorOptions
from tidelog.spark.jobs.mirror_plan import TOPIC_WORD, MirrorSource, plan_mirror
from tidelog.spark.jobs.mirror_run import Mirror, Transform, running
from tidelog.spark.jobs.mirror_summary import summary_rows
from tidelog.spark.places import Place
from tidelog.types import IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
