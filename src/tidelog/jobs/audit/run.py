"""Steps of an audit: read new records, compare, look at the order of keys, read the keys found.

Owns the order of the steps, reading again, and the result of each topic (`TopicResult`), added up
from the tasks' results. Not owned: what a task does (`work`) and what is read (`plan`).

Rows of keys lie in a folder that driver and workers share. If a file of it is damaged, its run is
read again.

An audit compares the records before an offset, or in a range of time. If a log is compacted beyond
that, compaction may have removed a key's record in favor of one that is not compared, and the key
looks missing, or older than it was. Whatever a cleaning removed, it removed for a record that is
still there, or that was removed for a later one in turn. So only the keys of records that are not
compared can be affected. These are read up to some offset; if a cleaning meanwhile went beyond it,
the records after it are read too (`read_later_records`).

A directory knows how far it was cleaned. For brokers, and for a cleaner that keeps no history, all
records after the cut count.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.env import Env
from tidelog.errors import StorageFailure
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.audit.plan import AuditPlan, Pair, ReadPart, ReadScope, Side, SidePlan, plan_side
from tidelog.jobs.audit.rules import A_AT, B_AT, FOUND_FIELDS, PAIR_FIELDS, found_of_pairs
from tidelog.jobs.audit.state import Run, State, decode_run
from tidelog.jobs.audit.state_files import CHUNKS
from tidelog.jobs.audit.work import (
    COMPARED,
    KEYS,
    ORDERED,
    REDUCED,
    ComparePart,
    KeyPart,
    OrderPart,
    ReducePart,
    Seen,
    displaced_in,
    key_parts,
    read_cells,
)
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


# Reads parts of a side, of records in a range of time [start, end) alone.
Read = Callable[[Sequence[ReadPart], Times], list[Run]]


# What comes while the last round is read is seconds old; a log that says how far it was cleaned
# needs a second one only where a cleaning ended in the first.
_ROUNDS: Final = 5


_NO_TIMES: Final[Times] = (None, None)


_NOTHING: Final = (0, 0)


def read_later_records(
    side: Side, plan: SidePlan, topics: Collection[str], scope: ReadScope, read: Read
) -> list[Run]:
    """Runs of the records of one side that are not compared, where these may have cost others.

    Args:
        side: Which one.
        plan: How it was read.
        topics: Its topics that are asked about; others than compacted ones lack nothing.
        scope: What was read.
        read: Reads.

    Raises:
        UnknownTopic, CorruptData, ClusterFailure, StorageFailure: As a read of these topics.
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
    """The times that were not asked for."""
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
    """What some partitions of those asked about have from an offset on, at these times."""
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
    """The partitions that may lack something for what lies at the ends, or at other times."""
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
        # Apache Kafka's cleaner tells how far it went when it is through. The last segment is not
        # cleaned, nor is anything taken for what lies in it.
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


# File, first pair in it, number of pairs, their checksum.
Section = tuple[str, int, int, int]


@dataclass(slots=True)
class TopicResult:
    """What comparing the rows of one topic came to.

    Attributes:
        history: Whether records before the last one were compared.
        counts: `a_keys`, `b_keys`, `deleted`, and keys by kind.
        found: Rows of keys that are not equal, see `rules`.
        sections: Where the pairs of equal keys are, by partition of A and of B.
    """

    history: bool
    counts: Counter[str] = field(default_factory=Counter)
    found: "list[Longs]" = field(default_factory=list)
    sections: dict[tuple[int, int], list[Section]] = field(default_factory=dict)

    @property
    def has_found(self) -> bool:
        """Whether any key is not equal, and wanted."""
        return any(len(rows) for rows in self.found)

    def rows(self, keys_max: int) -> "Longs":
        """The found rows, at most so many of each kind."""
        empty = np.empty((0, FOUND_FIELDS), np.int64)
        rows = np.concatenate([empty, *self.found])
        kinds = [rows[rows[:, 0] == number][:keys_max] for number in range(len(Kind))]
        return np.concatenate(kinds)

    def add(self, counts: dict[str, object], found: bytes, ignore: frozenset[Kind]) -> None:
        """Add what one task has found, but kinds that are not looked for."""
        pairs = counts.pop("pairs", None)
        self.counts.update({name: int(str(n)) for name, n in counts.items() if name not in ignore})
        rows = np.frombuffer(found, np.int64).reshape(-1, FOUND_FIELDS)
        ignored = [number for number, kind in enumerate(Kind) if kind in ignore]
        self.found.append(rows[~np.isin(rows[:, 0], ignored)])
        if isinstance(pairs, list):
            name, sections, first = pairs[0], pairs[1], 0
            for a_partition, b_partition, count, crc in sections:
                place = self.sections.setdefault((a_partition, b_partition), [])
                place.append((name, first, count, crc))
                first += count


# 144 MB of rows, which a task holds with a table of one side's.
_ROWS_PER_TASK: Final = 2_000_000


_ROWS_WORTH_A_TASK: Final = 100_000


# The order of so many keys is looked at here; of more, by a task for each pair of partitions.
_PAIRS_HERE: Final = 4 << 20


# 3.6 GB of pairs in one task; where a pair of partitions has more, their order is not looked at.
_PAIRS_MAX: Final = 64 << 20


_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWork:
    """State that the steps of one audit share.

    Attributes:
        spark: The session.
        env: Files of the folder.
        folder: Where rows are.
        plan: What is compared, and how.
        tasks: How many tasks run side by side.
        rows_max: Keys that a task holds while it reads; None for the usual number.
    """

    spark: "SparkSession"
    env: Env
    folder: str
    plan: AuditPlan
    tasks: int
    rows_max: int | None

    @property
    def scope(self) -> ReadScope:
        """Scope of the records read on both sides."""
        return ReadScope(
            start_ms=self.plan.start_ms,
            end_ms=self.plan.end_ms,
            isolation=self.plan.isolation,
            split_bytes=self.plan.options["split_bytes"],
            tasks=self.tasks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOutcome:
    """All that an audit has come to know.

    Attributes:
        plans: Of each side.
        state: What is worth keeping.
        kept: How many runs were known before.
        results: Of each topic, in the order of the pairs.
        keys: Create time and key of records that were fetched.
        log_bytes: Bytes of log that were read.
        notes: What there is to say.
    """

    plans: Mapping[str, SidePlan]
    state: State
    kept: int
    results: Sequence[TopicResult]
    keys: Mapping[Seen, bytes | None]
    log_bytes: int
    notes: Sequence[str]


def run_audit(work: AuditWork, state: State) -> AuditOutcome:
    """Do it.

    Args:
        work: What with.
        state: What is known already.

    Raises:
        UnknownTopic, InvalidRequest, ClusterFailure: As a read of the topics.
        StorageFailure: Files of rows are damaged as soon as they are written.
    """
    notes: list[str] = []
    log_bytes = 0
    for _ in range(_TRIES):
        plans = {letter: _plan_audit(work, side, state) for letter, side in work.plan.sides.items()}
        made = _reduce(work, plans, state)
        kept_runs = [run for plan in plans.values() for run in plan.kept]
        log_bytes += sum(run.log_bytes for run in made)
        state = replace(state, runs=(*_others(work, state), *kept_runs, *made))
        results, damaged = _compare(work, plans, state, ())
        behind = () if damaged else _read_later_records(work, plans, state, results)
        if behind:
            log_bytes += sum(run.log_bytes for run in behind)
            results, damaged = _compare(work, plans, state, behind)
        if not damaged:
            break
        notes.append(f"{len(damaged)} files in {work.folder} were damaged, and made anew")
        whole = (run for run in state.runs if damaged.isdisjoint(run.files))
        state = replace(state, runs=tuple(whole))
    else:
        raise StorageFailure(work.folder, "read", "files of rows are damaged again and again")
    for pair, result in zip(work.plan.pairs, results, strict=True):
        notes += _look_at_order(work, pair, result)
    keys, key_bytes = _fetch_keys(work, state, results)
    return AuditOutcome(
        plans=plans,
        state=state,
        kept=len(kept_runs),
        results=results,
        keys=keys,
        log_bytes=log_bytes + key_bytes,
        notes=notes,
    )


def _plan_audit(work: AuditWork, side: Side, state: State) -> SidePlan:
    topics = [name for pair in work.plan.pairs if (name := pair.on(side.letter)) is not None]
    known = [run for run in state.runs if run.side == side.letter and run.topic in topics]
    return plan_side(side, topics, work.scope, known)


def _others(work: AuditWork, state: State) -> list[Run]:
    """Runs of topics that are not asked about now."""
    requested = {
        (letter, pair.on(letter)) for pair in work.plan.pairs for letter in work.plan.sides
    }
    return [run for run in state.runs if (run.side, run.topic) not in requested]


def _reduce(work: AuditWork, plans: Mapping[str, SidePlan], state: State) -> list[Run]:
    """Read what no run has yet."""
    parts = [part for plan in plans.values() for part in plan.parts]
    work.plan.options["listener"].note(f"reading {len(parts)} parts of {len(plans)} places")
    scope = work.scope
    return _read(work, state, parts, (scope.start_ms, scope.end_ms))


def _read(work: AuditWork, state: State, parts: Sequence[ReadPart], times: Times) -> list[Run]:
    """Read parts, of brokers what lies in a range of time alone (splits have theirs)."""
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
    """Records that are not compared, of topics where any key seems not to be equal."""
    runs: list[Run] = []
    for letter, plan in plans.items():
        both = zip(work.plan.pairs, results, strict=True)
        topics = [pair.on(letter) for pair, result in both if "b" in plans and result.has_found]
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
    """Hold the rows of all topics together; the second is damaged files, where there are any."""
    results = [TopicResult(_has_history(work, plans, state, pair)) for pair in work.plan.pairs]
    parts, numbers = [], []
    for number, (pair, result) in enumerate(zip(work.plan.pairs, results, strict=True)):
        unsure = [run for run in behind if pair.on(run.side) == run.topic]
        offsets = _positions_in(pair, work)
        topic_parts = list(_parts_of(work, state, pair, result, offsets, unsure))
        parts += topic_parts
        numbers += [number] * len(topic_parts)
    wants_order = Kind.REORDERED not in work.plan.ignore and "b" in work.plan.sides
    found_max, listener = work.plan.options["keys_max"], work.plan.options["listener"]
    compare = ComparePart(folder=work.folder, found_max=found_max, wants_order=wants_order)
    listener.note(f"comparing by {len(parts)} tasks")
    damaged: set[str] = set()
    for number, row in zip(numbers, run_parts(work.spark, parts, compare, COMPARED), strict=True):
        counts, differences = json.loads(str(row["counts"])), row["found"]
        assert isinstance(differences, bytes)
        damaged |= set(counts.pop("damaged"))
        results[number].add(counts, differences, work.plan.ignore)
    return results, damaged


def _has_history(work: AuditWork, plans: Mapping[str, SidePlan], state: State, pair: Pair) -> bool:
    """Whether all records of a key are compared.

    Not where a log has been compacted; and not where one has overwritten create times that the
    other has, since digests of all records tell times and values together.
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
    """A group's place in each partition of the last side; 0 where it has committed nothing."""
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
    """The parts that compare one topic."""
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
    """The runs of one side of a topic, by partition and offset."""
    runs = (run for run in state.runs if run.side == letter and run.topic == topic)
    return sorted(runs, key=lambda run: (run.partition, run.start))


def _files_of(runs: Sequence[Run]) -> list[tuple[int, list[str]]]:
    """The files of each partition, in the order of offsets."""
    files: dict[int, list[str]] = {}
    for run in runs:
        files.setdefault(run.partition, []).extend(run.files)
    return list(files.items())


# -- the order of keys ----------------------------------------------------------------------------


def _look_at_order(work: AuditWork, pair: Pair, result: TopicResult) -> Iterable[str]:
    """Add the keys whose last records stand in another order; notes of what was not looked at."""
    sizes = {place: sum(one[2] for one in s) for place, s in result.sections.items()}
    selected = [s for place, s in result.sections.items() if sizes[place] <= _PAIRS_MAX]
    if sum(sizes.values()) <= _PAIRS_HERE:
        tables = [displaced_in(work.env, work.folder, sections) for sections in selected]
    else:
        count = sum(sizes.values())
        work.plan.options["listener"].note(f"{pair.name}: looking at the order of {count:,} keys")
        parts = [json.dumps(sections) for sections in selected]
        rows = run_parts(work.spark, parts, OrderPart(work.folder), ORDERED)
        cells = (row["displaced"] for row in rows)
        tables = [_pairs(cell) for cell in cells if isinstance(cell, bytes)]
    displaced = found_of_pairs(np.concatenate([_pairs(b""), *tables]))
    result.counts[Kind.REORDERED.value] += len(displaced)
    result.found.append(displaced)
    for (a, b), size in sizes.items():
        if size > _PAIRS_MAX:
            yield (
                f"{pair.name}: the order of {size:,} keys of partition {a} of A and {b} of B was"
                f" not looked at; up to {_PAIRS_MAX:,} can be"
            )


def _pairs(data: bytes) -> "Longs":
    return np.frombuffer(data, np.int64).reshape(-1, PAIR_FIELDS)


# -- the keys found -------------------------------------------------------------------------------


def seen_of(row: Sequence[int], work_sides: Mapping[str, Side], pair: Pair) -> Seen:
    """The record that tells the key of a found row: A's where it has one."""
    has_a = row[A_AT + key_rows.COUNT] != 0
    at = A_AT if has_a else B_AT
    letter = "a" if has_a or "b" not in work_sides else "b"
    partition, offset = row[at + key_rows.PARTITION], row[at + key_rows.OFFSET]
    topic = pair.on(letter)
    assert topic is not None
    return Seen(letter, topic, partition if partition >= 0 else ~partition, offset)


def _fetch_keys(
    work: AuditWork, state: State, results: Sequence[TopicResult]
) -> tuple[dict[Seen, bytes | None], int]:
    records = [
        seen_of(row, work.plan.sides, pair)
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
