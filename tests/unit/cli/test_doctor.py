"""`doctor`: its findings, its repairs and its exit code."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.command_line import NOW, Cli, at

from tidelog.directory import Directory
from tidelog.env import os_env
from tidelog.storage.directory.broker_files import METADATA_FILE, MetadataFile
from tidelog.storage.files import RESERVE_FILE, TOPICS_FILE
from tidelog.storage.text_files import ACCEPTED_CLOCK_FILE

LOG = f"{0:020d}.log"


@pytest.fixture
def partition(flights: Cli) -> Path:
    """Create a partition of two segments, the first one finished, with index entries."""
    flights.ok("config", "flights", "--set", "index.interval.bytes=0")
    flights.ok("create", "other")
    with Directory.open(str(flights.data), writable=True, env=flights.env) as directory:
        for number in range(6):
            flights.clock.advance(1)
            directory.append("flights", [at(NOW + number, b"k%d" % number, b"value")], partition=0)
            if number == 3:
                directory.log("flights", 0).roll()
    assert flights.run("doctor", "--repair").code == 0
    return flights.data / "flights-0"


def flip(path: Path, at_byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at_byte] ^= 1 << bit
    path.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_valid_directory_has_no_findings(flights: Cli, partition: Path) -> None:
    before = contents(flights.data)
    result = flights.run("doctor")
    assert result.code == 0
    assert result.lines == [f"{flights.data} is sound: 2 topics, 2 partitions, 450 B"]
    one = flights.run("doctor", "flights:0")
    assert one.lines == [f"flights:0 in {flights.data} is sound: 1 topic, 1 partition, 450 B"]
    assert contents(flights.data) == before


def test_all_files_at_the_top_of_our_directory_are_known(flights: Cli, partition: Path) -> None:
    for name in (RESERVE_FILE, ACCEPTED_CLOCK_FILE):
        (flights.data / name).write_bytes(b"1")
    (summary,) = flights.ok("doctor", "-o", "json").objects
    assert summary == {"path": str(flights.data), "sound": True, "partitions": 2}


def test_a_damaged_record_is_named_with_its_loss_and_not_repaired(
    flights: Cli, partition: Path
) -> None:
    size = (partition / LOG).stat().st_size // 4
    flip(partition / LOG, 2 * size + 65)
    before = contents(flights.data)
    result = flights.run("doctor", "-o", "json")
    assert result.code == 1
    (row,) = result.objects
    assert row["severity"] == "error"
    assert row["file"] == str(partition / LOG)
    assert (row["position"], row["offset"]) == (2 * size, 2)
    assert "can't be read (offset 2)" in str(row["damage"])
    remedy = str(row["remedy"])
    command = f"tidelog read flights:0 --data {flights.data} --offset 3.."
    assert f"a read ends at the damage; `{command}` reads on at 3" in remedy
    assert [one["offset"] for one in flights.run("read", "flights", "-o", "json").objects] == [0, 1]
    rest = Cli(flights.data).ok(*command.split()[1:], "-o", "json").objects
    assert [one["offset"] for one in rest] == [3, 4, 5]
    assert flights.run("doctor", "--repair").code == 1
    assert contents(flights.data) == before


def test_a_damaged_header_is_named_by_reads_as_by_doctor(flights: Cli, partition: Path) -> None:
    """The header's last offset is 4,096 too large, so no header leads to offset 3."""
    flights.ok("config", "flights", "--set", "index.interval.bytes=4096")
    (partition / f"{0:020d}.index").unlink()
    assert flights.run("doctor", "--repair").code == 0
    size = (partition / LOG).stat().st_size // 4
    flip(partition / LOG, 2 * size + 25, bit=4)
    (row,) = flights.run("doctor", "-o", "json").objects
    assert "CRC-32C is" in str(row["damage"])
    command = f"tidelog read flights:0 --data {flights.data} --offset 4.."
    dump = f"tidelog dump --deep {partition / LOG}"
    assert f"`{command}` reads on at 4; only `{dump}` shows offset 3," in str(row["remedy"])
    rest = Cli(flights.data).ok(*command.split()[1:], "-o", "json").objects
    assert [one["offset"] for one in rest] == [4, 5]
    rest = Cli(flights.data).run(*dump.split()[1:], "-o", "json").objects
    assert 3 in [one["offset"] for one in rest]
    for offsets in ("0..", "3..", "3..4", "0..3", "2..6"):
        for options in ([], ["-o", "json"], ["-o", "csv"]):
            result = flights.run("read", "flights", "--offset", offsets, *options)
            assert result.code == 1
            assert "offset 2: CRC-32C is" in result.err, (offsets, options)


def test_a_bit_outside_of_kafkas_checksum_is_named(flights: Cli, partition: Path) -> None:
    flip(partition / LOG, 14, bit=6)
    result = flights.run("doctor", "-o", "json")
    assert result.code == 1
    told = [str(row["damage"]) for row in result.objects]
    assert any(
        "bit 6 was flipped in the leader epoch of the batch at position 0" in line for line in told
    )


def test_a_missing_partition_is_also_a_finding_of_its_topic(cli: Cli) -> None:
    cli.ok("create", "flights", "--partitions", "3")
    shutil.rmtree(cli.data / "flights-1")
    for target in ((), ("flights",)):
        result = cli.run("doctor", *target, "-o", "json")
        assert result.code == 1
        (finding,) = (one for one in result.objects if one["severity"] == "warning")
        assert finding["file"] == str(cli.data / "flights-1")
        assert finding["damage"] == "the directory of this partition is missing"
    assert cli.ok("doctor", "flights:0").lines == [
        f"flights:0 in {cli.data} is sound: 1 topic, 1 partition, 0 B"
    ]


def test_repair_rebuilds_derived_files(flights: Cli, partition: Path) -> None:
    before = contents(flights.data)
    flip(partition / f"{0:020d}.index", 5)
    flip(partition / f"{0:020d}.zones", 40)
    (partition / f"{0:020d}.timeindex").unlink()
    (partition / f"{9:020d}.index").write_bytes(b"")  # an index without a log
    result = flights.run("doctor", "-o", "json")
    assert result.code == 1
    assert f"; `tidelog doctor --data {flights.data} --repair` rebuilds 4 files" in result.err
    assert {row["state"] for row in result.objects} == {"open"}
    command = f"`tidelog doctor --data {flights.data} --repair` "
    assert all(str(row["remedy"]).startswith(command) for row in result.objects)
    (index, *_) = flights.run("doctor", "flights:0", "-o", "json").objects
    assert f"`tidelog doctor flights:0 --data {flights.data} --repair` " in str(index["remedy"])
    result = flights.run("doctor", "--repair", "-o", "json")
    assert result.code == 0
    assert {row["state"] for row in result.objects} == {"repaired"}
    assert {row["remedy"] for row in result.objects} == {None}
    (sound,) = flights.ok("doctor", "--repair").lines
    assert sound.endswith("; nothing had to be repaired")
    assert "4 files repaired" in result.err
    assert contents(flights.data) == before


def test_doctor_checks_only_the_given_topic_or_partition(flights: Cli, partition: Path) -> None:
    flip(partition / f"{0:020d}.index", 5)
    assert flights.run("doctor", "flights").code == 1
    assert flights.run("doctor", "flights:0").code == 1
    assert flights.run("doctor", "other:0").code == 0
    assert flights.run("doctor", str(partition)).code == 1
    assert flights.run("doctor", str(flights.data / "other-0")).code == 0


def test_a_directory_that_is_named_like_a_partition_is_a_directory(
    flights: Cli, partition: Path
) -> None:
    """`doctor` checks the partitions in a backup directory named `backup-1`."""
    backup = flights.data.parent / "backup-1"
    shutil.copytree(flights.data, backup)
    flip(backup / "flights-0" / LOG, 70)
    result = flights.run("doctor", str(backup))
    assert result.code == 1
    assert "flights-0" in result.out


def test_missing_topics_and_directories_are_errors(flights: Cli, partition: Path) -> None:
    for arguments in (("doctor", "flighs"), ("doctor", "flights:7")):
        result = flights.run(*arguments)
        assert result.code == 2
        assert result.err.startswith("error: ")
    assert "did you mean flights?" in flights.run("doctor", "flighs").err
    assert flights.run("doctor", "flights:x").code == 3
    assert flights.run("doctor", str(partition.parent / "nowhere")).code == 3
    file = flights.data.parent / "file"
    file.touch()
    for words, code in (((str(file),), 3), (("flights", "--data", str(file)), 2)):
        result = flights.run("doctor", *words)
        assert result.code == code
        assert result.err.startswith(f"error: {file} is not a directory")
    empty = flights.data.parent / "empty"
    empty.mkdir()
    assert flights.run("doctor", str(empty)).code == 2


@pytest.fixture
def held(flights: Cli) -> Iterator[None]:
    lock = os_env().files.lock(str(flights.data / ".lock"))
    yield
    lock.close()


@pytest.mark.usefixtures("held")
def test_repair_of_an_open_directory_is_refused_with_the_reason(flights: Cli) -> None:
    result = flights.run("doctor", "--repair")
    assert result.code == 2
    assert "this process has it open for writing already" in result.err
    assert "check without --repair" in result.err


def test_files_at_the_top(flights: Cli, partition: Path) -> None:
    (flights.data / "recovery-point-offset-checkpoint").write_text("0\n1\nflights 0 99999\n")
    (flights.data / "log-start-offset-checkpoint").write_text("0\n3\nflights 0 1\nbroken\n")
    (flights.data / "meta.properties").write_text("version=1\nnode.id=0\n")
    (flights.data / "strange.txt").write_text("?")
    (partition / "notes.txt").write_text("?")
    found = {
        Path(str(row["file"])).name: row for row in flights.run("doctor", "-o", "json").objects
    }
    assert found["recovery-point-offset-checkpoint"]["severity"] == "warning"
    assert found["log-start-offset-checkpoint"]["severity"] == "error"
    assert "cluster.id" in str(found["meta.properties"]["damage"])
    assert found["strange.txt"]["severity"] == found["notes.txt"]["severity"] == "note"
    assert flights.run("doctor", "--repair").code == 1  # meta.properties can't be repaired
    assert "flights 0 1\n" in (flights.data / "log-start-offset-checkpoint").read_text()
    rows = flights.run("doctor", "-o", "json").objects
    counting = [Path(str(row["file"])).name for row in rows if row["severity"] != "note"]
    assert counting == ["meta.properties"]


def test_the_metadata_file_of_users_and_acls_is_checked(flights: Cli, partition: Path) -> None:
    MetadataFile(flights.env, str(flights.data)).replace([b"\x01"])
    result = flights.run("doctor", "-o", "json")
    assert result.code == 1
    (row,) = result.objects
    assert (row["file"], row["position"]) == (str(flights.data / METADATA_FILE), 0)
    assert row["damage"] == "invalid record"


def test_a_directory_left_by_a_deleted_topic_is_a_note(flights: Cli, partition: Path) -> None:
    """Power was lost after the deletion was recorded, before the topic's directory was renamed."""
    kept = flights.data.parent / "kept"
    shutil.copytree(flights.data / "other-0", kept)
    with Directory.open(str(flights.data), writable=True, env=flights.env) as directory:
        directory.delete_topic("other")
        text = (flights.data / TOPICS_FILE).read_bytes()
    shutil.copytree(kept, flights.data / "other-0")
    (flights.data / TOPICS_FILE).write_bytes(text)
    result = flights.run("doctor", "-o", "json")
    assert result.code == 0
    (row,) = result.objects
    assert (row["severity"], row["file"]) == ("note", str(flights.data / "other-0"))
