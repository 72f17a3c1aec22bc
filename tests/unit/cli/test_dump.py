"""`dump`: each kind of file, and damage in it."""

import re
import shutil
import struct
from pathlib import Path

import pytest
from tests.worlds.command_line import NOW, Cli, at

from tidelog.directory import Directory
from tidelog.record.builder import build_batch
from tidelog.types import Header, NewRecord

VECTORS = Path(__file__).parents[2] / "vectors"
KAFKA_PARTITION = VECTORS / "events-0"


@pytest.fixture
def partition(flights: Cli) -> Path:
    """Return a partition's directory with three batches and index entries for two of them."""
    flights.ok("config", "flights", "--set", "index.interval.bytes=0")
    with Directory.open(str(flights.data), writable=True, env=flights.env) as directory:
        for number in range(3):
            flights.clock.advance(1)
            directory.append("flights", [at(NOW + number, b"k%d" % number, b"value")])
    return flights.data / "flights-0"


def file(partition: Path, suffix: str) -> Path:
    return partition / f"00000000000000000000{suffix}"


def dumped(cli: Cli, path: Path, *arguments: str) -> list[dict[str, object]]:
    return cli.ok("dump", str(path), "-o", "json", *arguments).objects


def test_batches_of_a_log(flights: Cli, partition: Path) -> None:
    rows = dumped(flights, file(partition, ".log"))
    assert [(row["first_offset"], row["last_offset"], row["records"]) for row in rows] == [
        (0, 0, 1),
        (1, 1, 1),
        (2, 2, 1),
    ]
    assert {row["codec"] for row in rows} == {"none"}
    assert {row["valid"] for row in rows} == {True}
    assert rows[2]["max_timestamp_ms"] == NOW + 2
    assert rows[1]["position"] == rows[0]["bytes"]


def test_records_of_a_log(flights: Cli, partition: Path) -> None:
    headers = (Header("a", b"1"), Header("a", None))
    flights.append(NewRecord(key=None, value=None, timestamp=-1, headers=headers))
    rows = dumped(flights, file(partition, ".log"), "--deep")
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (0, "k0", "value"),
        (1, "k1", "value"),
        (2, "k2", "value"),
        (3, None, None),
    ]
    assert rows[3]["timestamp"] is None
    assert rows[3]["headers"] == [["a", "1"], ["a", None]]


def test_indexes(flights: Cli, partition: Path) -> None:
    offsets = dumped(flights, file(partition, ".index"))
    assert [(row["slot"], row["offset"]) for row in offsets] == [(0, 1), (1, 2)]
    times = dumped(flights, file(partition, ".timeindex"))
    assert [(row["timestamp_ms"], row["offset"]) for row in times][-1] == (NOW + 2, 2)


def test_append_times_with_their_end(flights: Cli, partition: Path) -> None:
    rows = dumped(flights, file(partition, ".appendtime"))
    assert [row["append_time_ms"] for row in rows if row["append_time"]] == [
        NOW + 1,
        NOW + 2,
        NOW + 3,
    ]
    assert rows[-1]["append_time"] is None


def test_a_directory_means_all_its_files_and_rows_say_which(flights: Cli, partition: Path) -> None:
    rows = dumped(flights, partition)
    names = {Path(str(row["file"])).name for row in rows}
    assert {"partition.metadata", "leader-epoch-checkpoint", file(partition, ".log").name} <= names
    text = flights.ok("dump", str(partition)).out
    assert f"\n{partition / 'leader-epoch-checkpoint'}\n" in text


def test_files_at_the_top(flights: Cli, partition: Path) -> None:
    rows = dumped(flights, partition.parent)
    by_file = {
        (Path(str(row["file"])).name, row.get("name") or row.get("topic")): row for row in rows
    }
    assert by_file["tidelog-topics.json", "flights"]["partitions"] == 1
    assert by_file["meta.properties", "version"]["value"] == "1"
    assert by_file["recovery-point-offset-checkpoint", "flights"]["offset"] == 3


def test_a_partition_of_apache_kafka_has_no_findings(cli: Cli) -> None:
    result = cli.ok("dump", str(KAFKA_PARTITION), "--deep", "-o", "json")
    kinds = {Path(str(row["file"])).suffix for row in result.objects}
    assert {".log", ".index", ".timeindex", ".snapshot", ".txnindex"} <= kinds
    values = ((row.get("key"), str(row.get("value"))) for row in result.objects)
    markers = {key for key, value in values if value.startswith("coordinator epoch ")}
    assert markers == {"commit", "abort"}


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".appendtime"])
def test_a_flipped_byte_is_found(flights: Cli, partition: Path, suffix: str) -> None:
    """Flip a bit in one byte after the other; in a log, in every third byte from 17 to 76.

    A batch's checksum does not cover the batch's first 17 bytes.
    """
    path = file(partition, suffix)
    whole = path.read_bytes()
    first = 17 if suffix == ".log" else 0
    last = len(whole) if suffix != ".log" else first + 60
    for place in range(first, last, 1 if suffix != ".log" else 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        result = flights.run("dump", str(path))
        assert result.code == 2, (place, result.out, result.err)
        assert f"error: {path}" in result.err
    path.write_bytes(whole)
    assert flights.run("dump", str(path)).code == 0


@pytest.mark.parametrize(
    ("suffix", "entry", "entries", "slots"),
    [
        (".index", ">ii", [(1, 10), (2, 20)], []),
        (".index", ">ii", [(1, 10), (1, 20)], [1]),
        (".index", ">ii", [(1, 10), (2, 10), (3, 20)], [1]),
        (".timeindex", ">qi", [(10, 1), (20, 1), (30, 2)], []),
        (".timeindex", ">qi", [(10, 1), (10, 2)], [1]),
        (".timeindex", ">qi", [(10, 1), (20, 2), (30, 1)], [2]),
    ],
)
def test_the_order_of_an_index_is_checked_without_its_log(
    flights: Cli,
    tmp_path: Path,
    suffix: str,
    entry: str,
    entries: list[tuple[int, int]],
    slots: list[int],
) -> None:
    path = file(tmp_path, suffix)
    path.write_bytes(b"".join(struct.pack(entry, *each) for each in entries))
    result = flights.run("dump", str(path), "-o", "json")
    found = [int(number) for number in re.findall(r"slot (\d+): .* must ", result.err)]
    assert (found, result.code) == (slots, 2 if slots else 0)
    assert [row["slot"] for row in result.objects] == list(range(len(entries)))


def test_a_truncated_log_shows_its_whole_batches(flights: Cli, partition: Path) -> None:
    path = file(partition, ".log")
    path.write_bytes(path.read_bytes()[:-1])
    result = flights.run("dump", str(path), "-o", "json")
    assert result.code == 2
    assert [row["last_offset"] for row in result.objects] == [0, 1]
    size = path.stat().st_size
    last = result.objects[1]
    end = int(str(last["position"])) + int(str(last["bytes"]))
    assert f"position {end}: incomplete batch; the last {size - end} bytes" in result.err


def test_a_bad_record_under_a_right_checksum_is_found_by_deep_alone(
    flights: Cli, tmp_path: Path
) -> None:
    from tidelog.record.header import seal

    batch = build_batch([at(NOW, b"key", b"value")])
    batch[61] ^= 0x02  # the record's length
    seal(batch, 0)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch)
    assert flights.run("dump", str(path)).code == 0
    result = flights.run("dump", str(path), "--deep")
    assert result.code == 2
    assert f"{path}, position 62" in result.err


def test_batches_with_decreasing_offsets_are_reported(flights: Cli, tmp_path: Path) -> None:
    first = build_batch([at(NOW)], base_offset=7)
    second = build_batch([at(NOW)], base_offset=3)
    path = tmp_path / "00000000000000000007.log"
    path.write_bytes(bytes(first) + bytes(second))
    result = flights.run("dump", str(path))
    assert result.code == 2
    assert f"position {len(first)}: offset 3, expected 8 or more" in result.err


@pytest.mark.parametrize(
    ("base", "text"),
    [
        (8, "offsets 8 to 17, expected 10 or more"),
        (14, "offsets 14 to 23, but offset 10 is expected, and the next batch begins with"),
    ],
)
def test_overlapping_batches_are_reported(
    flights: Cli, tmp_path: Path, base: int, text: str
) -> None:
    """A flipped bit in the base offset of the second batch, offsets 10 to 19, changed it."""
    batches = [bytes(build_batch([at(NOW)] * 10, base_offset=each)) for each in (0, base, 20)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches))
    result = flights.run("dump", str(path))
    assert f"position {len(batches[0])}: {text}" in result.err
    assert (result.code, "1 finding in 1 file" in result.err) == (2, True)


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_batch_whose_offset_is_too_large_is_reported_itself(
    flights: Cli, tmp_path: Path, damaged: int
) -> None:
    offsets = [0, 1, 2, 3]
    offsets[damaged] += 1 << 14
    batches = [bytes(build_batch([at(NOW)], base_offset=offset)) for offset in offsets]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches))
    result = flights.run("dump", str(path))
    assert result.code == 2
    assert (
        f"position {damaged * len(batches[0])}: offset {offsets[damaged]}, but offset {damaged} is"
        f" expected, and the next batch begins with offset {damaged + 1}"
    ) in result.err
    assert "1 finding in 1 file" in result.err


def test_an_index_without_its_log_is_noted(flights: Cli, partition: Path, tmp_path: Path) -> None:
    alone = tmp_path / "00000000000000000000.index"
    shutil.copy(file(partition, ".index"), alone)
    result = flights.ok("dump", str(alone))
    assert "not compared with it" in result.err


def test_preallocated_zeros_are_no_damage(flights: Cli, partition: Path) -> None:
    path = file(partition, ".index")
    path.write_bytes(path.read_bytes() + bytes(80))
    result = flights.ok("dump", str(path))
    assert "80 zero bytes at the end" in result.err


def test_a_damaged_snapshot_checkpoint_and_metadata_are_found(cli: Cli, tmp_path: Path) -> None:
    snapshot = tmp_path / "00000000000000000025.snapshot"
    data = bytearray((KAFKA_PARTITION / snapshot.name).read_bytes())
    data[-1] ^= 1
    snapshot.write_bytes(data)
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n")
    (tmp_path / "partition.metadata").write_text("version: 0\n")
    result = cli.run("dump", str(tmp_path))
    assert result.code == 2
    assert result.err.count("error: ") == 3
    assert result.err.endswith("3 findings in 3 files\n")


def test_an_open_transaction_is_flagged(flights: Cli) -> None:
    with Directory.open(str(flights.data), writable=True, env=flights.env) as directory:
        batch = build_batch(
            [at(NOW)], producer_id=5, producer_epoch=1, base_sequence=0, transactional=True
        )
        log = directory.log("flights", 0)
        log.append_batches(batch)
        log.end_transaction(producer_id=5, producer_epoch=1, coordinator_epoch=2, commit=False)
    partition = flights.data / "flights-0"
    data, marker = dumped(flights, file(partition, ".log"))
    assert (data["flags"], marker["flags"]) == ("transactional", "transactional,control")
    assert (data["producer_id"], data["base_sequence"], marker["base_sequence"]) == (5, 0, None)
    (aborted,) = dumped(flights, file(partition, ".txnindex"))
    assert (aborted["producer_id"], aborted["first_offset"], aborted["last_offset"]) == (5, 0, 1)
    rows = dumped(flights, file(partition, ".log"), "--deep")
    assert (rows[1]["key"], rows[1]["value"]) == ("abort", "coordinator epoch 2")


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "no such file"), ("notes.txt", "the name is not that of a log file")],
)
def test_other_files_are_usage_errors(cli: Cli, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    result = cli.run("dump", str(tmp_path / name))
    assert result.code == 3
    assert message in result.err


@pytest.fixture
def zoned(flights: Cli, partition: Path) -> Path:
    """Return the partition's directory with a finished segment and its zone map."""
    with Directory.open(str(flights.data), writable=True, env=flights.env) as directory:
        assert directory.log("flights", 0).roll()
    return partition


def test_a_zone_map(flights: Cli, zoned: Path) -> None:
    result = flights.ok("dump", str(file(zoned, ".zones")), "-o", "json")
    (row,) = result.objects
    assert (row["position"], row["first_offset"], row["last_offset"]) == (0, 0, 2)
    assert (row["data_records"], row["transactional"]) == (3, "no")
    assert (row["min_record_ms"], row["max_record_ms"]) == (NOW, NOW + 2)
    assert (row["min_append_ms"], row["max_append_ms"]) == (NOW + 1, NOW + 3)
    assert "latency of 3 records from 1ms to 1ms" in result.err


def test_checksums_of_a_zone_map_are_computed_over_several_reads(
    flights: Cli, zoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.cli.dump._CHUNK_BYTES", 7)
    flights.ok("dump", str(file(zoned, ".zones")))


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".appendtime", ".zones"])
def test_each_changed_byte_is_found_with_a_zone_map(flights: Cli, zoned: Path, suffix: str) -> None:
    path = file(zoned, suffix)
    whole = path.read_bytes()
    for place in range(0, len(whole), 1 + len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        result = flights.run("dump", str(file(zoned, ".zones")))
        assert result.code == 2 or "version" in result.err, (place, result.out, result.err)
    path.write_bytes(whole)


def test_a_zone_map_without_its_log_is_reported(flights: Cli, zoned: Path) -> None:
    file(zoned, ".log").unlink()
    result = flights.ok("dump", str(file(zoned, ".zones")))
    assert "log file is missing" in result.err
