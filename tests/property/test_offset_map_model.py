"""An offset map compared with a list of every copied record, scanned from the front."""

from dataclasses import dataclass
from operator import sub

from hypothesis import given
from hypothesis import strategies as st

from tidelog.jobs.offset_map import (
    DENSE,
    CopiedRange,
    MapBatch,
    MapRow,
    OffsetMap,
    Partitioning,
    SourcePartition,
    SourceTopic,
    decode_map,
    encode_map,
)
from tidelog.types import TopicPartition

SOURCES, TARGETS, OFFSETS = 2, 2, 60


@dataclass(frozen=True, slots=True)
class CopiedRecord:
    """One record, its place in the source and in the target."""

    source: int
    offset: int
    target: int
    target_offset: int
    create_ms: int
    arrival_ms: int


@st.composite
def histories(draw: st.DrawFn) -> list[list[CopiedRecord]]:
    """Draw batches of a mirror: some records of each source, in any order, to any target."""
    ends = [draw(st.integers(0, 3)) for _ in range(TARGETS)]
    nexts = [0] * SOURCES
    history = []
    for number in range(draw(st.integers(1, 6))):
        chosen = []
        for source in range(SOURCES):
            count = draw(st.integers(0, 8))
            gaps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
            for gap in gaps:
                nexts[source] += gap
                chosen.append((source, nexts[source] - 1))
        if draw(st.booleans()):
            chosen = draw(st.permutations(chosen))
        records = []
        for source, offset in chosen:
            target = draw(st.integers(0, TARGETS - 1))
            ends[target] += draw(st.sampled_from([1, 1, 1, 2]))
            created = draw(st.integers(0, 50))
            arrived = 100 * (number + 1)
            records.append(CopiedRecord(source, offset, target, ends[target] - 1, created, arrived))
        history.append(records)
    return history


def map_rows(records: list[CopiedRecord], cut: int) -> tuple[MapRow, ...]:
    """Return rows for groups of at most `cut` records of one source and target partition."""
    groups: dict[tuple[int, int], list[CopiedRecord]] = {}
    for one in records:
        groups.setdefault((one.source, one.target), []).append(one)
    rows = []
    for group in groups.values():
        ordered = sorted(group, key=lambda one: one.offset)
        rows += [_row(ordered[at : at + cut]) for at in range(0, len(ordered), cut)]
    return tuple(rows)


def _row(part: list[CopiedRecord]) -> MapRow:
    offsets = [one.offset for one in part]
    places = [one.target_offset for one in part]
    run = range(offsets[0], offsets[-1] + 1)
    is_dense = offsets == list(run) and len(set(map(sub, places, offsets))) == 1
    return MapRow(
        source=0,
        source_partition=part[0].source,
        target_partition=part[0].target,
        flags=DENSE if is_dense else 0,
        source_start=run.start,
        source_end=run.stop,
        target_start=min(places),
        target_end=max(places) + 1,
        create_ms_min=min(one.create_ms for one in part),
        create_ms_max=max(one.create_ms for one in part),
        arrival_ms=part[0].arrival_ms,
    )


def mapped(history: list[list[CopiedRecord]], cut: int, rows_max: int) -> OffsetMap:
    found = OffsetMap(
        target="there",
        target_ids={"t": ""},
        partition_counts={"t": TARGETS},
        sources=(SourceTopic(place="here", topic="s", topic_id="", target="t"),),
        partitioning=Partitioning.ANY,
        copied={SourcePartition(0, number): CopiedRange(0, 0) for number in range(SOURCES)},
        ends={TopicPartition("t", number): 0 for number in range(TARGETS)},
    )
    for number, records in enumerate(history):
        copied, ends = dict[SourcePartition, CopiedRange](), dict[TopicPartition, int]()
        for one in records:
            place, target = SourcePartition(0, one.source), TopicPartition("t", one.target)
            old = copied.get(place, CopiedRange(one.offset, one.offset + 1))
            copied[place] = CopiedRange(min(old.start, one.offset), max(old.end, one.offset + 1))
            ends[target] = max(ends.get(target, 0), one.target_offset + 1)
        rows = map_rows(records, cut)
        found = found.add(
            MapBatch(batch_id=number, copied=copied, ends=ends, rows=rows), rows_max=rows_max
        )
    return found


@given(histories(), st.integers(1, 5), st.integers(1, 40))
def test_no_unconsumed_record_is_before_a_start(
    history: list[list[CopiedRecord]], cut: int, rows_max: int
) -> None:
    found = mapped(history, cut, rows_max)
    assert decode_map(encode_map(found)) == found
    everything = [one for records in history for one in records]
    for source in range(SOURCES):
        for offset in range(OFFSETS):
            starts = found.starts(SourcePartition(0, source), offset)
            for target, start in starts.items():
                unread = [
                    one.target_offset
                    for one in everything
                    if one.source == source
                    and one.offset >= offset
                    and one.target == target.partition
                ]
                assert start.offset <= min(unread, default=found.ends[target])
                if unread and start.is_exact:
                    assert start.offset == min(unread)


@given(histories())
def test_with_a_row_for_each_record_starts_are_exact(history: list[list[CopiedRecord]]) -> None:
    found = mapped(history, 1, 10_000)
    everything = [one for records in history for one in records]
    for source in range(SOURCES):
        for offset in range(OFFSETS):
            for target, start in found.starts(SourcePartition(0, source), offset).items():
                unread = [
                    one.target_offset
                    for one in everything
                    if (one.source, one.target) == (source, target.partition)
                    and one.offset >= offset
                ]
                assert start.offset == min(unread, default=found.ends[target])


@given(histories(), st.integers(1, 5), st.integers(1, 40))
def test_no_later_record_is_before_a_start_by_time(
    history: list[list[CopiedRecord]], cut: int, rows_max: int
) -> None:
    found = mapped(history, cut, rows_max)
    everything = [one for records in history for one in records]
    for time_ms in (0, 1, 25, 50, 99, 100, 250, 601):
        for target, start in found.starts_by_arrival(0, time_ms).items():
            later = [
                one.target_offset
                for one in everything
                if one.target == target.partition and one.arrival_ms >= time_ms
            ]
            assert start.offset <= min(later, default=found.ends[target])
        for target, start in found.starts_by_create_time(0, time_ms).items():
            later = [
                one.target_offset
                for one in everything
                if one.target == target.partition and one.create_ms >= time_ms
            ]
            assert start.offset <= min(later, default=found.ends[target])


@given(histories(), st.integers(1, 40))
def test_every_copied_record_has_its_origin(
    history: list[list[CopiedRecord]], rows_max: int
) -> None:
    found = mapped(history, 3, rows_max)
    for records in history:
        for one in records:
            target = TopicPartition("t", one.target)
            origins = found.origins(target, one.target_offset)
            assert any(
                row.source_partition == one.source
                and row.source_start <= one.offset < row.source_end
                for row in origins
            )
