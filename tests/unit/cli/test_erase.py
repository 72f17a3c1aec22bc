"""`tidelog erase`: a dry run by default, the erasure, and its receipt."""

import json
import struct
from pathlib import Path

import pytest
from tests.worlds.command_line import NOW, Cli, at

from tidelog.cli.surroundings import ExitCode
from tidelog.directory import Directory
from tidelog.types import Header, NewRecord


@pytest.fixture
def keyed(flights: Cli) -> Cli:
    """Write four records, two of them with the key `secret`."""
    flights.append(*[at(NOW, key, b"v") for key in (b"secret", b"a", b"secret", b"b")])
    return flights


def keys_of(cli: Cli) -> list[object]:
    return [row["key"] for row in cli.ok("read", "flights", "-o", "json").objects]


def test_erase_changes_nothing_without_execute(keyed: Cli) -> None:
    result = keyed.ok("erase", "flights", "--key", "secret", "-o", "json")
    receipt = json.loads(result.out)
    assert (receipt["records"], receipt["executed"]) == (2, False)
    assert receipt["found"][0]["offsets"] == [0, 2]
    assert "2 records of the key in 1 of 1 file of flights; --execute erases them" in result.err
    assert keys_of(keyed).count("secret") == 2


def test_a_dry_run_shows_the_files_that_contain_the_key(keyed: Cli) -> None:
    result = keyed.ok("erase", "flights", "--key", "secret")
    assert result.lines[0] == (
        "2 records of the key in 1 of 1 file of flights; --execute erases them"
    )
    assert result.lines[1].split() == ["PARTITION", "FILE", "RECORDS", "OFFSETS"]
    row = result.lines[2].split()
    assert (row[0], row[2:]) == ("0", ["2", "0,", "2"])
    assert "not checked" not in result.err
    assert result.err == (
        "note: --execute appends a tombstone with the key to flights-0, from which consumers and"
        " followers learn of the deletion: nothing removes it, since the topic has neither"
        " compaction nor a limit of retention\n"
        "note: tables of flights-0 as of earlier times, and differences between them, are inexact"
        " after --execute: they lack the key\n"
    )


def test_damage_is_reported_with_its_file_and_position(keyed: Cli) -> None:
    keyed.append(at(NOW, b"c", b"v"))
    (path,) = keyed.data.glob("flights-0/*.log")
    content = bytearray(path.read_bytes())
    start = 12 + int.from_bytes(content[8:12], "big")
    content[start + 30] ^= 1
    path.write_bytes(content)
    result = keyed.run("erase", "flights", "--key", "secret")
    assert result.code == ExitCode.ERROR
    assert f"error: {path}, position {start}, offset 4: CRC-32C is " in result.err
    doctor = f"`tidelog doctor flights:0 --data {keyed.data}`"
    assert f"{doctor} lists the damage and what to do" in result.err


def test_wide_lists_all_offsets(flights: Cli) -> None:
    flights.append(*[at(NOW, b"secret", b"v")] * 12)
    assert "6, 7, ..." in flights.ok("erase", "flights", "--key", "secret").out
    assert "10, 11" in flights.ok("erase", "flights", "--key", "secret", "--wide").out


def test_a_repeated_erasure_changes_nothing_and_names_the_tombstone(keyed: Cli) -> None:
    keyed.ok("config", "flights", "--set", "cleanup.policy=compact,delete")
    keyed.ok("erase", "flights", "--key", "secret", "--execute")
    stays = (
        "note: the key stays in 1 tombstone (flights-0 at 4), from which consumers and followers"
        " learn of the deletion: it stays until compaction (at least 1d later, see"
        " delete.retention.ms) removes it\n"
    )
    dry = keyed.ok("erase", "flights", "--key", "secret")
    assert dry.lines == ["no record of the key, only its tombstone, in 2 files of flights"]
    assert dry.err == stays
    again = keyed.ok("erase", "flights", "--key", "secret", "--execute")
    receipt = json.loads(again.out)
    assert (receipt["records"], receipt["complete"]) == (0, True)
    assert receipt["tombstones"] == [{"partition": 0, "offset": 4}]
    assert stays in again.err
    assert keyed.ok("offsets", "flights", "--at", "latest", "-o", "json").objects[0]["offset"] == 5
    assert keys_of(keyed) == ["a", "b", "secret"]


def test_a_tombstone_with_headers_is_erased_too(flights: Cli) -> None:
    record = NewRecord(key=b"secret", value=None, headers=(Header("name", b"Jo"),))
    flights.append(record)
    flights.ok("erase", "flights", "--key", "secret", "--execute")
    assert [row["headers"] for row in flights.ok("read", "flights", "-o", "json").objects] == [[]]


def test_one_record_is_one(keyed: Cli) -> None:
    result = keyed.ok("erase", "flights", "--key", "a")
    assert result.lines[0] == ("1 record of the key in 1 of 1 file of flights; --execute erases it")


@pytest.mark.parametrize("more", [(), ("--execute",)])
def test_an_absent_key_gets_no_advice_to_execute(keyed: Cli, more: tuple[str, ...]) -> None:
    result = keyed.ok("erase", "flights", "--key", "nobody", "-o", "json", *more)
    assert json.loads(result.out)["records"] == 0
    assert "no record of the key in 1 file of flights" in result.err
    people = keyed.ok("erase", "flights", "--key", "nobody", "-o", "table", *more)
    assert people.lines == ["no record of the key in 1 file of flights"]
    assert keys_of(keyed) == ["secret", "a", "secret", "b"]


def test_the_receipt_has_the_changes(keyed: Cli) -> None:
    result = keyed.ok("erase", "flights", "--key", "secret", "--execute")
    receipt = json.loads(result.out)
    assert receipt["complete"]
    assert receipt["tombstones"] == [{"partition": 0, "offset": 4}]
    assert "secret" not in result.out
    assert "not checked: backups" in result.err
    assert "2 records of the key erased from 1 file of flights" in result.err
    assert keys_of(keyed) == ["a", "b", "secret"]


def test_a_key_is_given_by_its_serializer(flights: Cli) -> None:
    flights.append(at(NOW, struct.pack(">q", 42), b"v"))
    result = flights.ok("erase", "flights", "--key", "42", "--key-as", "int64", "-o", "json")
    assert json.loads(result.out)["records"] == 1
    wrong = flights.run("erase", "flights", "--key", "x", "--key-as", "int64")
    assert wrong.code == ExitCode.ERROR
    assert "error: --key: 'x' can't be read as int64: must be a whole number\n" in wrong.err


def test_the_process_that_holds_the_directory_erases(keyed: Cli) -> None:
    with Directory.open(str(keyed.data), writable=True, env=keyed.env, control=True) as directory:
        result = keyed.ok("erase", "flights", "--key", "secret", "--execute")
        assert json.loads(result.out)["complete"]
        found = [record.key for _, record in directory.records("flights")]
    assert found == [b"a", b"b", b"secret"]


def test_a_key_is_erased_from_a_tier_too(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    small = ("--config", "internal.segment.bytes=300", "--config", "retention.ms=-1")
    cli.ok("create", "flights", *small, "--config", "local.retention.bytes=0")
    for number in range(12):
        cli.append(at(NOW + number, b"secret" if number % 3 == 0 else b"k%d" % number, b"v" * 60))
    cli.ok("tier", "flights", "--to", (tmp_path / "store").as_uri())
    rows = cli.ok("read", "flights", "--table", "--at", str(NOW + 5), "-o", "json").objects
    assert {row["key"]: row["offset"] for row in rows} == {
        "secret": 3,
        **{f"k{number}": number for number in (1, 2, 4, 5)},
    }
    looked = json.loads(cli.ok("erase", "flights", "--key", "secret", "-o", "json").out)
    assert looked["records"] == 4
    result = cli.ok("erase", "flights", "--key", "secret", "--execute")
    receipt = json.loads(result.out)
    assert receipt["complete"]
    assert receipt["not_reached"] == []
    assert len(receipt["tombstones"]) == 1
    assert keys_of(cli).count("secret") == 1
    objects = (tmp_path / "store").rglob("*.log")
    assert not [path for path in objects if b"secret" in path.read_bytes()]
    assert "match their manifests" in cli.ok("tier", "--verify").err
