"""`tidelog tier` on a directory, with a folder as the object store."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from tests.worlds.command_line import Cli

import tidelog
from tidelog.cli.doctor import Verdict
from tidelog.cli.surroundings import ExitCode
from tidelog.errors import CorruptMessage, MissingFile
from tidelog.storage.tier.manifest import seal
from tidelog.types import NewRecord, TopicPartition

SMALL = ("--config", "internal.segment.bytes=600", "--config", "retention.ms=-1")


def _filled(tmp_path: Path) -> tuple[Cli, str]:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", *SMALL, "--config", "local.retention.bytes=0")
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as directory:
        for number in range(30):
            cli.clock.advance(1000)
            directory.append("flights", [NewRecord(value=b"%d%s" % (number, b"." * 50))])
    return cli, (tmp_path / "store").as_uri()


def test_tier_copies_deletes_and_reports_segments(tmp_path: Path) -> None:
    cli, url = _filled(tmp_path)
    before = cli.ok("read", "flights", "-o", "json").objects
    assert cli.run("tier", "--to", url).code == ExitCode.USAGE
    nothing = cli.ok("tier", "-o", "json")
    assert not nothing.objects
    assert "--to" in nothing.err
    planned = cli.ok("tier", "flights", "--to", url, "--dry-run", "-o", "json").objects
    assert planned[0]["segments"] != 0
    assert planned[0]["to"] == url
    (moved,) = cli.ok("tier", "flights", "--to", url, "-o", "json").objects
    assert moved["copied"] == moved["released"] == planned[0]["segments"]
    assert cli.ok("read", "flights", "-o", "json").objects == before
    (status,) = cli.ok("tier", "--status", "-o", "json").objects
    assert status["log_start"] == 0
    assert status["local_start"] == status["tier_end"] == moved["local_start"]
    assert status["log_end"] == 30
    assert status["waiting_segments"] == 0
    (facts,) = cli.ok("describe", "flights", "-o", "json").objects
    found = facts["partition_facts"]
    assert isinstance(found, list)
    (fact,) = found
    assert fact["log_start_offset"] == 0
    assert fact["local_start_offset"] == status["local_start"]
    assert fact["tier_segments"] == moved["copied"]
    described = cli.ok("describe", "flights").out
    assert f"local files begin at offset {status['local_start']}" in described
    assert cli.ok("why", "flights", "-o", "json").objects
    again = cli.ok("tier", "--roll", "-o", "json").objects
    assert again[0]["copied"] == 1
    assert cli.ok("read", "flights", "-o", "json").objects == before


def test_tier_reports_that_it_deletes_nothing_by_age_without_a_limit(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "internal.segment.bytes=600")
    url = (tmp_path / "store").as_uri()
    assert "nothing was deleted by age" in cli.ok("tier", "flights", "--to", url).err
    cli.ok("config", "flights", "--set", "retention.ms=1000")
    assert "by age" not in cli.ok("tier", "flights").err


def test_a_narrow_terminal_has_the_reason_of_a_partition_that_was_not_completed(
    tmp_path: Path,
) -> None:
    cli, url = _filled(tmp_path)
    second = sorted((cli.data / "flights-0").glob("*.log"))[1]
    content = bytearray(second.read_bytes())
    content[-1] ^= 1
    second.write_bytes(content)
    cli.variables["COLUMNS"] = "80"
    moved = cli.run("tier", "flights", "--to", url)
    assert moved.code == ExitCode.FINDINGS
    assert f"error: flights-0 was not completed: {second}" in moved.err


def _of_a_later_version(manifest: bytes) -> bytes:
    inner = {**json.loads(manifest)["manifest"], "version": 2}
    return seal(json.dumps(inner).encode(), b', "manifest": ')


@pytest.mark.parametrize("spoiled", [lambda data: data[:-9], _of_a_later_version])
def test_one_tier_that_is_refused_does_not_stop_the_others(
    tmp_path: Path, spoiled: Callable[[bytes], bytes]
) -> None:
    cli, url = _filled(tmp_path)
    cli.ok("tier", "flights", "--to", url)
    cli.ok("create", "later", *SMALL)
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as directory:
        for name in ("flights", "later"):
            for _ in range(30):
                directory.append(name, [NewRecord(value=b"." * 50)])
    cli.ok("tier", "later", "--to", url)
    (manifest,) = (tmp_path / "store").glob("flights*/0/manifest.json")
    manifest.write_bytes(spoiled(manifest.read_bytes()))
    for options in ([], ["--collect"], ["--collect", "--dry-run"]):
        moved = cli.run("tier", *options, "-o", "json")
        assert moved.code == ExitCode.FINDINGS
        assert f"error: flights-0 was not completed: {manifest}" in moved.err.replace("file://", "")
        if not options:
            assert [row["topic"] for row in moved.objects] == ["flights", "later"]


def test_verify_finds_damaged_objects_and_collect_unreferenced_ones(tmp_path: Path) -> None:
    cli, url = _filled(tmp_path)
    cli.ok("tier", "flights", "--to", url)
    assert "match their manifests" in cli.ok("tier", "--verify").err
    (log, *_) = sorted((tmp_path / "store").rglob("*.log"))
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    found = cli.run("tier", "flights:0", "--verify", "-o", "json")
    assert found.code == ExitCode.FINDINGS
    assert [row["first_offset"] for row in found.objects] == [0]
    assert not cli.ok("tier", "--verify", "--sizes", "-o", "json").objects
    log.write_bytes(content[:-1])
    assert cli.run("tier", "--verify", "--sizes").code == ExitCode.FINDINGS
    orphan = log.parent.with_name(f"{'0' * 20}-{'a' * 32}") / log.name
    orphan.parent.mkdir()
    orphan.write_bytes(b"orphan")
    cli.clock.set(4_102_444_800_000)
    found = cli.ok("tier", "--collect", "--dry-run", "-o", "json")
    assert len(found.objects) == 1
    assert orphan.exists()
    cli.ok("tier", "--collect")
    assert not orphan.exists()
    assert log.exists()


def test_doctor_names_the_way_to_the_first_record_of_a_new_tier(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    url = (tmp_path / "store").as_uri()
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as log:
        log.create_topic("t")
        log.append("t", [NewRecord(value=b"v")])
        log.log("t", 0).roll()
        log.append("t", [NewRecord(value=b"v")])
        log.delete_records({TopicPartition("t", 0): 1})
        log.retain("t")
        log.alter_config("t", {"remote.storage.enable": "true", "tidelog.tier.url": url})
    (finding,) = cli.run("doctor", "-o", "json").objects
    remedy = f"{finding['remedy']}"
    writes = f"`tidelog tier t:0 --data {cli.data}` writes the file"
    assert remedy.endswith(f"if the tier has no records yet, {writes}")
    cli.ok("tier", "t")
    cli.ok("doctor")


def test_a_damaged_record_is_restored_and_a_deleted_topic_collected(tmp_path: Path) -> None:
    cli, url = _filled(tmp_path)
    cli.ok("tier", "flights", "--to", url)
    before = cli.ok("read", "flights", "-o", "json").objects
    record = tmp_path / "data" / "flights-0" / "tidelog-tier.json"
    whole = record.read_bytes()
    for damaged in (whole[:-7], None):
        record.unlink()
        if damaged is not None:
            record.write_bytes(damaged)
            assert "--restore" in cli.run("read", "flights").err
        found = cli.run("doctor", "-o", "json")
        assert found.code == Verdict.FINDINGS
        (finding,) = (one for one in found.objects if one["severity"] != "note")
        assert finding["file"] == str(record)
        restore = f"`tidelog tier flights:0 --restore --data {cli.data}`"
        assert restore in f"{finding['remedy']}"
        if damaged is not None:
            assert restore in cli.run("read", "flights").err
        restored = cli.ok("tier", "flights:0", "--restore", "-o", "json")
        assert [tuple(one.values()) for one in restored.objects] == [("flights", 0, 5, 0, 25, 25)]
        assert "tidelog-tier.json of 1 partition rebuilt from the store" in restored.err
    sound = cli.run("doctor", "-o", "json")
    assert sound.code == ExitCode.OK
    assert cli.ok("read", "flights", "-o", "json").objects == before
    assert sorted((tmp_path / "store").rglob("*.log"))
    cli.ok("delete", "flights", "--yes")
    cli.ok("create", "flights", *SMALL)
    cli.ok("tier", "--collect")
    assert not sorted((tmp_path / "store").rglob("*.log"))


def test_a_missing_partition_directory_is_restored_from_its_tier(tmp_path: Path) -> None:
    cli, url = _filled(tmp_path)
    cli.ok("tier", "flights", "--to", url, "--roll")
    before = cli.ok("read", "flights", "-o", "json").objects
    partition = cli.data / "flights-0"
    restore = f"`tidelog tier flights:0 --restore --data {cli.data}`"
    shutil.rmtree(partition)
    found = cli.run("doctor", "-o", "json")
    (finding,) = (one for one in found.objects if one["severity"] != "note")
    assert finding["file"] == str(partition)
    assert restore in f"{finding['remedy']}"
    cli.ok("tier", "flights:0", "--restore")
    assert cli.ok("read", "flights", "-o", "json").objects == before
    assert cli.ok("doctor").code == ExitCode.OK
    shutil.rmtree(partition)
    with tidelog.open(cli.data, writable=True, env=cli.env) as directory:
        with pytest.raises(MissingFile, match="all records before offset 30"):
            directory.log("flights", 0)
        (report,) = directory.reports
    assert restore in report
    cli.ok("tier", "flights:0", "--restore")
    assert cli.ok("read", "flights", "-o", "json").objects == before


def test_a_restored_directory_has_the_records_of_the_store_at_once(tmp_path: Path) -> None:
    cli, url = _filled(tmp_path)
    cli.ok("tier", "flights", "--to", url)
    backup = tmp_path / "backup"
    shutil.copytree(cli.data, backup)
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as directory:
        for number in range(30, 60):
            cli.clock.advance(1000)
            directory.append("flights", [NewRecord(value=b"%d%s" % (number, b"." * 50))])
    (status,) = cli.ok("tier", "flights", "--roll", "-o", "json").objects
    assert status["tier_end"] == 60
    before = cli.ok("read", "flights", "-o", "json").objects
    shutil.rmtree(cli.data)
    shutil.copytree(backup, cli.data)
    assert cli.run("tier", "flights").code == ExitCode.FINDINGS
    cli.ok("tier", "flights", "--restore")
    assert cli.ok("read", "flights", "-o", "json").objects == before


def test_doctor_finds_no_error_in_a_tiered_directory(tmp_path: Path) -> None:
    cli, url = _filled(tmp_path)
    cli.ok("tier", "flights", "--to", url)
    assert not [
        row
        for row in cli.ok("doctor", "-o", "json").objects
        if row.get("severity", "note") != "note"
    ]
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as directory:
        directory.log("flights", 0).delete_records(7)
    assert cli.ok("read", "flights", "-o", "json").objects[0]["offset"] == 7
    found = cli.run("doctor", "-o", "json")
    assert found.code == ExitCode.OK, found.out


def test_two_actions_at_once_are_refused(tmp_path: Path) -> None:
    cli, _ = _filled(tmp_path)
    found = cli.run("tier", "--status", "--verify")
    assert found.code == ExitCode.USAGE
    assert "--status and --verify" in found.err
    for wrong, told in (
        (["--sizes"], "--sizes does not apply without --verify"),
        (["--status", "--sizes"], "--sizes does not apply without --verify"),
        (["--drop-theirs"], "--drop-theirs does not apply without --take-over"),
        (["--status", "--drop-theirs"], "--drop-theirs does not apply with --status"),
        (["--status", "--roll"], "--roll does not apply with --status"),
        (["--dry-run", "--roll"], "--roll does not apply with --dry-run"),
        (["--verify", "--dry-run"], "--dry-run does not apply with --verify"),
    ):
        found = cli.run("tier", "flights", *wrong)
        assert found.code == ExitCode.USAGE
        assert found.err.startswith(f"error: {told}")


def test_an_invalid_response_of_the_holder_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid response makes the connection unusable, so all partitions fail."""
    cli, url = _filled(tmp_path)

    def fails(*_arguments: object) -> NoReturn:
        raise CorruptMessage("an invalid response", at=0)

    monkeypatch.setattr("tidelog.cli.tier._move_partition", fails)
    moved = cli.run("tier", "flights", "--to", url)
    assert moved.code == ExitCode.ERROR
    assert "was not completed" not in moved.err


def test_doctor_says_that_it_does_not_check_the_objects_of_tiers(tmp_path: Path) -> None:
    cli, url = _filled(tmp_path)
    assert "tier" not in cli.ok("doctor", str(cli.data)).err
    cli.ok("tier", "flights", "--to", url)
    notes = cli.ok("doctor", str(cli.data)).err
    assert "note: the objects in the tiers of flights were not checked" in notes
    assert f"`tidelog tier flights --data {cli.data} --verify` checks them" in notes
    renamed = cli.data.rename(tmp_path / "my data")
    assert f" --data '{renamed}' --verify` checks them" in cli.ok("doctor", str(renamed)).err
