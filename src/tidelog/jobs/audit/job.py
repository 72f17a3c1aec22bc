"""Audit of two directories or clusters, key by key.

An audit compares all keys of two places. It can also list the keys whose last record a consumer
group has not read.

The records of both places (side A and side B) are read once: one task for each split reduces the
split's records to one row per key. Then other tasks compare the rows of both sides; each task
compares one range of the keys' hashes (see `key_verdicts` for the kinds of differences). Rows
contain hashes of keys instead of the keys. After the comparison, other tasks read the keys of the
listed differences from the log. The audit compares all records, not a sample. Two different keys,
or two different compared values, count as equal only if their hashes collide (see
`AuditResults.chance`). If the option `state` names a folder, the rows stay in this folder. A later
audit with the same folder reuses the rows, and reads only new records from the logs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Unpack

from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, StorageFailure
from tidelog.jobs.audit.options import AuditOptions
from tidelog.jobs.audit.plan import AuditPlan, plan_audit
from tidelog.jobs.audit.results import (
    BUCKETS_SCHEMA,
    CUTS_SCHEMA,
    DIFFERENCES_SCHEMA,
    TOPICS_SCHEMA,
    AuditResults,
    bucket_rows,
    cut_rows,
    difference_rows,
    topic_rows,
)
from tidelog.jobs.audit.state import new_state, read_state, write_state
from tidelog.jobs.options import takes_options
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.parts import parallelism
from tidelog.spark.places import Place, as_place
from tidelog.spark.session import context_of, described

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOCK: Final = ".lock"

_NO_STATE: Final = (
    "workers on other machines need `state`, a folder that they and this machine share"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Result of an audit, as DataFrames and as plain objects.

    Attributes:
        differences: One row for each key that differs, at most `keys_max` for each kind and topic;
            see `DIFFERENCES_SCHEMA`.
        topics: One row for each topic, with the number of keys for each kind; see `TOPICS_SCHEMA`.
        buckets: One row for each time span of create times in a topic or a partition. Spans in
            which A and B are equal have rows, too. See `BUCKETS_SCHEMA`.
        cuts: The compared offsets of each partition; see `CUTS_SCHEMA`.
        found: The result as plain objects. It also has figures and notes that the DataFrames don't
            have.
        is_equal: Whether the audit found no difference.
    """

    differences: "DataFrame"
    topics: "DataFrame"
    buckets: "DataFrame"
    cuts: "DataFrame"
    found: AuditResults
    is_equal: bool


@takes_options(AuditOptions)
def audit(
    spark: "SparkSession",
    a: Place | str,
    b: Place | str | None = None,
    **options: Unpack[AuditOptions],
) -> Audit:
    """Compare every key of two places, and find keys whose last record a group has not read.

    Args:
        spark: The session.
        a: A directory of topics (a path, or an object store's URL), or a cluster.
        b: Another directory or cluster; None to check only a group.
        **options: Options, see `AuditOptions`.

    Raises:
        UnknownTopic, UnknownGroup, InvalidRequest, InvalidTime: An argument is invalid, or another
            audit uses the state's folder. No record was read.
        FileNotFoundError, CorruptFile: The offset map can't be read.
        UnsupportedVersion: The offset map or the state has a version that this release can't read.
        ClusterFailure: Brokers can't be reached, or refuse a request.
        CorruptData: A batch is damaged.
    """
    other = None if b is None else as_place(b)
    return _as_frames(spark, measure(spark, plan_audit(os_env(), as_place(a), other, **options)))


def _as_frames(spark: "SparkSession", results: AuditResults) -> Audit:
    frame = spark.createDataFrame
    return Audit(
        differences=frame(list(difference_rows(results.differences)), DIFFERENCES_SCHEMA),
        topics=frame(list(topic_rows(results.topics)), TOPICS_SCHEMA),
        buckets=frame(list(bucket_rows(results.buckets)), BUCKETS_SCHEMA),
        cuts=frame(list(cut_rows(results.cuts)), CUTS_SCHEMA),
        found=results,
        is_equal=results.is_equal,
    )


def measure(spark: "SparkSession", plan: AuditPlan, *, rows_max: int | None = None) -> AuditResults:
    """Run a planned audit; return the results as plain objects.

    Args:
        spark: The session.
        plan: The plan.
        rows_max: Maximum number of keys that a task holds in memory while it reads; None for the
            default.
    """
    from tidelog.jobs.audit.report import audited
    from tidelog.jobs.audit.run import AuditWork, run_audit

    env, state_folder = os_env(), plan.options["state"]
    if state_folder is None and not _is_local(spark):
        raise InvalidRequest(_NO_STATE)
    with _folder(env, state_folder) as folder:
        tasks = max(parallelism(spark), 1)
        work = AuditWork(
            spark=spark, env=env, folder=folder, plan=plan, tasks=tasks, rows_max=rows_max
        )
        state = new_state(env, plan.requested)
        if state_folder is not None:
            state = read_state(env, folder, plan.requested)
        with described(spark, "audit", (pair.name for pair in plan.pairs)):
            outcome = run_audit(work, state)
        if state_folder is not None:
            write_state(env, folder, outcome.state)
    return audited(plan, outcome)


def _is_local(spark: "SparkSession") -> bool:
    """Return whether Spark's workers run on this machine; False if the master is unknown."""
    context = context_of(spark)
    return context is not None and str(context.master).startswith("local")


@contextmanager
def _folder(env: Env, state: str | None) -> Iterator[str]:
    """Yield the folder for files of rows.

    If `state` is a path, yield this folder, and lock it until the block ends. If `state` is None,
    yield a temporary folder, and remove it when the block ends.
    """
    if state is None:
        with TemporaryDirectory(prefix="tidelog-audit-") as folder:
            yield folder
        return
    try:
        env.files.make_dirs(state)
        lock = env.files.lock(f"{state}/{_LOCK}")
    except BlockingIOError as error:
        raise InvalidRequest(f"{state}: another audit uses this state") from error
    except OSError as error:
        raise StorageFailure(state, "open", error.strerror or str(error)) from error
    try:
        yield state
    finally:
        lock.close()
