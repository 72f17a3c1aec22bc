"""Mirrors between directories copy each record once, with its times, and write a correct map."""

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.maps import check_map, map_of
from tests.worlds.directories.logs import end, transact
from tests.worlds.directories.topics import KEEP_ALL, T0, append, append_times, held, make, plain

from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings
from tidelog.directory import Directory
from tidelog.errors import DirectoryLocked, InvalidRequest, UnknownTopic
from tidelog.jobs.mirror.job import mirror
from tidelog.jobs.mirror.plan import MirrorSource
from tidelog.jobs.offset_map import Partitioning, SourcePartition
from tidelog.jobs.target_check import TargetLoses
from tidelog.record.partitioner import partition_of
from tidelog.spark.places import Place
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import Header, NewRecord, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.jobs.mirror.options import BatchDone


def some(partition: int, first: int, count: int) -> list[NewRecord]:
    """Return records with distinct values; some have no key, some no headers, some no time."""
    return [
        NewRecord(
            key=None if n % 5 == 0 else b"k%d" % (n % 11),
            value=b"%d/%d" % (partition, n),
            timestamp=-1 if n % 17 == 3 else T0 - 1_000 * (n % 7) + n,
            headers=(Header("n", b"%d" % n), Header("none", None)) if n % 3 == 0 else (),
        )
        for n in range(first, first + count)
    ]


class TestDraftOfKip32:
    """The four steps of KIP-32's draft, with a flight's message and the clocks of two clusters."""

    created = 1_360_342_800_000  # 2013-02-08T17:00:00.000Z, when the producer sent
    at_cluster1 = created + 37
    at_cluster2 = at_cluster1 + 5_210

    def test_send_time_is_kept_and_receive_time_is_new(
        self, spark: "SparkSession", tmp_path: Path
    ) -> None:
        one = make(f"{tmp_path}/cluster1", "flights")
        two = make(f"{tmp_path}/cluster2", "flights")
        # Steps 1 and 2: cluster 1 appends the producer's message. Its send time is T0. Its receive
        # time was -1 and becomes T1, the time of this append.
        message = NewRecord(key=b"N14228", value=b"UA1545", timestamp=self.created)
        append(one, "flights", 0, [message], self.at_cluster1)
        assert [r.timestamp for r in held(one, "flights")[0]] == [self.created]
        assert append_times(one, "flights") == [self.at_cluster1]
        # Steps 3 and 4: the mirror copies the message, and cluster 2 appends it at time T2. The
        # send time stays T0, and the receive time becomes T2.
        clock = {"clock.ms": str(self.at_cluster2)}
        mirror(spark, one, ["flights"], two, checkpoint=f"{tmp_path}/check", sink_options=clock)
        assert plain(held(two, "flights")[0]) == plain(held(one, "flights")[0])
        assert append_times(two, "flights") == [self.at_cluster2]

    def test_receive_times_increase_with_records_of_two_clusters(
        self, spark: "SparkSession", tmp_path: Path
    ) -> None:
        """Each run copies one record per source; the second source's times are an hour earlier."""
        one = make(f"{tmp_path}/cluster1", "flights")
        other = make(f"{tmp_path}/cluster3", "flights")
        two = make(f"{tmp_path}/cluster2", "flights")
        clock = self.at_cluster2
        sent: list[int] = []
        for turn in range(2):
            for path, ago in ((one, 0), (other, 3_600_000)):
                created = self.created + 1_000 * turn - ago
                record = NewRecord(value=b"%d" % created, timestamp=created)
                append(path, "flights", 0, [record], created + 37)
                sent.append(created)
            # The target's own clock is set back between the batches.
            given = {"clock.ms": str(clock - 2_000 * turn)}
            both, work = [one, other], f"{tmp_path}/check"
            mirror(spark, both, ["flights"], two, checkpoint=work, sink_options=given)
        copied = held(two, "flights")[0]
        assert sorted(r.timestamp for r in copied) == sorted(sent)
        assert [r.timestamp for r in copied] != sorted(sent)
        times = append_times(two, "flights")
        assert times == sorted(times)
        assert set(times) == {self.at_cluster2}
        sources = {0: held(one, "flights"), 1: held(other, "flights")}
        check_map(map_of(f"{tmp_path}/check"), sources, held(two, "flights"))


class TestKept:
    def test_batches_are_copied_once_and_in_order(
        self, spark: "SparkSession", tmp_path: Path
    ) -> None:
        source = make(f"{tmp_path}/a", "orders", 3, internal_segment_bytes="6000")
        for partition in range(3):
            append(source, "orders", partition, some(partition, 0, 100 + 30 * partition))
        target = make(f"{tmp_path}/b", "copies", 3)
        append(target, "copies", 1, [NewRecord(value=b"there before")])
        done: list[BatchDone] = []
        told = mirror(
            spark,
            source,
            {"orders": "copies"},
            target,
            checkpoint=f"{tmp_path}/check",
            batch_records=200,
            watch=done.append,
        ).collect()
        assert len(done) == 2
        assert sum(one.records for one in done) == 390
        assert [(row.partition, row.copied_to, row.lag) for row in told] == [
            (0, 100, 0),
            (1, 130, 0),
            (2, 160, 0),
        ]
        copies = held(target, "copies")
        assert copies[1].pop(0).value == b"there before"
        originals = held(source, "orders")
        assert list(map(plain, copies)) == list(map(plain, originals))
        # A second run copies only the new records.
        append(source, "orders", 0, some(0, 100, 10))
        again = mirror(spark, source, {"orders": "copies"}, target, checkpoint=f"{tmp_path}/check")
        assert [row.offsets for row in again.collect()] == [10, 0, 0]
        copies = held(target, "copies")
        found = map_of(f"{tmp_path}/check")
        assert found.target_ids.keys() == {"copies"}
        assert found.partitioning is Partitioning.KEPT
        check_map(found, {0: held(source, "orders")}, copies, exactly=True)
        assert found.starts(SourcePartition(0, 1), 5)[TopicPartition("copies", 1)].offset == 6

    def test_a_repeated_batch_is_not_copied_and_the_map_gets_its_rows(
        self, spark: "SparkSession", tmp_path: Path
    ) -> None:
        """The target has the last batch, but the checkpoint and the map do not have it yet.

        This is the state after a kill between the commit of the batch to the target and the write
        of the map.
        """
        source = make(f"{tmp_path}/a", "orders", 2)
        target = make(f"{tmp_path}/b", "orders", 2)
        work = tmp_path / "check"
        for partition in range(2):
            append(source, "orders", partition, some(partition, 0, 40))
        mirror(spark, source, ["orders"], target, checkpoint=str(work), batch_records=40)
        first = (work / "offsets.map").read_bytes()
        append(source, "orders", 1, some(1, 40, 25))
        mirror(spark, source, ["orders"], target, checkpoint=str(work))
        last = max(int(path.name) for path in (work / "spark/commits").glob("[0-9]*"))
        for path in (work / "spark/commits").glob(f"*{last}*"):
            path.unlink()
        right = map_of(str(work))
        (work / "offsets.map").write_bytes(first)
        done: list[BatchDone] = []
        mirror(spark, source, ["orders"], target, checkpoint=str(work), watch=done.append)
        assert [(one.batch_id, one.records, one.was_done) for one in done] == [(last, 25, True)]
        assert map_of(str(work)) == right
        copies, originals = held(target, "orders"), held(source, "orders")
        assert list(map(plain, copies)) == list(map(plain, originals))
        check_map(right, {0: originals}, copies, exactly=True)


class TestChanged:
    def test_several_sources_by_key_renamed_and_through_a_transform(
        self, spark: "SparkSession", tmp_path: Path
    ) -> None:
        """A transform drops records; one source topic has LogAppendTime; create times are kept."""
        stamp = T0 + 90_000_000
        one = make(f"{tmp_path}/one", "orders", 2, message_timestamp_type="LogAppendTime")
        two = make(f"{tmp_path}/two", "bills", 1)
        for partition in range(2):
            append(one, "orders", partition, some(partition, 0, 60), stamp)
        append(two, "bills", 0, some(7, 0, 50))
        target = make(f"{tmp_path}/b", "all", 3)
        sources = [
            MirrorSource(Place.parse(one), {"orders": "all"}),
            MirrorSource(Place.parse(two), {"bills": "all"}),
        ]

        def thinned(rows: "DataFrame") -> "DataFrame":
            return rows.where("offset % 4 != 1").selectExpr("*", "1 as unused")

        mirror(
            spark,
            sources,
            (),
            target,
            checkpoint=f"{tmp_path}/check",
            partitions="key",
            transform=thinned,
        )
        copies = held(target, "all")
        made = {r.value: r for part in (0, 1, 7) for r in some(part, 0, 60 if part < 7 else 50)}
        kept = {value for value in made if value and int(value.split(b"/")[1]) % 4 != 1}
        assert sorted(r.value or b"" for part in copies for r in part) == sorted(
            value for value in kept if value
        )
        for number, part in enumerate(copies):
            for record in part:
                was = made[record.value]
                assert (record.key, record.headers) == (was.key, was.headers)
                stamped = was.timestamp == -1 and not (was.value or b"").startswith(b"7/")
                assert record.timestamp == (stamp if stamped else was.timestamp)
                if record.key is not None:
                    assert number == partition_of(record.key, 3)
        originals = {0: held(one, "orders"), 1: held(two, "bills")}
        found = map_of(f"{tmp_path}/check")
        check_map(found, originals, copies)
        assert found.partitioning is Partitioning.KEY
        target_of, _ = found.start_of_key(SourcePartition(1, 0), 0, b"k4")
        assert target_of == TopicPartition("all", partition_of(b"k4", 3))

    def test_a_mirror_from_the_end_creates_the_topic_with_its_sources_settings(
        self, spark: "SparkSession", tmp_path: Path
    ) -> None:
        config = {"segment_bytes": "1048576", "message_timestamp_type": "LogAppendTime"}
        source = make(f"{tmp_path}/a", "orders", 2, **config)
        append(source, "orders", 0, some(0, 0, 30))
        target = f"{tmp_path}/b"
        Directory.open(target, writable=True).close()
        work = f"{tmp_path}/check"
        for _ in range(2):
            mirror(spark, source, ["orders"], target, checkpoint=work, start="latest", create=True)
            append(source, "orders", 0, some(0, 30, 5))
        with Directory.open(target) as directory:
            info = directory.topic("orders")
            assert info.partitions == 2
            assert info.given == KEEP_ALL | {
                "segment.bytes": "1048576",
                "message.timestamp.type": "CreateTime",
            }
        copies = held(target, "orders")
        assert [r.value for r in copies[0]] == [b"0/%d" % n for n in range(30, 35)]
        assert [r.timestamp for r in copies[0]] == [r.timestamp for r in some(0, 30, 5)]
        assert map_of(work).copied[SourcePartition(0, 0)].start == 30


class TestRefused:
    def asked(self, spark: "SparkSession", source: str, target: str, **more: object) -> None:
        given: dict[str, object] = {"checkpoint": f"{target}-check"} | more
        mirror(spark, source, ["orders"], target, **given)  # type: ignore[arg-type] # options by name

    def test_unsuitable_targets_are_refused(self, spark: "SparkSession", tmp_path: Path) -> None:
        source = make(f"{tmp_path}/a", "orders", 2)
        append(source, "orders", 0, some(0, 0, 30))
        stamping = make(f"{tmp_path}/b", "orders", 2, message_timestamp_type="LogAppendTime")
        with pytest.raises(TargetLoses, match="create times of up to 30 records would be overwr"):
            self.asked(spark, source, stamping)
        forgetful = make(f"{tmp_path}/c", "orders", 2, retention_ms="1000")
        with pytest.raises(TargetLoses, match="would be deleted at once"):
            self.asked(spark, source, forgetful)
        narrow = make(f"{tmp_path}/d", "orders", 1)
        with pytest.raises(InvalidRequest, match=r"2 partitions, but orders at .* has only 1"):
            self.asked(spark, source, narrow)
        other = make(f"{tmp_path}/e", "bills", 1)
        with pytest.raises(UnknownTopic, match="orders"):
            self.asked(spark, source, other)
        for path in (stamping, forgetful, narrow):
            assert all(not part for part in held(path, "orders"))
            assert not Path(f"{path}-check/mirror.json").exists()

    def test_a_checkpoint_that_is_not_its_own(self, spark: "SparkSession", tmp_path: Path) -> None:
        source = make(f"{tmp_path}/a", "orders")
        target = make(f"{tmp_path}/b", "orders")
        append(source, "orders", 0, some(0, 0, 3))
        work = Path(f"{target}-check")
        self.asked(spark, source, target)
        with pytest.raises(InvalidRequest, match="partitions was kept, now key"):
            self.asked(spark, source, target, partitions="key")
        state = json.loads((work / "mirror.json").read_text())
        (work / "mirror.json").write_text(json.dumps(state | {"version": 9}))
        with pytest.raises(Exception, match="version 9"):
            self.asked(spark, source, target)
        (work / "mirror.json").write_text(json.dumps(state))
        (work / "spark").rename(work / "gone")
        with pytest.raises(InvalidRequest, match="it would copy everything again"):
            self.asked(spark, source, target)
        (work / "gone").rename(work / "spark")
        (work / "mirror.json").unlink()
        with pytest.raises(InvalidRequest, match="not the checkpoint of a mirror"):
            self.asked(spark, source, target)

    def test_a_transform_that_drops_the_offset_is_refused(
        self, spark: "SparkSession", tmp_path: Path
    ) -> None:
        source = make(f"{tmp_path}/a", "orders")
        target = make(f"{tmp_path}/b", "orders")
        with pytest.raises(InvalidRequest, match="transform's result has no column offset"):
            self.asked(spark, source, target, transform=lambda rows: rows.drop("offset"))

    def test_two_drivers_with_one_checkpoint(self, spark: "SparkSession", tmp_path: Path) -> None:
        source = make(f"{tmp_path}/a", "orders")
        target = make(f"{tmp_path}/b", "orders")
        from tidelog.env import os_env

        os_env().files.make_dirs(f"{target}-check")
        lock = os_env().files.lock(f"{target}-check/mirror.lock")
        try:
            with pytest.raises(DirectoryLocked, match="another driver runs this mirror"):
                self.asked(spark, source, target)
        finally:
            lock.close()


def test_transaction_markers_after_the_last_record_are_no_lag(
    spark: "SparkSession", tmp_path: Path
) -> None:
    source, target = make(f"{tmp_path}/a", "orders", 2), make(f"{tmp_path}/b", "orders", 2)
    with LogDir.open(source, options=LogDirOptions(writable=True)) as log_dir:
        log = log_dir.log("orders", 1)
        for sequence, is_committed in ((0, True), (3, False)):
            transact(log, 7, sequence, count=3)
            end(log, 7, commit=is_committed)

    def lags() -> list[tuple[int, int, int]]:
        rows = mirror(spark, source, ["orders"], target, checkpoint=f"{tmp_path}/check").collect()
        return [(row.copied_to, row.end_offset, row.lag) for row in rows]

    assert lags() == [(0, 0, 0), (3, 8, 0)]
    assert lags() == [(0, 0, 0), (3, 8, 0)]
    append(source, "orders", 0, some(0, 0, 5))
    assert lags() == [(5, 5, 0), (3, 8, 0)]


def test_the_command_reports_its_batches_and_its_map(spark: "SparkSession", tmp_path: Path) -> None:
    """Rows are JSON; stderr shows batches and the map; the map names source and target."""
    source = make(f"{tmp_path}/a", "orders", 2)
    target = make(f"{tmp_path}/b", "copies", 2)
    append(source, "orders", 1, some(1, 0, 12))
    out, err = io.StringIO(), io.StringIO()
    page = tmp_path / "mirror.html"
    arguments = ["spark", "mirror", source, "orders", "--to", target, "--rename", "orders=copies"]
    arguments += ["--checkpoint", f"{tmp_path}/check", "--report", str(page), "-o", "json"]
    assert run(arguments, Surroundings(stdout=out, stderr=err)) == 0, err.getvalue()
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(row["partition"], row["offsets"], row["lag"]) for row in rows] == [
        (0, 0, 0),
        (1, 12, 0),
    ]
    assert "batch 0: 12 records" in err.getvalue()
    assert f"offset map: {tmp_path}/check/offsets.map" in err.getvalue()
    assert "Throughput, by batch" in page.read_text()
    assert list(map(plain, held(target, "copies"))) == list(map(plain, held(source, "orders")))
    found = map_of(f"{tmp_path}/check")
    assert (found.sources[0].place, found.target) == (source, target)
    assert len(found.sources[0].topic_id) == len(found.target_ids["copies"]) == 22
    # A target whose retention would delete the records at once is refused.
    refused = [*arguments[:5], make(f"{tmp_path}/c", "orders", 2, retention_ms="1000")]
    refused += ["--checkpoint", f"{tmp_path}/other"]
    assert run(refused, Surroundings(stdout=out, stderr=err)) == 2
    assert "deleted at once" in err.getvalue()
