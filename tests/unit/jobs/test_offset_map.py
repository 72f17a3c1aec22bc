"""Offset maps: lookups, growth and storage."""

from dataclasses import replace

import pytest

from tidelog.env import os_env
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.jobs.offset_map import (
    DENSE,
    MAGIC,
    CopiedRange,
    MapBatch,
    MapRow,
    OffsetMap,
    OutsideMap,
    Partitioning,
    SourcePartition,
    SourceTopic,
    TargetOffset,
    decode_map,
    encode_map,
    read_map,
    thin,
    write_map,
)
from tidelog.record.partitioner import partition_of
from tidelog.types import TopicPartition

HERE = SourcePartition(0, 0)
T0, T1 = TopicPartition("copy", 0), TopicPartition("copy", 1)


def row(source: range, target: range, *, at: int = 0, dense: bool = False, ms: int = 100) -> MapRow:
    return MapRow(
        source=0,
        source_partition=0,
        target_partition=at,
        flags=DENSE if dense else 0,
        source_start=source.start,
        source_end=source.stop,
        target_start=target.start,
        target_end=target.stop,
        create_ms_min=ms,
        create_ms_max=ms + 10,
        arrival_ms=ms + 50,
    )


def empty(partitions: int = 1, partitioning: Partitioning = Partitioning.KEPT) -> OffsetMap:
    return OffsetMap(
        target="west:9092",
        target_ids={"copy": "t" * 22},
        partition_counts={"copy": partitions},
        sources=(SourceTopic(place="east:9092", topic="orders", topic_id="s" * 22, target="copy"),),
        partitioning=partitioning,
        copied={HERE: CopiedRange(10, 10)},
        ends={TopicPartition("copy", number): 5 for number in range(partitions)},
    )


def map_batch(number: int, *rows: MapRow, **ends: int) -> MapBatch:
    return MapBatch(
        batch_id=number,
        copied={HERE: CopiedRange(rows[0].source_start, rows[-1].source_end)},
        ends={TopicPartition("copy", int(name[1:])): end for name, end in ends.items()},
        rows=rows,
    )


class TestStarts:
    def test_before_anything_is_copied_the_end_of_the_target(self) -> None:
        assert empty().starts(HERE, 10) == {T0: TargetOffset(5, is_exact=True)}

    def test_a_dense_row_gives_the_exact_offset(self) -> None:
        found = empty().add(map_batch(0, row(range(10, 20), range(5, 15), dense=True), p0=15))
        assert found.starts(HERE, 13) == {T0: TargetOffset(8, is_exact=True, create_ms=100)}

    def test_another_row_gives_its_first_offset(self) -> None:
        found = empty().add(map_batch(0, row(range(10, 20), range(5, 12)), p0=12))
        assert found.starts(HERE, 13) == {T0: TargetOffset(5, is_exact=False, create_ms=100)}

    def test_positions_at_or_after_the_copied_end_start_at_the_end_of_the_target(self) -> None:
        found = empty().add(map_batch(0, row(range(10, 20), range(5, 12)), p0=13))
        assert found.starts(HERE, 20) == {T0: TargetOffset(13, is_exact=True)}
        assert found.starts(HERE, 90) == {T0: TargetOffset(13, is_exact=True)}

    def test_every_partition_of_the_target_has_a_start_of_its_own(self) -> None:
        rows = (row(range(10, 20), range(5, 9), at=0), row(range(12, 18), range(5, 11), at=1))
        found = empty(2).add(map_batch(0, *rows, p0=9, p1=11))
        starts = found.starts(HERE, 19)
        assert starts[T0].offset == 5
        assert starts[T1].offset == 11

    def test_rows_in_any_order_give_the_smallest_offset(self) -> None:
        rows = (row(range(10, 20), range(50, 60), dense=True), row(range(20, 30), range(30, 40)))
        found = empty().add(map_batch(0, *rows, p0=60))
        assert found.starts(HERE, 15)[T0] == TargetOffset(30, is_exact=False, create_ms=100)

    def test_positions_before_the_mirrors_start_are_unknown(self) -> None:
        with pytest.raises(
            OutsideMap, match="began at offset 10 of orders-0, which is after offset 9"
        ):
            empty().starts(HERE, 9)

    def test_a_partition_that_is_not_in_the_map_is_refused(self) -> None:
        with pytest.raises(OutsideMap, match="nothing of orders-3 yet"):
            empty().starts(SourcePartition(0, 3), 9)

    def test_a_record_without_a_create_time_makes_the_earliest_unknown(self) -> None:
        lacking = row(range(10, 20), range(5, 15))._replace(create_ms_max=-1)
        assert empty().add(map_batch(0, lacking, p0=15)).starts(HERE, 11)[T0].create_ms == -1


class TestTimes:
    def grown(self) -> OffsetMap:
        first = row(range(10, 20), range(5, 15), ms=1_000)
        late = row(range(20, 30), range(15, 25), ms=900)
        last = row(range(30, 40), range(25, 35), ms=3_000)
        found = empty()
        for number, one in enumerate((first, late._replace(arrival_ms=2_000), last)):
            found = found.add(map_batch(number, one, p0=one.target_end))
        return found

    def test_starts_are_found_by_arrival_time(self) -> None:
        found = self.grown()
        assert found.starts_by_arrival(0, 1_050)[T0].offset == 5
        assert found.starts_by_arrival(0, 1_051)[T0].offset == 15
        assert found.starts_by_arrival(0, 2_001)[T0].offset == 25
        assert found.starts_by_arrival(0, 9_000)[T0] == TargetOffset(35, is_exact=True)

    def test_by_create_time_which_may_run_back(self) -> None:
        found = self.grown()
        assert found.starts_by_create_time(0, 1_000)[T0].offset == 5
        assert found.starts_by_create_time(0, 1_011)[T0].offset == 25
        assert found.starts_by_create_time(0, 9_000)[T0].offset == 35


class TestKeys:
    def test_if_partitioned_by_key_the_key_decides_the_partition(self) -> None:
        found = empty(8, Partitioning.KEY)
        target, start = found.start_of_key(HERE, 10, b"N14228")
        assert target == TopicPartition("copy", partition_of(b"N14228", 8))
        assert start == TargetOffset(5, is_exact=True)

    def test_kept_it_stays_where_it_was(self) -> None:
        source = SourcePartition(0, 3)
        found = replace(empty(8), copied={source: CopiedRange(10, 10)})
        assert found.start_of_key(source, 10, b"k")[0] == TopicPartition("copy", 3)

    def test_a_transform_may_have_put_it_anywhere(self) -> None:
        with pytest.raises(OutsideMap, match="by a transform"):
            empty(8, Partitioning.ANY).start_of_key(HERE, 10, b"k")


class TestSources:
    def two(self) -> OffsetMap:
        names = [("east:1", "orders", "e" * 22), ("north:1", "orders", "n" * 22)]
        sources = tuple(
            SourceTopic(place=place, topic=topic, topic_id=id_, target="copy")
            for place, topic, id_ in names
        )
        return OffsetMap(
            target="west:1",
            target_ids={},
            partition_counts={"copy": 1},
            sources=sources,
            partitioning=Partitioning.KEPT,
            ends={T0: 0},
        )

    def test_a_source_is_found_by_its_topic_id(self) -> None:
        assert self.two().source_number("orders", "n" * 22) == 1

    def test_a_topic_without_an_id_is_found_by_its_place(self) -> None:
        assert self.two().source_number("orders", None, "north:1") == 1

    def test_a_name_of_two_sources_gives_no_source(self) -> None:
        with pytest.raises(OutsideMap, match="several sources called orders: east:1, north:1"):
            self.two().source_number("orders", None, "elsewhere:1")

    def test_a_recreated_topic_is_another_one(self) -> None:
        with pytest.raises(OutsideMap, match=r"another topic orders: id e{22}, not x{22}"):
            self.two().source_number("orders", "x" * 22)

    def test_a_topic_that_is_not_copied(self) -> None:
        with pytest.raises(OutsideMap, match="no source bills; it has: orders"):
            self.two().source_number("bills")


class TestGrowing:
    def test_a_repeated_batch_changes_nothing(self) -> None:
        one = map_batch(0, row(range(10, 20), range(5, 15)), p0=15)
        found = empty().add(one)
        assert found.add(one) is found

    def dense_run(self, **more: int) -> OffsetMap:
        found = empty()
        for number in range(1_000):
            start = 10 + number * 7
            one = row(range(start, start + 7), range(start - 5, start + 2), dense=True, ms=number)
            found = found.add(map_batch(number, one, p0=start + 2), **more)
        assert found.copied[HERE] == CopiedRange(10, 10 + 7_000)
        return found

    def test_dense_rows_that_continue_each_other_stay_exact_when_merged(self) -> None:
        found = self.dense_run(rows_max=3)
        assert len(found.rows) <= 3
        for offset in range(10, 7_010, 13):
            assert found.starts(HERE, offset)[T0][:2] == (offset - 5, True)

    def test_rows_of_different_arrivals_are_kept_apart_while_there_is_room(self) -> None:
        found = self.dense_run()
        assert len(found.rows) == 1_000
        assert found.starts_by_arrival(0, 50 + 600)[T0].offset == 5 + 600 * 7

    def test_dense_rows_of_one_batch_become_one(self) -> None:
        first = row(range(10, 20), range(5, 15), dense=True)
        second = row(range(20, 30), range(15, 25), dense=True)
        (merged,) = empty().add(map_batch(0, first, second, p0=25)).rows
        assert merged == row(range(10, 30), range(5, 25), dense=True)

    def test_a_gap_begins_a_new_row(self) -> None:
        rows = (
            row(range(10, 20), range(5, 15), dense=True),
            row(range(21, 30), range(15, 24), dense=True),
        )
        assert len(empty().add(map_batch(0, *rows, p0=24)).rows) == 2

    def test_ends_never_decrease(self) -> None:
        found = empty().add(map_batch(0, row(range(10, 20), range(5, 15)), p0=3))
        assert found.ends[T0] == 5

    def test_too_many_rows_are_merged_the_oldest_first(self) -> None:
        rows = tuple(row(range(n, n + 1), range(2 * n, 2 * n + 1)) for n in range(100))
        found = thin(rows, 40)
        assert len(found) <= 40
        assert found[-10:] == rows[-10:]
        assert (found[0].source_start, found[-1].source_end) == (0, 100)

    def test_one_row_for_each_pair_of_partitions_stays(self) -> None:
        rows = tuple(row(range(1), range(1), at=n) for n in range(50))
        assert thin(rows, 10) == rows
        assert len(thin(rows + rows, 10)) == 50

    def test_the_origin_of_an_offset_is_found(self) -> None:
        found = empty().add(map_batch(0, row(range(10, 20), range(5, 15)), p0=15))
        assert [r.source_start for r in found.origins(T0, 14)] == [10]
        assert found.origins(T0, 15) == []


class TestFile:
    def grown(self) -> OffsetMap:
        rows = (row(range(10, 20), range(5, 15), dense=True), row(range(25, 30), range(15, 20)))
        return empty(2).add(map_batch(7, *rows, p0=20))

    def test_a_written_map_is_read_back(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        path = f"{tmp_path_factory.mktemp('map')}/orders.map"
        write_map(os_env().files, path, self.grown())
        assert read_map(os_env().files, path) == self.grown()

    def test_every_flipped_byte_is_seen(self) -> None:
        data = encode_map(self.grown())
        for at in range(len(data)):
            damaged = bytearray(data)
            damaged[at] ^= 1
            with pytest.raises((CorruptFile, UnsupportedVersion)):
                decode_map(bytes(damaged))

    def test_every_cut_is_seen(self) -> None:
        data = encode_map(self.grown())
        for size in range(len(data)):
            with pytest.raises(CorruptFile):
                decode_map(data[:size])

    def test_a_later_version_is_no_damage(self) -> None:
        data = encode_map(self.grown())
        with pytest.raises(UnsupportedVersion, match="TLOGMAP9"):
            decode_map(b"TLOGMAP9" + data[len(MAGIC) :])

    def test_impossible_rows_are_refused(self) -> None:
        found = self.grown()
        wrong = found.rows[0]._replace(target_partition=2)
        data = encode_map(empty(2).add(map_batch(0, wrong)))
        with pytest.raises(CorruptFile, match="invalid row"):
            decode_map(data)

    def test_the_error_names_the_file(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        path = tmp_path_factory.mktemp("map") / "orders.map"
        path.write_bytes(b"something else altogether")
        with pytest.raises(CorruptFile, match=r"orders\.map"):
            read_map(os_env().files, str(path))
