"""Audit of two places: the last record of every key, and what a group has received.

Every record of both sides is read once, by as many tasks as there are splits, and reduced where it
is read to a row for each key. Tasks that share the hashes among them hold the rows of both sides
together (`rules` says what is found); only the keys that are found are read as they are.
Exact: nothing is sampled. With a state, only what is new is read the next time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Unpack

from tidelog.arguments import choices_of, level_of
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, StorageFailure
from tidelog.jobs.audit.options import AuditOptions, Kind
from tidelog.jobs.audit.plan import (
    Pair,
    Question,
    Side,
    limits_of_map,
    pairs_of,
    positions_of,
    renames_of_map,
)
from tidelog.jobs.audit.results import (
    BUCKETS_SCHEMA,
    CUTS_SCHEMA,
    DIFFERENCES_SCHEMA,
    TOPICS_SCHEMA,
    Audited,
    bucket_rows,
    cut_rows,
    difference_rows,
    topic_rows,
)
from tidelog.jobs.audit.state import new_state, read_state, write_state
from tidelog.jobs.options import takes_options
from tidelog.spark.parts import parallelism
from tidelog.spark.places import Place, as_place
from tidelog.spark.session import described
from tidelog.timespec import parse_point
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOCK: Final = ".lock"


_NO_STATE: Final = (
    "workers on other machines need `state`, a folder that they and this machine share"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The answer, as DataFrames and as plain objects.

    Attributes:
        differences: One row for each key that is not equal; see `DIFFERENCES_SCHEMA`.
        topics: One row for each topic, with the number of keys of each kind; see `TOPICS_SCHEMA`.
        buckets: Spans of create time, equal or not; see `BUCKETS_SCHEMA`.
        cuts: The offsets that were compared; see `CUTS_SCHEMA`.
        found: The same as objects.
        is_equal: Whether nothing was found.
    """

    differences: "DataFrame"
    topics: "DataFrame"
    buckets: "DataFrame"
    cuts: "DataFrame"
    found: Audited
    is_equal: bool


@takes_options(AuditOptions)
def audit(
    spark: "SparkSession",
    a: Place | str,
    b: Place | str | None = None,
    **options: Unpack[AuditOptions],
) -> Audit:
    """Follow every key from one place to another, and to a consumer group.

    Args:
        spark: The session.
        a: A directory of topics (a path, or an object store's URL), or a cluster.
        b: Another one; None to look at a group alone.
        **options: Those of `AuditOptions`.

    Raises:
        UnknownTopic, UnknownGroup, InvalidRequest, InvalidTime: Before anything is read.
        ClusterFailure: Brokers can't be asked.
        CorruptData: A batch is damaged.
    """
    found = measure(spark, as_place(a), None if b is None else as_place(b), **options)
    return _as_frames(spark, found)


def _as_frames(spark: "SparkSession", found: Audited) -> Audit:
    frame = spark.createDataFrame
    return Audit(
        differences=frame(list(difference_rows(found.differences)), DIFFERENCES_SCHEMA),
        topics=frame(list(topic_rows(found.topics)), TOPICS_SCHEMA),
        buckets=frame(list(bucket_rows(found.buckets)), BUCKETS_SCHEMA),
        cuts=frame(list(cut_rows(found.cuts)), CUTS_SCHEMA),
        found=found,
        is_equal=found.is_equal,
    )


@takes_options(AuditOptions)
def measure(
    spark: "SparkSession",
    a: Place,
    b: Place | None,
    *,
    rows_max: int | None = None,
    **options: Unpack[AuditOptions],
) -> Audited:
    """As `audit`, as plain objects."""
    from tidelog.jobs.audit.answer import audited
    from tidelog.jobs.audit.run import Work, run_audit

    env, state_folder = os_env(), options["state"]
    isolation = level_of(options["isolation"])
    if state_folder is None and not _is_local(spark):
        raise InvalidRequest(_NO_STATE)
    plan = plan_of(env, a, b, **options)
    asked = {
        "a": str(a),
        "b": None if b is None else str(b),
        "isolation": isolation.name.lower(),
        "span_ms": options["span_ms"],
    }
    with _folder(env, state_folder) as folder:
        work = Work(
            spark=spark,
            env=env,
            folder=folder,
            sides=plan.sides,
            pairs=plan.pairs,
            question=Question(
                start_ms=plan.start_ms,
                end_ms=plan.end_ms,
                isolation=isolation,
                split_bytes=options["split_bytes"],
                tasks=max(parallelism(spark), 1),
            ),
            span_ms=options["span_ms"],
            history=options["history"],
            ignore=plan.ignore,
            keys_max=options["keys_max"],
            rows_max=rows_max,
            listener=options["listener"],
        )
        state = new_state(env, asked)
        if state_folder is not None:
            state = read_state(env, folder, asked)
        with described(spark, "audit", (pair.name for pair in plan.pairs)):
            outcome = run_audit(work, state, plan.positions)
        if state_folder is not None:
            write_state(env, folder, outcome.state)
    return audited(work, outcome)


@takes_options(AuditOptions)
def plan_of(env: Env, a: Place, b: Place | None, **options: Unpack[AuditOptions]) -> "Plan":
    """Check the options, then find the topics and the group; Spark is not needed.

    Raises:
        UnknownTopic, UnknownGroup, InvalidRequest, CorruptFile, ClusterFailure: As `audit`.
        FileNotFoundError: There is no such offset map.
    """
    _check(b, options)
    ignore = choices_of(Kind, options["ignore"], "ignore")
    start_ms, end_ms = (_point(env, options[side]) for side in ("start", "end"))
    sides, rename = _sides(env, a, b, options)
    topics = options["topics"]
    names = [topics] if isinstance(topics, str) else topics
    pairs = pairs_of(sides["a"], sides.get("b"), names, rename)
    positions = None if options["group"] is None else positions_of(b or a, options["group"])
    return Plan(
        sides=sides,
        pairs=pairs,
        positions=positions,
        start_ms=start_ms,
        end_ms=end_ms,
        ignore=ignore,
    )


def _point(env: Env, time: int | str | None) -> int | None:
    return parse_point(time, now_ms=env.clock.now_ms()) if isinstance(time, str) else time


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The request of an audit: its options as values, and its topics as the places have them.

    Attributes:
        sides: By letter.
        pairs: Each topic on both sides.
        positions: Where the group is; None without a group.
        start_ms: Earliest record timestamp, None for no bound.
        end_ms: Record timestamp to stop at, None for no bound.
        ignore: Kinds of differences that are not looked for.
    """

    sides: Mapping[str, Side]
    pairs: Sequence[Pair]
    positions: Mapping[TopicPartition, int] | None
    start_ms: int | None
    end_ms: int | None
    ignore: frozenset[Kind]


def _check(b: Place | None, options: AuditOptions) -> None:
    if b is None and options["group"] is None:
        raise InvalidRequest("an audit needs a second place, or a group")
    if b is None and options["offset_map"] is not None:
        raise InvalidRequest("an offset map is of two places; give the second one")
    has_times = options["start"] is not None or options["end"] is not None
    if has_times and options["state"] is not None:
        raise InvalidRequest("a state is of whole topics; leave it out, or the range of time")


def _is_local(spark: "SparkSession") -> bool:
    """Whether workers are processes of this machine; no where Spark doesn't say."""
    try:
        return str(spark.sparkContext.master).startswith("local")
    except Exception:  # noqa: BLE001 - each release refuses it by another error
        return False


def _sides(
    env: Env, a: Place, b: Place | None, options: AuditOptions
) -> tuple[dict[str, Side], dict[str, str]]:
    """The sides, and which topics are called otherwise on B."""
    if b is None:
        return {"a": Side(letter="a", place=a)}, {}
    given = options["rename"] or {}
    if options["offset_map"] is None:
        return {"a": Side(letter="a", place=a), "b": Side(letter="b", place=b)}, dict(given)
    copied, written = limits_of_map(env, options["offset_map"])
    sides = {
        "a": Side(letter="a", place=a, limits=copied),
        "b": Side(letter="b", place=b, limits=written),
    }
    return sides, {**renames_of_map(env, options["offset_map"]), **given}


@contextmanager
def _folder(env: Env, state: str | None) -> Iterator[str]:
    """The folder of rows: that of the state, for one audit at a time, or one for now."""
    if state is None:
        with TemporaryDirectory(prefix="tidelog-audit-") as folder:
            yield folder
        return
    try:
        env.files.make_dirs(state)
        lock = env.files.lock(f"{state}/{_LOCK}")
    except BlockingIOError as error:
        raise InvalidRequest(f"{state}: another audit works with this state") from error
    except OSError as error:
        raise StorageFailure(state, "open", error.strerror or str(error)) from error
    try:
        yield state
    finally:
        lock.close()
