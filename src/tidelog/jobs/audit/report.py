"""Conversion of an audit's outcome to its report: figures, time spans, and keys that differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tidelog.amounts import plural, verb
from tidelog.jobs.audit.key_verdicts import A_AT, B_AT, KIND
from tidelog.jobs.audit.options import KINDS, Kind
from tidelog.jobs.audit.plan import AuditPlan, Pair
from tidelog.jobs.audit.results import (
    AuditResults,
    Bucket,
    Difference,
    Last,
    TopicFigures,
)
from tidelog.jobs.audit.run import AuditOutcome, TopicResult, position_of
from tidelog.jobs.audit.state import Run
from tidelog.jobs.audit.work import RecordPosition
from tidelog.record.columns.key_tables import TimeSpans
from tidelog.record.kernels import key_rows
from tidelog.types import NO_TIMESTAMP

_ROW_BYTES: Final = key_rows.FIELDS * 8
_SIDES: Final = ("a", "b")


def audited(plan: AuditPlan, outcome: AuditOutcome) -> AuditResults:
    """Return the report of an audit, from its plan and the outcome of its steps."""
    by_topic = list(zip(plan.pairs, outcome.results, strict=True))
    figures = [_figures(plan, outcome, pair, result) for pair, result in by_topic]
    notes = [
        *(line for side in outcome.plans.values() for line in side.reports),
        *(line for run in outcome.state.runs for line in run.lost),
        *outcome.notes,
        *(line for one in figures for line in _notes_on(one, plan)),
    ]
    return AuditResults(
        differences=[
            one
            for pair, result in by_topic
            for one in _differences(plan, pair, result, outcome.keys)
        ],
        topics=figures,
        buckets=[one for pair in plan.pairs for one in _buckets(plan, outcome.state.runs, pair)],
        cuts={
            (letter, name): cut
            for letter, side in outcome.plans.items()
            for name, cut in side.cuts.items()
        },
        log_bytes=outcome.log_bytes,
        state_bytes=_ROW_BYTES * sum(run.rows for run in outcome.state.runs),
        all_bytes=sum(side.log_bytes for side in outcome.plans.values()),
        kept_runs=outcome.reused_count,
        chance=_chance(sum(sum(one.keys) for one in figures)),
        notes=notes,
    )


def _chance(keys: int) -> float:
    """Return an upper bound of the probability that the audit missed a difference.

    The bound is valid for any records.

    The bound is the sum of the probabilities of three causes. First cause: two different keys have
    the same 128-bit hash, with a probability of keys^2 / 2^129. Second cause: different data has
    the same 64-bit digest on both sides. There are four such digests: of a key's last value, of a
    key's records in any order, of a key's records in their order, and of the records without a key.
    Third cause: two different values have equal sums before the sums are hashed.
    """
    return keys * keys / 2.0**129 + 5 * (keys + 1) / 2.0**64


def _runs(runs: Iterable[Run], letter: str, pair: Pair) -> list[Run]:
    return [run for run in runs if run.side == letter and run.topic == pair.on(letter)]


def _figures(
    plan: AuditPlan, outcome: AuditOutcome, pair: Pair, result: TopicResult
) -> TopicFigures:
    both = [_runs(outcome.state.runs, letter, pair) for letter in _SIDES]
    records_a, records_b = (sum(run.records for run in side) for side in both)
    unkeyed_a, unkeyed_b = (sum(run.unkeyed for run in side) for side in both)
    sum_a, sum_b = (sum(run.unkeyed_sum for run in side) % (1 << 64) for side in both)
    counts = result.counts
    unkeyed_equal = None
    if "b" in plan.sides and result.history:
        unkeyed_equal = (unkeyed_a, sum_a) == (unkeyed_b, sum_b)
    return TopicFigures(
        topic=pair.name,
        keys=(counts["a_keys"], counts["b_keys"]),
        records=(records_a, records_b),
        unkeyed=(unkeyed_a, unkeyed_b),
        unkeyed_equal=unkeyed_equal,
        deleted=counts["deleted"],
        superseded=counts["superseded"],
        history=result.history,
        kinds={kind: counts[kind.value] for kind in Kind if counts[kind.value]},
    )


def _notes_on(one: TopicFigures, plan: AuditPlan) -> Iterator[str]:
    if one.unkeyed_equal is False:
        a, b = one.unkeyed
        yield f"{one.topic}: records without a key differ: {a:,} on A, {b:,} on B"
    if not one.history and "b" in plan.sides:
        yield f"{one.topic}: only the last record of each key was compared"
    if one.superseded:
        yield (
            f"{one.topic}: {plural(one.superseded, 'key')} {verb(one.superseded, 'was', 'were')}"
            " not compared: their records may have been compacted away in favor of later records"
            " that are outside the compared range"
        )
    keys_max = plan.options["keys_max"]
    for kind, count in one.kinds.items():
        if count > keys_max:
            yield f"{one.topic}: {keys_max:,} of {plural(count, f'{kind} key')} are listed"


# -- keys -----------------------------------------------------------------------------------------


def _differences(
    plan: AuditPlan, pair: Pair, result: TopicResult, keys: Mapping[RecordPosition, bytes | None]
) -> Iterator[Difference]:
    span_ms = plan.options["span_ms"]
    for row in result.rows(plan.options["keys_max"]).tolist():
        a, b = _last(row[A_AT:B_AT]), _last(row[B_AT:])
        kind = KINDS[row[KIND]]
        more = b if a is None or kind in (Kind.AHEAD, Kind.DUPLICATED) else a
        assert more is not None
        bucket_ms = None
        if more.create_ms != NO_TIMESTAMP:
            bucket_ms = more.create_ms // span_ms * span_ms
        if "b" not in plan.sides:
            a, b = b, None
        yield Difference(
            topic=pair.name,
            kind=kind,
            key=keys.get(position_of(row, plan.sides, pair)),
            bucket_ms=bucket_ms,
            a=a,
            b=b,
        )


def _last(row: Sequence[int]) -> Last | None:
    if row[key_rows.COUNT] == 0:
        return None
    partition = row[key_rows.PARTITION]
    return Last(
        partition=partition if partition >= 0 else ~partition,
        offset=row[key_rows.OFFSET],
        create_ms=row[key_rows.TIME],
        records=row[key_rows.COUNT],
        is_deleted=row[key_rows.VALUE] == 0,
    )


# -- time spans -----------------------------------------------------------------------------------


def _buckets(plan: AuditPlan, runs: Sequence[Run], pair: Pair) -> Iterator[Bucket]:
    """Yield a topic's time spans.

    If the same partitions were read on both sides, each partition has its own spans. If the
    partitions differ, each span covers all partitions.
    """
    if "b" not in plan.sides:
        return
    both = [_runs(runs, letter, pair) for letter in _SIDES]
    all_ms = (run.span_ms for side in both for run in side)
    span_ms = max(all_ms, default=plan.options["span_ms"])
    partitions = [{run.partition for run in side} for side in both]
    if partitions[0] != partitions[1]:
        yield from _compared(pair, None, both[0], both[1], span_ms)
        return
    for number in sorted(partitions[0]):
        a, b = ([run for run in side if run.partition == number] for side in both)
        yield from _compared(pair, number, a, b, span_ms)


def _compared(
    pair: Pair, partition: int | None, a: Sequence[Run], b: Sequence[Run], span_ms: int
) -> Iterator[Bucket]:
    sums_a, sums_b = _added(a, span_ms), _added(b, span_ms)
    span_ms = max(sums_a.span_ms, sums_b.span_ms)
    sums_a.widen(span_ms)
    sums_b.widen(span_ms)
    for number in sorted(sums_a.totals.keys() | sums_b.totals.keys()):
        one, other = sums_a.totals.get(number, (0, 0)), sums_b.totals.get(number, (0, 0))
        yield Bucket(
            topic=pair.name,
            partition=partition,
            start_ms=None if number == key_rows.NO_SPAN else number * span_ms,
            span_ms=span_ms,
            records=(one[0], other[0]),
            is_equal=one == other,
        )


def _added(runs: Iterable[Run], span_ms: int) -> TimeSpans:
    """Return the time spans of all runs, added up.

    The spans of the result are as long as the longest span of a run, but at least `span_ms`. But if
    that length results in more than `TimeSpans.LIMIT` spans, the spans are longer.
    """
    total = TimeSpans(span_ms)
    for run in runs:
        spans = TimeSpans(run.span_ms)
        spans.add(run.spans)
        spans.widen(max(total.span_ms, run.span_ms))
        total.widen(spans.span_ms)
        total.add(spans.items())
    return total
