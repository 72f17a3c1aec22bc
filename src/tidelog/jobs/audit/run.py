"""Steps of an audit: reduce new records to rows, compare rows, check orders, and read keys.

This module runs the steps in order, repeats them if files of rows are damaged, and adds up the
results of the tasks by topic (`TopicResult`). The tasks are in `work`, the plan of reads in `plan`.

Rows of keys are in a folder that the driver and all workers share. If a file in the folder is
damaged, the run that it belongs to is read again.

An audit compares only the records before an offset, or in a time range. But compaction may have
removed a record in this range, because its key has a later record outside the range. Then the
key wrongly seems to be missing, or to have an older value. To detect such keys, an audit also reads
the records after or outside the compared range, up to the log end (`read_later_records`). If
compaction meanwhile processes records after this log end, these records are read, too.
If a key differs and one of these later records has the key, the key is counted as `superseded`, not
reported as a difference. This finds every such key, because compaction keeps the last record of a
key. Exception: if the key's last record was a tombstone that has been removed, no record of the key
is left, and the key is reported as a difference.

Later records need not be read if compaction can't have removed records of the compared range.
tidelog's cleaner stores a history file with the offset up to which a partition was compacted.
Without a time range, later records are read if this compacted offset is after the end of the
compared offsets. With a time range, later records are read if the compacted offset is after the
start of the compared offsets. Apache Kafka's cleaner stores no history. For a log of Apache Kafka,
later records are read except in two cases: the log has a record at every offset before the end of
the compared offsets; or the audit has no time range, and the compared offsets end in the last
segment, which is never compacted. Brokers report neither the history nor the segments. So for
brokers, the later records of each compacted topic with a difference are read.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.amounts import plural, verb
from tidelog.env import Env
from tidelog.errors import StorageFailure
from tidelog.jobs.audit.key_verdicts import (
    A_AT,
    B_AT,
    DIFFERENCE_FIELDS,
    PAIR_FIELDS,
    differences_of_pairs,
)
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.audit.plan import AuditPlan, Pair, ReadPart, ReadScope, Side, SidePlan, plan_side
from tidelog.jobs.audit.state import Run, State, decode_run
from tidelog.jobs.audit.state_files import CHUNKS
from tidelog.jobs.audit.work import (
    COMPARED,
    KEYS,
    ORDERED,
    REDUCED,
    ComparePart,
    KeyPart,
    RecordPosition,
    ReducePart,
    displaced_in,
    key_parts,
    order_part,
    read_cells,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.key_tables import ROWS_MAX
from tidelog.record.kernels import key_rows
from tidelog.scan.plan import with_directory
from tidelog.scan.table_rules import compacted_to
from tidelog.spark.parts import directory_env, run_parts
from tidelog.spark.places import Place
from tidelog.storage.compaction.cleaning_plan import is_whole
from tidelog.storage.segment.compaction_history import HISTORY_FILE, read_history
from tidelog.types import INT64_MAX, INT64_MIN, ClockName, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.record.kernels.memory import Longs
    from tidelog.storage.directory.log_dir import LogDir


Times = tuple[int | None, int | None]

# Function that reads parts of a side, and returns a `Run` for each range of offsets that it has
# reduced to rows by key. The time range [start, end) limits only reads from brokers. For a
# directory, each part's split already contains the time range.
Read = Callable[[Sequence[ReadPart], Times], list[Run]]

# Maximum number of rounds in which later records are read (see `read_later_records`). A further
# round is needed if compaction may have processed records after the end of the previous round. If a
# log stores the offset up to which it was compacted, this happens only if a compaction ended during
# the previous round. Records that arrive during the last round are not read. They are only seconds
# old, so it is unlikely that compaction has already removed earlier records of their keys.
_ROUNDS: Final = 5

_NO_TIMES: Final[Times] = (None, None)
_NOTHING: Final = (0, 0)


def read_later_records(
    side: Side, plan: SidePlan, topics: Collection[str], scope: ReadScope, read: Read
) -> list[Run]:
    """Read the later records that may have made compaction remove compared records.

    Later records are the records of one side after the compared offsets, or outside the time range.

    Args:
        side: The side.
        plan: The side's plan of compared records.
        topics: Topics with a difference; only compacted topics are read.
        scope: Selection of the compared records.
        read: Function that reads parts of a side.

    Returns:
        A `Run` for each range of later records, which are reduced to rows by key.

    Raises:
        UnknownTopic, CorruptData, ClusterFailure, StorageFailure: The topics can't be read.
    """
    topics = plan.compacted.intersection(topics)
    compared = {name: cut for name, cut in plan.cuts.items() if name.topic in topics}
    ends = {name: end for name, (_, end) in compared.items()}
    runs: list[Run] = []
    for number in range(_ROUNDS):
        has_times = scope.has_times and number == 0
        doubtful = _doubtful(side, compared, ends, scope if has_times else None)
        beyond = {name: ends[name] for name in doubtful}
        planned = _plan(side, compared, beyond, scope, _NO_TIMES)
        runs += read(planned.parts, _NO_TIMES)
        if has_times:
            starts = {name: compared[name][0] for name in doubtful}
            for times in _outside(scope):
                runs += read(_plan(side, compared, starts, scope, times).parts, times)
        elif not planned.parts:
            break
        ends |= {name: planned.cuts[name][1] for name in doubtful if name in planned.cuts}
    return runs


def _outside(scope: ReadScope) -> list[Times]:
    """Return the time ranges before and after the selected time range."""
    ranges: list[Times] = []
    if scope.start_ms is not None:
        ranges.append((None, scope.start_ms))
    if scope.end_ms is not None:
        ranges.append((scope.end_ms, None))
    return ranges


def _plan(
    side: Side,
    compared: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, int],
    scope: ReadScope,
    times: Times,
) -> SidePlan:
    """Plan reads of the partitions in `starts`, from their offsets in `starts`, in a time range."""
    if not starts:
        return SidePlan()
    limits = {name: (starts[name], INT64_MAX) if name in starts else _NOTHING for name in compared}
    topics = sorted({name.topic for name in starts})
    later = replace(scope, start_ms=times[0], end_ms=times[1])
    return plan_side(replace(side, limits=limits), topics, later, ())


def _doubtful(
    side: Side,
    cuts: Mapping[TopicPartition, tuple[int, int]],
    ends: Mapping[TopicPartition, int],
    times: ReadScope | None,
) -> list[TopicPartition]:
    """Return the partitions in which compaction may have removed compared records."""
    if side.place.is_broker or not cuts:
        return sorted(cuts)

    def look(log_dir: "LogDir") -> list[TopicPartition]:
        return [n for n in sorted(cuts) if _may_lack(log_dir, n, cuts[n][0], ends[n], times)]

    return with_directory(side.place.address, directory_env(side.place), look)


def _may_lack(
    log_dir: "LogDir", name: TopicPartition, start: int, end: int, times: ReadScope | None
) -> bool:
    reader, fs = log_dir.reader(name.topic, name.partition), log_dir.env.files
    directory = reader.context.directory
    if not fs.exists(f"{directory}/{HISTORY_FILE}"):
        # Apache Kafka's cleaner stores the cleaned offset only when a cleaning ends. So the stored
        # offset may be too low, and this function does not use it. But the cleaner never cleans the
        # last segment, and never removes a record because of a record in the last segment.
        if times is None and reader.segments[-1].base_offset <= end:
            return False
        before = [each for each in reader.segments if each.base_offset < end]
        return not is_whole(before, reader.log_start_offset)
    reached = compacted_to(log_dir, name)
    if reached > end or times is None:
        return reached > end
    if times.start_ms is None and times.end_ms is not None:
        history = read_history(fs, directory)
        since_ms = None if history is None else history.exact_since_ms(ClockName.RECORD)
        if since_ms is not None and since_ms < times.end_ms:
            return False
    return reached > start


# Section of a file of pairs (see `key_verdicts`): file name, index of the first pair, count of
# pairs, and checksum of these pairs. A pair is a single row for a key that is equal on A and B,
# with the place of the key's last record on each side.
Section = tuple[str, int, int, int]


@dataclass(slots=True)
class TopicResult:
    """Result of comparing one topic.

    Attributes:
        history: Whether the records before a key's last record were compared, too.
        counts: Counts by name: `a_keys`, `b_keys`, `deleted`, `superseded`, and the count of
            differing keys under the name of each kind.
        differences: Rows of keys that differ; fields as in `key_verdicts`.
        sections: Sections of files with the pairs of equal keys, by the partition on A and the
            partition on B.
    """

    history: bool
    counts: Counter[str] = field(default_factory=Counter)
    differences: "list[Longs]" = field(default_factory=list)
    sections: dict[tuple[int, int], list[Section]] = field(default_factory=dict)

    @property
    def has_differences(self) -> bool:
        """Whether any key has a difference of a kind that is not ignored."""
        return any(len(rows) for rows in self.differences)

    def rows(self, keys_max: int) -> "Longs":
        """Return rows of keys that differ, at most `keys_max` of each kind."""
        empty = np.empty((0, DIFFERENCE_FIELDS), np.int64)
        rows = np.concatenate([empty, *self.differences])
        kinds = [rows[rows[:, 0] == number][:keys_max] for number in range(len(Kind))]
        return np.concatenate(kinds)

    def add(self, counts: dict[str, object], differences: bytes, ignore: frozenset[Kind]) -> None:
        """Add the result of one task, except differences of the kinds in `ignore`."""
        pairs = counts.pop("pairs", None)
        self.counts.update({name: int(str(n)) for name, n in counts.items() if name not in ignore})
        rows = np.frombuffer(differences, np.int64).reshape(-1, DIFFERENCE_FIELDS)
        ignored = [number for number, kind in enumerate(Kind) if kind in ignore]
        self.differences.append(rows[~np.isin(rows[:, 0], ignored)])
        if isinstance(pairs, list):
            name, sections, first = pairs[0], pairs[1], 0
            for a_partition, b_partition, count, crc in sections:
                pair_sections = self.sections.setdefault((a_partition, b_partition), [])
                pair_sections.append((name, first, count, crc))
                first += count


# Approximate maximum number of rows that a task compares. These rows need 144 MB of memory. The
# task's lookup table of one side's rows needs additional memory.
_ROWS_PER_TASK: Final = 2_000_000

_ROWS_WORTH_A_TASK: Final = 100_000

# Maximum number of keys in a topic for which the driver checks the keys' order. For a topic with
# more keys, tasks check the order: one task for each pair of a partition on A and a partition on B.
_PAIRS_ON_DRIVER_MAX: Final = 4 << 20

# Maximum number of keys in a pair of partitions (one on A, one on B) for which a task checks the
# keys' order; with this number the task needs 3.8 GB. If a pair of partitions has more keys, their
# order is not checked.
_PAIRS_MAX: Final = 64 << 20

_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWork:
    """Values that the steps of one audit share.

    Attributes:
        spark: The session.
        env: Access to the files in the folder.
        folder: Folder with the files of rows.
        plan: The audit's plan.
        tasks: Number of tasks that run in parallel.
        rows_max: Maximum number of keys that a task holds in memory while it reads; None for the
            default.
    """

    spark: "SparkSession"
    env: Env
    folder: str
    plan: AuditPlan
    tasks: int
    rows_max: int | None

    @property
    def scope(self) -> ReadScope:
        """Selection of the records that are read on both sides."""
        return ReadScope(
            start_ms=self.plan.start_ms,
            end_ms=self.plan.end_ms,
            isolation=self.plan.isolation,
            split_bytes=self.plan.options["split_bytes"],
            tasks=self.tasks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOutcome:
    """Outcome of all steps of an audit.

    Attributes:
        plans: Plans of the sides, by letter.
        state: State to store for the next audit.
        reused_count: Number of runs of earlier audits that were reused.
        results: Result of each topic, in the order of the pairs.
        keys: Key of each listed difference, by the position of the key's last record. If this
            record was deleted before the key was read, there is no entry.
        log_bytes: Number of bytes of log that were read.
        notes: Notes for the user.
    """

    plans: Mapping[str, SidePlan]
    state: State
    reused_count: int
    results: Sequence[TopicResult]
    keys: Mapping[RecordPosition, bytes | None]
    log_bytes: int
    notes: Sequence[str]


def run_audit(work: AuditWork, state: State) -> AuditOutcome:
    """Run an audit.

    Args:
        work: Values that the steps share.
        state: State from earlier audits.

    Raises:
        UnknownTopic, InvalidRequest, ClusterFailure: The topics can't be read.
        StorageFailure: Files of rows were damaged again after each rewrite.
    """
    notes: list[str] = []
    log_bytes = 0
    for _ in range(_TRIES):
        plans = {letter: _plan_audit(work, side, state) for letter, side in work.plan.sides.items()}
        reduced_runs = _reduce(work, plans, state)
        reused_runs = [run for plan in plans.values() for run in plan.reused_runs]
        log_bytes += sum(run.log_bytes for run in reduced_runs)
        state = replace(state, runs=(*_others(work, state), *reused_runs, *reduced_runs))
        results, damaged = _compare(work, plans, state, ())
        behind = () if damaged else _read_later_records(work, plans, state, results)
        if behind:
            log_bytes += sum(run.log_bytes for run in behind)
            results, damaged = _compare(work, plans, state, behind)
        if not damaged:
            break
        were = verb(len(damaged), "was", "were")
        notes.append(f"{plural(len(damaged), 'file')} in {work.folder} {were} damaged and rebuilt")
        whole = (run for run in state.runs if damaged.isdisjoint(run.files))
        state = replace(state, runs=tuple(whole))
    else:
        reason = "files of rows were damaged repeatedly after they were rewritten"
        raise StorageFailure(work.folder, "read", reason)
    for pair, result in zip(work.plan.pairs, results, strict=True):
        notes += _check_order(work, pair, result)
    keys, key_bytes = _fetch_keys(work, state, results)
    return AuditOutcome(
        plans=plans,
        state=state,
        reused_count=len(reused_runs),
        results=results,
        keys=keys,
        log_bytes=log_bytes + key_bytes,
        notes=notes,
    )


def _plan_audit(work: AuditWork, side: Side, state: State) -> SidePlan:
    topics = [name for pair in work.plan.pairs if (name := pair.on(side.letter)) is not None]
    runs = [run for run in state.runs if run.side == side.letter and run.topic in topics]
    return plan_side(side, topics, work.scope, runs)


def _others(work: AuditWork, state: State) -> list[Run]:
    """Return the `Run`s of topics that this audit doesn't compare; they stay in the state."""
    requested = {
        (letter, pair.on(letter)) for pair in work.plan.pairs for letter in work.plan.sides
    }
    return [run for run in state.runs if (run.side, run.topic) not in requested]


def _reduce(work: AuditWork, plans: Mapping[str, SidePlan], state: State) -> list[Run]:
    """Read the offsets that no reused run covers; return a `Run` for each range that was read."""
    parts = [part for plan in plans.values() for part in plan.parts]
    work.plan.options["listener"].note(
        f"reading {plural(len(parts), 'part')} of {plural(len(plans), 'place')}"
    )
    scope = work.scope
    return _read(work, state, parts, (scope.start_ms, scope.end_ms))


def _read(work: AuditWork, state: State, parts: Sequence[ReadPart], times: Times) -> list[Run]:
    """Read the parts in Spark tasks, and return the `Run`s that the tasks have written.

    The time range `times` limits only reads from brokers. For a directory, each part's split
    already contains the time range.
    """
    start, end = times
    bounds = (INT64_MIN if start is None else start, INT64_MAX if end is None else end)
    reduce = ReducePart(
        places=_places(work),
        folder=work.folder,
        seed=state.seed,
        span_ms=work.plan.options["span_ms"],
        isolation=work.scope.isolation,
        times=None if times == (None, None) else bounds,
        rows_max=work.rows_max or ROWS_MAX,
    )
    texts = [part.encode() for part in parts]
    rows = run_parts(work.spark, texts, reduce, REDUCED, listener=work.plan.options["listener"])
    return [decode_run(json.loads(str(row["run"]))) for row in rows]


def _read_later_records(
    work: AuditWork, plans: Mapping[str, SidePlan], state: State, results: "Sequence[TopicResult]"
) -> list[Run]:
    """Read the later records of topics in which a key differs; see `read_later_records`."""
    runs: list[Run] = []
    for letter, plan in plans.items():
        both = zip(work.plan.pairs, results, strict=True)
        topics = [
            pair.on(letter) for pair, result in both if "b" in plans and result.has_differences
        ]
        topic_names = [topic for topic in topics if topic is not None]
        read = partial(_read, work, state)
        runs += read_later_records(work.plan.sides[letter], plan, topic_names, work.scope, read)
    return runs


def _places(work: AuditWork) -> tuple[tuple[str, Place], ...]:
    return tuple((letter, side.place) for letter, side in work.plan.sides.items())


# -- comparing ------------------------------------------------------------------------------------


def _compare(
    work: AuditWork,
    plans: Mapping[str, SidePlan],
    state: State,
    behind: Sequence[Run],
) -> tuple[list[TopicResult], set[str]]:
    """Compare the rows of all topics; return one result per topic, and the names of damaged files.

    Args:
        work: Values that the steps share.
        plans: Plans of the sides, by letter.
        state: State with the runs to compare.
        behind: Runs of later records. Their rows are not compared with the other side. If a key
            differs and is in one of these runs, the key counts as superseded.
    """
    results = [TopicResult(_has_history(work, plans, state, pair)) for pair in work.plan.pairs]
    parts, numbers = [], []
    for number, (pair, result) in enumerate(zip(work.plan.pairs, results, strict=True)):
        unsure = [run for run in behind if pair.on(run.side) == run.topic]
        offsets = _positions_in(pair, work)
        topic_parts = list(_parts_of(work, state, pair, result, offsets, unsure))
        parts += topic_parts
        numbers += [number] * len(topic_parts)
    wants_order = Kind.REORDERED not in work.plan.ignore and "b" in work.plan.sides
    keys_max, listener = work.plan.options["keys_max"], work.plan.options["listener"]
    compare = ComparePart(folder=work.folder, keys_max=keys_max, wants_order=wants_order)
    listener.note(f"comparing with {plural(len(parts), 'task')}")
    damaged: set[str] = set()
    for number, row in zip(numbers, run_parts(work.spark, parts, compare, COMPARED), strict=True):
        counts, differences = json.loads(str(row["counts"])), row["differences"]
        assert isinstance(differences, bytes)
        damaged |= set(counts.pop("damaged"))
        results[number].add(counts, differences, work.plan.ignore)
    return results, damaged


def _has_history(work: AuditWork, plans: Mapping[str, SidePlan], state: State, pair: Pair) -> bool:
    """Return whether all records of a key are compared, not only the last record.

    If the option `history` is given, its value is returned. Otherwise, the result is False in two
    cases: the topic is compacted on one side, or one log has overwritten create times that the
    other log still has. In the second case, the digest of all records of a key would always differ
    between the sides, because it contains the create times.
    """
    if (history := work.plan.options["history"]) is not None:
        return history
    if any(pair.on(letter) in plan.compacted for letter, plan in plans.items()):
        return False
    runs = [_runs_of(state, letter, pair.on(letter)) for letter in plans]
    untimed = {sum(run.untimed for run in side) for side in runs}
    is_stamped = any(pair.on(letter) in plan.stamped for letter, plan in plans.items())
    return not is_stamped or len(untimed) == 1


def _positions_in(pair: Pair, work: AuditWork) -> Mapping[int, int] | None:
    """Return the group's committed offsets by partition of B, or of A if there is no B.

    Returns None if no group is checked, or if that side does not have the topic.
    """
    topic, positions = pair.on("b" if "b" in work.plan.sides else "a"), work.plan.positions
    if positions is None or topic is None:
        return None
    return {name.partition: o for name, o in positions.items() if name.topic == topic}


def _parts_of(
    work: AuditWork,
    state: State,
    pair: Pair,
    result: TopicResult,
    positions: Mapping[int, int] | None,
    behind: Sequence[Run],
) -> Iterable[str]:
    """Yield the inputs of the tasks that compare one topic."""
    runs = [_runs_of(state, letter, pair.on(letter)) for letter in work.plan.sides]
    last = {run.partition: 0 for run in runs[-1]}
    total = sum(run.rows for side in runs for run in side)
    tasks = min(max(total // _ROWS_WORTH_A_TASK, 1), work.tasks)
    tasks = min(max(tasks, -(-total // _ROWS_PER_TASK)), CHUNKS)
    edges = [CHUNKS * number // tasks for number in range(tasks + 1)]
    files: list[object] = [_files_of(side) for side in runs]
    fields = {
        "files": files if len(files) == 2 else [*files, None],
        "history": result.history,
        "behind": _files_of(behind),
        "positions": None if positions is None else last | dict(positions),
    }
    for start, end in pairwise(edges):
        yield json.dumps(fields | {"chunks": [start, end]})


def _runs_of(state: State, letter: str, topic: str | None) -> list[Run]:
    """Return the runs of a topic on one side, ordered by partition and offset."""
    runs = (run for run in state.runs if run.side == letter and run.topic == topic)
    return sorted(runs, key=lambda run: (run.partition, run.start))


def _files_of(runs: Sequence[Run]) -> list[tuple[int, list[str]]]:
    """Return each partition with the names of its files of rows, ordered by offset."""
    files: dict[int, list[str]] = {}
    for run in runs:
        files.setdefault(run.partition, []).extend(run.files)
    return list(files.items())


# -- the order of keys ----------------------------------------------------------------------------


def _check_order(work: AuditWork, pair: Pair, result: TopicResult) -> Iterable[str]:
    """Add to the result the keys whose last records are in different orders on A and B.

    Yield a note for each pair of partitions with too many keys to be checked.
    """
    sizes = {partitions: sum(one[2] for one in s) for partitions, s in result.sections.items()}
    selected = [s for partitions, s in result.sections.items() if sizes[partitions] <= _PAIRS_MAX]
    if sum(sizes.values()) <= _PAIRS_ON_DRIVER_MAX:
        tables = [displaced_in(work.env, work.folder, sections) for sections in selected]
    else:
        count = sum(sizes.values())
        keys = plural(count, "key")
        work.plan.options["listener"].note(f"{pair.name}: checking the order of {keys}")
        parts = [json.dumps(sections) for sections in selected]
        rows = run_parts(work.spark, parts, partial(order_part, work.folder), ORDERED)
        cells = (row["displaced"] for row in rows)
        tables = [_pairs(cell) for cell in cells if isinstance(cell, bytes)]
    displaced = differences_of_pairs(np.concatenate([_pairs(b""), *tables]))
    result.counts[Kind.REORDERED.value] += len(displaced)
    result.differences.append(displaced)
    for (a, b), size in sizes.items():
        if size > _PAIRS_MAX:
            yield (
                f"{pair.name}: the order of {size:,} keys of partition {a} of A and {b} of B was"
                f" not compared; the limit is {_PAIRS_MAX:,}"
            )


def _pairs(data: bytes) -> "Longs":
    return np.frombuffer(data, np.int64).reshape(-1, PAIR_FIELDS)


# -- keys of the differences ----------------------------------------------------------------------


def position_of(row: Sequence[int], work_sides: Mapping[str, Side], pair: Pair) -> RecordPosition:
    """Return the position of the last record of a row's key: on A or, if A lacks the key, on B."""
    has_a = row[A_AT + key_rows.COUNT] != 0
    at = A_AT if has_a else B_AT
    letter = "a" if has_a or "b" not in work_sides else "b"
    partition, offset = row[at + key_rows.PARTITION], row[at + key_rows.OFFSET]
    topic = pair.on(letter)
    assert topic is not None
    return RecordPosition(letter, topic, partition if partition >= 0 else ~partition, offset)


def _fetch_keys(
    work: AuditWork, state: State, results: Sequence[TopicResult]
) -> tuple[dict[RecordPosition, bytes | None], int]:
    records = [
        position_of(row, work.plan.sides, pair)
        for pair, result in zip(work.plan.pairs, results, strict=True)
        for row in result.rows(work.plan.options["keys_max"]).tolist()
    ]
    ids = {(run.side, run.topic): run.topic_id for run in state.runs}
    fetch = KeyPart(places=_places(work), isolation=work.scope.isolation)
    rows = run_parts(work.spark, key_parts(records, ids), fetch, KEYS)
    cells = chain.from_iterable(read_cells(str(row["keys"])) for row in rows)
    return {record: key for record, _, key in cells}, sum(
        int(str(row["log_bytes"])) for row in rows
    )
