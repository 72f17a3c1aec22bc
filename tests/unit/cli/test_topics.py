"""`topics`, `create`, `delete`, `config`, `describe`."""

import csv
import io
import re
import shutil
from collections.abc import Mapping
from typing import cast

import pytest
from tests.worlds.command_line import NOW, Cli, at

import tidelog
from tidelog.cli import output
from tidelog.remote import remote_directory, time_lookup
from tidelog.remote.view import ClusterView, Watermarks
from tidelog.timespec import time_text
from tidelog.types import NewRecord, TimeSpan, TopicPartition


def test_create_makes_the_directory_and_reports_it(cli: Cli) -> None:
    result = cli.ok("create", "flights", "--partitions", "4")
    assert result.out == ""
    assert result.err == "created flights with 4 partitions\n"
    (topic,) = cli.ok("topics", "-o", "json").objects
    assert (topic["topic"], topic["partitions"], topic["bytes"]) == ("flights", 4, 0)


def test_create_reports_the_translation_of_an_older_name(cli: Cli) -> None:
    result = cli.ok("create", "flights", "-c", "log.retention.hours=5")
    assert "log.retention.hours: used as retention.ms=18000000" in result.err


def test_topics_counts_segments_and_bytes_without_opening_logs(flights: Cli) -> None:
    flights.append(at(NOW))
    (topic,) = flights.ok("topics", "-o", "json").objects
    log = next(flights.data.glob("flights-0/*.log"))
    assert (topic["segments"], topic["bytes"]) == (1, log.stat().st_size)
    assert topic["settings"] == {"retention.ms": "-1"}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"version": 1', '"version": 99', "this release reads up to version 1"),
        ('"-1"', '"soon"', "topic flights: retention.ms=soon: must be a whole number"),
    ],
)
def test_an_unusable_topics_file_is_named_with_its_directory(
    flights: Cli, old: str, new: str, reason: str
) -> None:
    path = flights.data / "tidelog-topics.json"
    path.write_text(path.read_text().replace(old, new))
    result = flights.run("topics")
    assert result.code == 1
    assert result.err.startswith(f"error: {path}: ")
    assert reason in result.err
    (finding,) = flights.run("doctor", "-o", "json").objects
    assert finding["file"] == str(path)
    assert str(flights.data) not in f"{finding['damage']}"


def test_topics_of_an_empty_directory_gets_advice(cli: Cli) -> None:
    cli.data.mkdir()
    result = cli.ok("topics")
    assert result.lines == ["TOPIC  PARTITIONS  SEGMENTS  SIZE  TOPIC ID  CHANGED SETTINGS"]
    assert f"`tidelog create TOPIC --data {cli.data}` creates one" in result.err


@pytest.mark.parametrize("command", [["topics"], ["describe", "flights"], ["create", "flights"]])
def test_a_partitions_directory_is_refused(flights: Cli, command: list[str]) -> None:
    partition = flights.data / "flights-0"
    flights.append(at(NOW))
    before = sorted(partition.iterdir())
    result = flights.run(*command, "--data", str(partition))
    assert result.code == 3
    assert f"{partition} is the directory of one partition" in result.err
    assert result.err.splitlines()[0].endswith(f", {flights.data}")
    assert sorted(partition.iterdir()) == before


def test_a_partitions_directory_with_another_name_is_to_be_renamed(flights: Cli) -> None:
    flights.append(at(NOW))
    copy = (flights.data / "flights-0").rename(flights.data.parent / "copy")
    result = flights.run("topics", "--data", str(copy))
    assert result.code == 3
    assert "its name is not TOPIC-NUMBER, such as flights-0; rename it, then open" in result.err


def test_the_current_directory_is_refused_if_it_is_that_of_a_partition(
    flights: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = flights.data / "flights-0"
    flights.append(at(NOW))
    before = sorted(partition.iterdir())
    monkeypatch.chdir(partition)
    result = flights.run("create", "more", "--data", ".")
    assert result.code == 3
    assert "open the directory that holds it, .." in result.err
    assert sorted(partition.iterdir()) == before


def test_a_directory_with_partitions_may_be_named_like_one(cli: Cli) -> None:
    data = cli.data / "kafka-1"
    cli.ok("create", "flights", "--data", str(data))
    (data / f"{0:020d}.log").touch()
    cli.ok("create", "more", "--data", str(data))


def test_delete_needs_yes_and_shows_the_bytes_to_delete(flights: Cli) -> None:
    flights.append(at(NOW))
    result = flights.run("delete", "flights")
    assert result.code == 3
    size = next(flights.data.glob("flights-0/*.log")).stat().st_size
    assert f"{size} B of records" in result.err
    assert "--yes" in result.err
    assert len(flights.ok("topics", "-o", "json").objects) == 1


def test_delete_with_yes_deletes(flights: Cli) -> None:
    flights.ok("delete", "flights", "--yes")
    assert flights.ok("topics", "-o", "json").objects == []
    assert list(flights.data.glob("flights-*")) == []


def test_topics_have_a_size_and_internal_topics_are_last(flights: Cli) -> None:
    flights.ok("create", "__consumer_offsets")
    heading, *rows = flights.ok("topics").lines
    assert heading.split()[:4] == ["TOPIC", "PARTITIONS", "SEGMENTS", "SIZE"]
    assert [row.split()[0] for row in rows] == ["flights", "__consumer_offsets"]


def test_config_shows_set_values_and_with_all_also_the_defaults(flights: Cli) -> None:
    given = flights.ok("config", "flights", "-o", "json").objects
    assert [list(row.values()) for row in given] == [["retention.ms", "-1", "topic", "604800000"]]
    found = {
        row["setting"]: row
        for row in flights.ok("config", "flights", "--all", "-o", "json").objects
    }
    assert found["retention.ms"]["source"] == "topic"
    assert found["segment.bytes"] == {
        "setting": "segment.bytes",
        "value": "1073741824",
        "source": "default",
        "default": "1073741824",
    }


def test_config_says_what_special_values_mean(flights: Cli) -> None:
    flights.ok("config", "flights", "--set", "retention.ms=-1", "--set", "retention.bytes=1GiB")
    table = " ".join(flights.ok("config", "flights", "--all").out.split())
    assert "retention.ms -1 (no limit) topic" in table
    assert "retention.bytes 1073741824 (1GiB) topic" in table
    assert "flush.messages 9223372036854775807 (no limit) default" in table
    assert "local.retention.ms -2 (as retention.ms) default" in table
    assert "compression.gzip.level -1 default" in table
    objects = flights.ok("config", "flights", "--all", "-o", "json").objects
    values = {row["setting"]: row["value"] for row in objects}
    assert values["flush.ms"] == "9223372036854775807"


def test_config_sets_and_unsets(flights: Cli) -> None:
    changed = flights.ok(
        "config",
        "flights",
        "--set",
        "segment.bytes=2097152",
        "--unset",
        "retention.ms",
        "-o",
        "json",
    ).objects
    (row,) = changed
    assert list(row.values()) == ["segment.bytes", "2097152", "topic", "1073741824"]
    assert flights.ok("config", "flights", "-o", "json").objects == changed


def test_config_unsets_a_repeated_setting_once(flights: Cli) -> None:
    flights.ok("config", "flights", "--set", "retention.ms=5")
    flights.ok("config", "flights", "--unset", "retention.ms", "--unset", "retention.ms")
    assert "retention.ms" not in flights.ok("config", "flights").out


def test_config_shows_defaults_that_differ_by_name_of_the_setting(flights: Cli) -> None:
    flights.ok("config", "flights", "--set", "segment.bytes=2MiB", "--set", "cleanup.policy=delete")
    heading, *rows = flights.ok("config", "flights").lines
    assert heading.split() == ["SETTING", "VALUE", "SOURCE", "DEFAULT"]
    assert [row.split("  ")[0] for row in rows] == [
        *("cleanup.policy", "retention.ms", "segment.bytes")
    ]
    assert [row.split("  ")[-1].strip() for row in rows] == [*("-", "7d", "1GiB")]
    listed = [
        row["setting"] for row in flights.ok("config", "flights", "--all", "-o", "json").objects
    ]
    assert listed == sorted(listed, key=str)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--set", "segment.bytes"), 3, "write KEY=VALUE"),
        (("--set", "retention.ms=5", "--unset", "retention.ms"), 3, "both set and unset"),
        (("--unset", ""), 3, "error: '': unknown topic setting"),
        (("--set", "retention.mss=5"), 3, "did you mean retention.ms?"),
        (("--set", "segment.bytes=12"), 3, "1048576"),
    ],
)
def test_config_refuses(flights: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = flights.run("config", "flights", *arguments)
    assert result.code == code
    assert message in result.err
    assert flights.ok("config", "flights", "-o", "json").objects[0]["value"] == "-1"


def test_describe_shows_offsets_and_both_clocks(flights: Cli) -> None:
    flights.append(at(NOW - 5_000), at(NOW - 60_000))
    flights.clock.advance(1_000)
    flights.append(at(NOW - 3_000))
    (topic,) = flights.ok("describe", "flights", "-o", "json").objects
    facts = topic["partition_facts"]
    assert isinstance(facts, list)
    (partition,) = facts
    assert partition["log_end_offset"] == partition["last_stable_offset"] == 3
    assert partition["record"]["first_ms"] == NOW - 5_000
    assert partition["record"]["largest_ms"] == NOW - 3_000
    assert (partition["append"]["first_ms"], partition["append"]["last_ms"]) == (NOW, NOW + 1_000)
    assert partition["append"]["unknown"] == []
    assert topic["settings"] == {"retention.ms": "-1"}


@pytest.mark.parametrize("is_remote", [False, True])
def test_describe_ends_its_tables_with_a_row_for_the_topic(cli: Cli, is_remote: bool) -> None:
    """The row shows the first and the last time of all partitions; partition 2 has no times."""
    hour = 3_600_000
    cli.ok("create", "flights", "--partitions", "3")
    cli.append(at(NOW - 2 * hour), partition=0)
    cli.clock.advance(hour)
    cli.append(at(NOW - hour), partition=1)
    first, last = (time_text(NOW - hours * hour, None) for hours in (2, 1))
    appended = [time_text(time_ms, None) for time_ms in (NOW, NOW + hour)]
    if is_remote:
        with tidelog.broker(str(cli.data)) as broker:
            place = ("--bootstrap", broker.bootstrap_servers)
            assert len(cli.ok("describe", "flights", "-o", "csv", *place).lines) == 4
            lines = cli.ok("describe", "flights", "--wide", *place).lines
        assert re.split(r" {2,}", lines[-1].strip())[-4:] == ["-", last, *appended]
        return
    lines = cli.ok("describe", "flights").lines
    totals = [line.split(maxsplit=1) for line in lines if line.split()[:1] == ["total"]]
    size = sum(path.stat().st_size for path in cli.data.glob("flights-*/*.log"))
    assert [rest.split() for _, rest in totals] == [
        ["-", "-", "-", "2", *output.bytes_text(size).split()],
        ["record", *first.split(), *last.split(), "-"],
        ["append", *appended[0].split(), *appended[1].split(), "-"],
    ]
    assert len(cli.ok("describe", "flights", "-o", "csv").lines) == 4
    assert "total" not in cli.ok("describe", "flights:1").out


def test_describe_shows_offsets_with_unknown_append_time(flights: Cli) -> None:
    flights.append(at(NOW), at(NOW))
    next(flights.data.glob("flights-0/*.appendtime")).unlink()
    text = flights.ok("describe", "flights").out
    assert "0..1" in text
    (topic,) = flights.ok("describe", "flights", "-o", "json").objects
    facts = topic["partition_facts"]
    assert isinstance(facts, list)
    assert facts[0]["append"] == {
        "first": None,
        "first_ms": None,
        "last": None,
        "last_ms": None,
        "unknown": [[0, 2]],
    }


def test_describe_of_a_partition_without_files_names_those_with_files(cli: Cli) -> None:
    cli.ok("create", "flights", "--partitions", "3")
    shutil.rmtree(cli.data / "flights-1")
    result = cli.run("describe", "flights:1")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(
        f"error: flights:1 has no files in {cli.data}; partitions with files: 0, 2\nhint: "
    )
    assert len(cli.ok("describe", "flights", "-o", "csv").lines) == 3


def test_describe_of_a_partition_of_a_cluster_asks_only_for_its_times(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("create", "flights", "--partitions", "3")
    requested: list[list[TopicPartition]] = []
    real = time_lookup.append_spans

    def append_spans(
        cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks]
    ) -> dict[TopicPartition, TimeSpan]:
        requested.append([*marks])
        return real(cluster, marks)

    for module in (time_lookup, remote_directory):
        monkeypatch.setattr(module, "append_spans", append_spans)
    with tidelog.broker(str(cli.data)) as broker:
        cli.ok("describe", "flights:1", "--bootstrap", broker.bootstrap_servers)
    assert requested == [[TopicPartition("flights", 1)]]


def test_describe_prints_times_in_the_requested_zone(flights: Cli) -> None:
    flights.append(at(1_360_342_800_000))
    text = flights.ok("describe", "flights", "--zone", "America/New_York").out
    assert "2013-02-08 12:00:00" in text


def test_describe_notes_a_record_without_a_time(flights: Cli) -> None:
    flights.append(NewRecord(value=b"v", timestamp=-1))
    (topic,) = flights.ok("describe", "flights", "-o", "json").objects
    facts = topic["partition_facts"]
    assert isinstance(facts, list)
    assert facts[0]["record"]["first_ms"] is None
    assert facts[0]["record"]["largest_ms"] is None
    assert facts[0]["record"]["without_time"] == 1
    assert flights.ok("describe", "flights").lines[-1] == (
        "partition 0: 1 record has no timestamp, so no range of timestamps contains it"
    )


@pytest.mark.parametrize("segment_bytes", ["1000000", "300"])
def test_describe_counts_records_without_a_time(cli: Cli, segment_bytes: str) -> None:
    """The count comes from zone maps, or from the records of a small segment without a zone map."""
    cli.ok("create", "flights", "-c", f"internal.segment.bytes={segment_bytes}")
    for _ in range(8):
        cli.append(at(NOW), NewRecord(value=b"v" * 100, timestamp=-1))
    cli.ok("delete-records", "flights:0", "--offset", "3", "--yes")
    (topic,) = cli.ok("describe", "flights", "-o", "json").objects
    (fact,) = cast("list[dict[str, dict[str, object]]]", topic["partition_facts"])
    assert fact["record"]["without_time"] == 7


def test_describe_as_csv_is_one_table(flights: Cli) -> None:
    flights.append(at(NOW), NewRecord(value=b"v", timestamp=-1))
    next(flights.data.glob("flights-0/*.appendtime")).unlink()
    (row,) = csv.DictReader(io.StringIO(flights.ok("describe", "flights", "-o", "csv").out))
    assert (row["topic"], row["partition"], row["end"]) == ("flights", "0", "2")
    assert (row["record_smallest_ms"], row["record_without_time"]) == (str(NOW), "1")
    assert (row["append_first"], row["append_unknown_offsets"]) == ("", "[[0, 2]]")


def test_an_error_of_a_setting_has_the_given_text(flights: Cli) -> None:
    text = "segment.bytes=1KB"
    said = f"error: {text}: is 1000 bytes; must be a whole number >= 1048576\n"
    assert flights.run("create", "other", "-c", text).err == said
    assert flights.run("config", "flights", "--set", text).err == said


def test_an_existing_topic_is_named_in_the_hint(flights: Cli) -> None:
    result = flights.run("create", "flights")
    assert f"hint: `tidelog describe flights --data {flights.data}` shows it" in result.err
