"""`tidelog compact` on a directory that no other process has open."""

import io
from pathlib import Path

from tests.worlds.command_line import NOW, Cli, at

from tidelog.cli.compact import say_stopped
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.types import TopicPartition

COMPACT = ("--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0.9")


def compactable(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--partitions", "2", *COMPACT)
    cli.ok("create", "plain")
    for number in range(3):
        cli.append(at(NOW + number, b"a", b"%d" % number), at(NOW, b"b"))
    return cli


def test_each_key_is_left_once(tmp_path: Path) -> None:
    cli = compactable(tmp_path)
    first, second = cli.ok("compact", "flights", "--roll", "-o", "json").objects
    assert (first["topic"], first["partition"]) == ("flights", 0)
    assert (first["records_before"], first["records_after"]) == (6, 2)
    assert (first["cleaned_to"], first["stopped"]) == (6, None)
    assert second["records_before"] == 0
    assert [line["offset"] for line in cli.ok("read", "flights", "-o", "json").objects] == [4, 5]
    again = cli.ok("compact", "flights:0", "-o", "json").objects
    assert [(one["records_before"], one["records_after"]) for one in again] == [(2, 2)]


def test_without_a_topic_all_compacted_ones_are_examined(tmp_path: Path) -> None:
    cli = compactable(tmp_path)
    found = cli.ok("compact", "--if-due", "-o", "json").objects
    assert [one["partition"] for one in found] == [0, 1]
    assert {one["records_before"] for one in found} == {0}
    assert "nothing is dirty" in str(found[0]["reason"])


def test_damage_of_a_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    cli = compactable(tmp_path)
    for topic in ("airports", "planes"):
        cli.ok("create", topic, *COMPACT)
    topics = ("airports", "flights", "planes")
    for _ in range(2):
        cli.ok("compact", "--roll")
        for topic in topics:
            cli.append(at(NOW, b"a"), at(NOW, b"a"), topic=topic)
    damaged = [tmp_path / "data" / f"{topic}-0" / f"{0:020}.appendtime" for topic in topics[:2]]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    found = cli.run("compact", "--roll", "-o", "json")
    assert found.code == ExitCode.ERROR
    compacted = [(one["topic"], one["partition"]) for one in found.objects]
    assert compacted == [("flights", 1), ("planes", 0)]
    for path in damaged:
        assert found.err.count(f"error: {path}") == 1


def test_the_active_segment_is_left_alone(tmp_path: Path) -> None:
    cli = compactable(tmp_path)
    cli.ok("compact", "flights")
    assert len(cli.ok("read", "flights", "-o", "json").objects) == 6


def test_the_error_for_a_topic_without_compaction_names_the_setting(tmp_path: Path) -> None:
    cli = compactable(tmp_path)
    found = cli.run("compact", "plain")
    assert found.code == ExitCode.USAGE
    assert "--set cleanup.policy=compact" in found.err
    assert cli.run("compact", "nowhere").code == ExitCode.ERROR
    assert cli.run("compact", "flights:7").code == ExitCode.ERROR


def test_a_directory_without_compacted_topics(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "plain")
    assert "no topic has cleanup.policy=compact" in cli.ok("compact").err


def test_a_narrow_table_has_the_reasons(cli: Cli) -> None:
    for topic in ("planes", "flights"):
        cli.ok("create", topic, *COMPACT)
        cli.append(at(NOW, b"a"), topic=topic)
    cli.variables["COLUMNS"] = "80"
    lines = cli.ok("compact").lines
    assert "REASON" in " ".join(lines[:3])
    assert "nothing is dirty" in " ".join(lines)


def test_a_partition_that_was_not_completed_has_its_reason_and_exit_code_2() -> None:
    err = io.StringIO()
    names = [(TopicPartition("t", 0), None), (TopicPartition("t", 1), "the map is full")]
    assert say_stopped(Surroundings(stderr=err), names) == ExitCode.FINDINGS
    assert err.getvalue() == "error: t-1 was not completed: the map is full\n"
    assert say_stopped(Surroundings(stderr=err), names[:1]) == ExitCode.OK


def test_segments_in_a_tier_are_compacted_there(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    small = ("--config", "internal.segment.bytes=300", "--config", "local.retention.bytes=0")
    cli.ok("create", "flights", *COMPACT, *small, "--config", "retention.ms=-1")
    for number in range(40):
        cli.append(at(NOW + number, b"a", b"%d" % number), at(NOW, b"b"))
    before = cli.ok("read", "flights", "--table", "-o", "json").objects
    cli.ok("tier", "flights", "--to", (tmp_path / "store").as_uri())
    (done,) = cli.ok("compact", "flights", "-o", "json").objects
    assert done["stopped"] is None
    assert int(str(done["records_after"])) == 2 < int(str(done["records_before"]))
    assert cli.ok("read", "flights", "--table", "-o", "json").objects == before
    assert "match their manifests" in cli.ok("tier", "--verify").err
    assert cli.run("compact", "flights", "--plan").code == ExitCode.ERROR


class TestReasonsOfAPlan:
    """A plan often leaves out partitions of a topic for reasons that differ only in numbers."""

    def test_the_topic_has_one_reason_and_the_segments_have_all(self, tmp_path: Path) -> None:
        cli = compactable(tmp_path)
        cli.ok("compact", "flights", "--roll")
        options = ("compact", "flights", "--plan", "--show", "topics")
        json = cli.ok(*options, "-o", "json").objects
        assert str(json[0]["reason"]).count("nothing is dirty below offset") == 2
        table = cli.ok(*options, "--wide").out
        assert table.count("nothing is dirty below offset") == 1
        assert "; 1 other reason with --show segments" in table

    def test_equal_reasons_are_printed_once(self, tmp_path: Path) -> None:
        cli = Cli(tmp_path)
        cli.ok("create", "empty", "--partitions", "4", *COMPACT)
        cli.ok("create", "small", "--partitions", "2", *COMPACT)
        shown = cli.ok("compact", "--plan", "--show", "segments").err
        reason = "not due: nothing is dirty below offset 0, where the active segment begins"
        assert f"4 partitions of empty: {reason}" in shown
        assert f"small-0, small-1: {reason}" in shown
