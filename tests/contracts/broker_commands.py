"""Contract of commands with `--bootstrap`, for every broker: Apache Kafka's and ours.

A test module defines the fixture `shell`, and a class that inherits from `Commands`.
"""

import io
import json
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from tests.worlds.waiting import PATIENCE_S, until_equal

from tidelog.cli.app import run
from tidelog.cli.surroundings import ExitCode, Surroundings

_NUMBERS = count()
T0 = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs commands on one cluster, in this process."""

    bootstrap: str
    timeout: str = f"{PATIENCE_S}s"

    def run(self, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """Run a command; return its exit code, stdout and stderr."""
        raw, err = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        surroundings = Surroundings(stdin=io.BytesIO(stdin), stdout=out, stderr=err, variables={})
        place = ("--bootstrap", self.bootstrap, "--timeout", self.timeout)
        code = run([*arguments, *place], surroundings)
        out.flush()
        return code, raw.getvalue(), err.getvalue()

    def rows(self, *arguments: str, stdin: bytes = b"") -> list[dict[str, object]]:
        """Run a command that must succeed; return its JSON objects."""
        code, out, err = self.run(*arguments, "-o", "json", stdin=stdin)
        assert code == ExitCode.OK, err
        return [json.loads(line) for line in out.splitlines()]

    def fresh(self, partitions: int = 1, *more: str) -> str:
        """Create a new topic; return its name."""
        name = f"shell-{next(_NUMBERS)}"
        code, _, err = self.run("create", name, "--partitions", str(partitions), *more)
        assert code == ExitCode.OK, err
        return name

    def filled(self, partitions: int = 1) -> str:
        """Create a topic of ten records, one a minute, but the fifth has the second one's time."""
        name = self.fresh(partitions)
        minutes = [0, 1, 2, 3, 1, 5, 6, 7, 8, 9]
        lines = "".join(
            json.dumps({"key": f"k{n}", "time": T0 + minute * 60_000}) + "\n"
            for n, minute in enumerate(minutes)
        )
        told = self.rows(
            *("produce", name, "--from", "-", "--format", "json"),
            *("--key", "key", "--time", "time"),
            stdin=lines.encode(),
        )
        assert sum(int(str(row["records"])) for row in told) == 10
        return name


def only(found: object) -> dict[str, object]:
    """Return the only object of a list."""
    assert isinstance(found, list)
    (one,) = found
    assert isinstance(one, dict)
    return one


class Commands:
    """Tests of the commands; the test class of each kind of broker inherits them."""

    @pytest.mark.parametrize(("retention", "is_noted"), [("3600000", True), ("-1", False)])
    def test_produce_notes_rows_that_retention_deletes(
        self, shell: Shell, retention: str, *, is_noted: bool
    ) -> None:
        name = shell.fresh(1, "--config", f"retention.ms={retention}")
        line = json.dumps({"value": "x", "time": T0}).encode()
        given = ("--from", "-", "--format", "json", "--value", "value", "--time", "time")
        code, _, err = shell.run("produce", name, *given, stdin=line)
        assert code == ExitCode.OK, err
        assert ("1 appended record is older than the topic's retention.ms" in err) is is_noted

    def test_topics_are_made_shown_changed_and_deleted(self, shell: Shell) -> None:
        name = shell.fresh(2, "--config", "retention.ms=60000")
        rows = {str(row["topic"]): row for row in shell.rows("topics")}
        assert rows[name]["partitions"] == 2
        assert rows[name]["settings"] == {"retention.ms": "60000"}
        (told,) = shell.rows("config", name)
        assert told == {
            "setting": "retention.ms",
            "value": "60000",
            "source": "topic",
            "default": "604800000",
        }
        assert shell.run("config", name, "--unset", "retention.ms")[0] == ExitCode.OK
        every = {row["setting"]: row["value"] for row in shell.rows("config", name, "--all")}
        assert every["cleanup.policy"] == "delete"
        code, _, err = shell.run("delete", name)
        assert code == ExitCode.USAGE
        assert "add --yes" in err
        assert shell.run("delete", name, "--yes")[0] == ExitCode.OK
        code, _, err = shell.run("describe", "shell-none")
        assert code == ExitCode.ERROR
        assert "has no topic shell-none" in err

    def test_older_names_of_settings_are_mapped(self, shell: Shell) -> None:
        name = shell.fresh(1, "--config", "log.retention.hours=3")
        (told,) = shell.rows("config", name)
        assert (told["setting"], told["value"]) == ("retention.ms", "10800000")
        code, _, err = shell.run("config", name, "--set", "log.segment.bytes=2097152")
        assert code == ExitCode.OK, err
        assert "note: log.segment.bytes: used as segment.bytes=2097152" in err
        assert shell.run("config", name, "--unset", "log.retention.hours")[0] == ExitCode.OK
        assert [row["setting"] for row in shell.rows("config", name)] == ["segment.bytes"]
        code, _, err = shell.run("config", name, "--unset", "nope")
        assert code == ExitCode.USAGE
        assert "nope: the brokers don't know this setting" in err
        code, _, err = shell.run("create", "shell-none", "--config", "nope=1")
        assert code == ExitCode.USAGE
        assert "nope" in err

    def test_describe_shows_offsets_and_times(self, shell: Shell) -> None:
        name = shell.filled()
        (told,) = shell.rows("describe", name)
        facts = only(told["partition_facts"])
        assert (facts["log_start_offset"], facts["log_end_offset"]) == (0, 10)
        assert facts["record"] == {"largest": "2023-11-14T22:22:20.000Z"} | {
            "largest_ms": T0 + 9 * 60_000
        }
        code, out, _ = shell.run("describe", name)
        assert code == ExitCode.OK
        assert out.split().count(b"CreateTime") == 1

    def test_offsets_by_time_and_by_word(self, shell: Shell) -> None:
        name = shell.filled()

        def offset(at: str) -> object:
            (row,) = shell.rows("offsets", name, "--at", at)
            return row["offset"]

        assert offset(str(T0 + 4 * 60_000)) == 5
        assert (offset("earliest"), offset("latest"), offset("max")) == (0, 10, 9)
        assert offset(str(T0 + 10 * 60_000)) is None

    def test_a_range_of_time_is_exact(self, shell: Shell) -> None:
        name = shell.filled()
        start, end = str(T0 + 60_000), str(T0 + 3 * 60_000)
        rows = shell.rows("read", name, "--from", start, "--to", end)
        assert [row["offset"] for row in rows] == [1, 2, 4]
        assert rows[0]["key"] == "k1"
        assert rows[0]["create_time_ms"] == T0 + 60_000
        rows = shell.rows("read", name, "--offset", "3..5")
        assert [row["offset"] for row in rows] == [3, 4]
        assert len(shell.rows("read", name, "--limit", "4")) == 4
        code, out, err = shell.run("read", name, "--from", start, "--to", end, "-o", "arrow")
        assert code == ExitCode.OK, err
        table = pa.ipc.open_stream(out).read_all()
        assert table.column("offset").to_pylist() == [1, 2, 4]
        (counted,) = shell.rows("count", name, "--from", start, "--to", end)
        assert (counted["records"], counted["without_time"]) == (3, 0)
        code, _, err = shell.run("count", name, "--zone-cache", "x")
        assert code == ExitCode.USAGE
        code, _, err = shell.run("read", name, "--partition", "7")
        assert code == ExitCode.ERROR
        assert "only partition 0" in err

    @pytest.mark.parametrize("offsets", ["..0", "0..0"])
    def test_a_range_that_ends_at_offset_0_is_empty(self, shell: Shell, offsets: str) -> None:
        name = shell.filled()
        assert shell.rows("read", name, "--offset", offsets) == []
        assert shell.rows("read", name, "--offset", offsets, "--follow") == []
        code, out, err = shell.run("read", name, "--offset", offsets, "-o", "arrow")
        assert code == ExitCode.OK, err
        assert pa.ipc.open_stream(out).read_all().num_rows == 0

    def test_follow_prints_new_records(self, shell: Shell) -> None:
        name = shell.filled(3)
        rows = shell.rows("read", name, "--follow", "--limit", "10")
        assert {row["key"] for row in rows} == {f"k{n}" for n in range(10)}
        one = shell.filled()
        rows = shell.rows("read", one, "--follow", "--offset", "8..10")
        assert [row["offset"] for row in rows] == [8, 9]

    def test_groups_are_listed_described_and_deleted(self, shell: Shell) -> None:
        name = shell.filled()
        group = f"planes-{name}"
        config = {
            "bootstrap.servers": shell.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumer = Consumer(config)
        consumer.subscribe([name])
        for _ in range(4):
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.error() is None
        consumer.commit(offsets=[Place(name, 0, 4)], asynchronous=False)
        listed = {row["group"]: row["state"] for row in shell.rows("groups", "list")}
        assert listed[group] == "Stable"
        (told,) = shell.rows("groups", "describe", group)
        offsets, member = only(told["offsets"]), only(told["members"])
        assert (offsets["offset"], offsets["end"], offsets["lag"]) == (4, 10, 6)
        assert member["partitions"] == f"{name}-0"
        code, _, err = shell.run("groups", "delete", group, "--yes")
        assert code == ExitCode.ERROR
        assert "has active members" in err
        consumer.close()
        until_equal(
            "Empty",
            lambda: {row["group"]: row["state"] for row in shell.rows("groups", "list")}[group],
        )
        code, _, err = shell.run("groups", "delete", group)
        assert code == ExitCode.USAGE
        assert "offsets of 1 partition" in err
        code, _, err = shell.run("groups", "delete", "none-1", group, "none-2", "--yes")
        assert code == ExitCode.ERROR
        assert f"deleted {group}" in err
        assert "no consumer group none-1" in err
        assert "no consumer group none-2" in err
        for asked in (
            ("groups", "describe", group),
            ("lag", group),
            ("rewind", "--group", group, "--to", "earliest"),
        ):
            code, _, err = shell.run(*asked)
            assert code == ExitCode.ERROR
            assert f"no consumer group {group}" in err
