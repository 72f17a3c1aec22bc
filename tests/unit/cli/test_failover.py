"""`failover`: output, commits and exit codes."""

import dataclasses
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from tests.worlds.clusters.mirrored import MemoryMirror
from tests.worlds.clusters.two_clusters import MemoryCluster, MemoryTail, watched

from tidelog.cli import app
from tidelog.cli.jobs import failover as command
from tidelog.cli.jobs.failover import Request, request_of, run
from tidelog.cli.options import Format
from tidelog.cli.surroundings import InvalidInput, Surroundings, UsageProblem
from tidelog.env import Env, ManualClock, os_env
from tidelog.errors import ClusterFailure, GroupActive, InvalidTime
from tidelog.jobs.failover.options import FailoverOptions
from tidelog.jobs.offset_map import write_map
from tidelog.jobs.options import options_of
from tidelog.remote.view import Committed, Member
from tidelog.types import TopicPartition

GROUP, TOPIC = "billing", "orders"
P0 = TopicPartition(TOPIC, 0)
START = 1_700_000_000_000
ASKED: dict[str, object] = {
    "group": GROUP,
    "to": "b:1",
    "timeout": "15s",
    "kind": Format.JSON,
    "zone": None,
}


def typed(texts: dict[str, object]) -> tuple[Request, FailoverOptions]:
    """Divide options into those of the command and those of the plan; add the plan's defaults."""
    declared = {name: one.default for name, (_, one) in options_of(FailoverOptions).items()}
    options = declared | {name: text for name, text in texts.items() if name in declared}
    others = {name: text for name, text in texts.items() if name not in declared}
    return Request(**others), cast("FailoverOptions", options)  # type: ignore[arg-type] # options by name


@dataclass(slots=True)
class Pair:
    a: MemoryCluster
    b: MemoryCluster
    tails: tuple[MemoryTail, MemoryTail] = field(default_factory=lambda: (MemoryTail(),) * 2)
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)

    @property
    def surroundings(self) -> Surroundings:
        env = Env(clock=ManualClock(START + 60_000))
        return Surroundings(env=env, stdout=self.out, stderr=self.err, variables={})

    def run(self, kind: Format = Format.JSON, **more: object) -> int:
        asked = ASKED | {"max_latency": "0s", "kind": kind} | more
        request, options = typed(asked)
        question = request_of(self.surroundings, options, request.zone)
        a, b = watched("A", self.a, self.tails[0]), watched("B", self.b, self.tails[1])
        back = options["look_back"]
        return run(self.surroundings, a, b, request, question, look_back=back)

    @property
    def content(self) -> dict[str, object]:
        found = json.loads(self.out.getvalue())
        assert isinstance(found, dict)
        return found


@pytest.fixture
def pair() -> Pair:
    """Clusters A and B. The group has read a, b and c on A. On B, c is before b."""
    a, b = MemoryCluster("a:1").create(TOPIC), MemoryCluster("b:1").create(TOPIC)
    for cluster, letters in ((a, "abcd"), (b, "acbd")):
        for letter in letters:
            created = START + 1_000 * (ord(letter) - ord("a"))
            cluster.append(P0, created, value=letter.encode())
    a.commit_at(GROUP, P0, 3)
    return Pair(a, b)


def test_the_json_output_is_one_object(pair: Pair) -> None:
    assert pair.run(verify=True, max_latency="2s") == 0
    assert pair.content == {
        "group": GROUP,
        "executed": False,
        "margin": {"latency_ms": 2_000, "skew_ms": 0, "measured": False, "samples": []},
        "topics": [{"topic": TOPIC, "mapping": "same", "why": "there is one partition only"}],
        "partitions": [
            {
                "topic": TOPIC,
                "partition": 0,
                "position_on_a": 3,
                "old_offset": None,
                "new_offset": 0,
                "time": "2023-11-14T22:13:20.000Z",
                "time_ms": START,
                "searched": "2023-11-14T22:13:20.000Z",
                "searched_ms": START,
                "found_by": "time",
                "why": "create time of the record at offset 2 on A",
            }
        ],
        "verify": [
            {
                "topic": TOPIC,
                "compared": "key, create time, value",
                "unconsumed": 1,
                "after": 4,
                "missed": 0,
                "absent": 0,
                "duplicates": 3,
                "only_on_b": 0,
                "never_on_a": 0,
                "examples": [],
            }
        ],
    }
    assert pair.b.offsets == {}
    assert "dry run: would commit these offsets; --execute commits them" in pair.err.getvalue()


def test_a_table_and_sentences(pair: Pair) -> None:
    assert pair.run(Format.TABLE, verify=True, execute=True, max_latency="2s") == 0
    verdict, heading, row = pair.out.getvalue().splitlines()
    assert verdict == (
        "group billing starts on B in 1 partition: 1 by time; no record would be missed,"
        " 3 records would be read twice; committed"
    )
    assert heading.split()[:3] == ["TOPIC", "PARTITION", "POSITION"]
    assert row.split()[:5] == [TOPIC, "0", "3", "-", "0"]
    told = pair.err.getvalue()
    assert "margin: latency 2s (as stated), clock skew 0s" in told
    assert "orders: partition N on B corresponds to partition N on A" in told
    assert (
        "not consumed on A is after the start on B; B has 4 records after the start, of which 3"
        in told
    )
    assert pair.b.offsets == {GROUP: {P0: Committed(0)}}


def test_the_sample_is_printed(pair: Pair) -> None:
    arrivals: list[tuple[TopicPartition, int | None, int]] = [
        (P0, START, START + lag) for lag in range(1, 101)
    ]
    pair.tails = (MemoryTail(arrivals), MemoryTail([(P0, START, START - 7)] * 100))
    assert pair.run(Format.TABLE, max_latency="measured", sample_records=100) == 0
    told = pair.err.getvalue()
    assert (
        "measured orders on A: 100 records in 30s, create time to arrival: half within 50ms,"
        " 99% within 99ms, all within 100ms, clocks ahead by up to 0s; about one record in 101"
        " will take longer than the largest measured latency"
    ) in told
    assert "margin: latency 100ms (largest measured), clock skew 7ms" in told
    pair.out.truncate(pair.out.seek(0))
    assert pair.run(max_latency="measured", sample_records=100) == 0
    margin = cast("dict[str, list[dict[str, object]]]", pair.content["margin"])
    assert margin["samples"][0] == {
        "cluster": "A",
        "topic": TOPIC,
        "records": 100,
        "is_exact": False,
        "for_ms": 30_000,
        "median_ms": 50,
        "p99_ms": 99,
        "max_ms": 100,
        "skew_ms": 0,
    }


def test_offsets_that_would_miss_records_are_not_committed(pair: Pair) -> None:
    # The group last consumed b, so the search time is the create time of b. The record "late" was
    # created before b.
    a, b = MemoryCluster("a:1").create(TOPIC), MemoryCluster("b:1").create(TOPIC)
    created = {"a": 0, "late": 500, "b": 1_000, "c": 2_000}
    for cluster, values in ((a, ("a", "b", "c", "late")), (b, ("a", "late", "b", "c"))):
        for value in values:
            cluster.append(P0, START + created[value], value=value.encode())
    a.commit_at(GROUP, P0, 2)
    pair.a, pair.b = a, b
    with pytest.raises(InvalidInput, match="nothing was committed: 1 record would be missed"):
        pair.run(verify=True, execute=True)
    assert pair.b.offsets == {}
    assert pair.content["executed"] is False


def test_records_missing_on_b_are_a_finding_and_the_commit_succeeds(pair: Pair) -> None:
    pair.a.append(P0, START + 9_000, value=b"not there yet")
    assert pair.run(Format.TABLE, verify=True, execute=True) == 2
    assert "1 record is not on B" in pair.err.getvalue()
    assert GROUP in pair.b.offsets


def test_records_that_never_reached_a_are_a_finding(pair: Pair) -> None:
    pair.a.logs[P0] = [r for r in pair.a.logs[P0] if r.value != b"a"]
    assert pair.run(Format.TABLE, verify=True) == 0
    assert pair.run(Format.TABLE, verify=True, look_back="1h") == 2
    assert "1 record before the start on B was not found on A" in pair.err.getvalue()


def test_members_on_b_refuse_it_before_anything_is_measured(pair: Pair) -> None:
    pair.b.members[GROUP] = (Member("m", "app-1", "h"),)
    with pytest.raises(GroupActive):
        pair.run(execute=True, max_latency="measured")


def test_a_dry_run_reports_the_groups_members(pair: Pair) -> None:
    pair.a.members[GROUP] = (Member("m", "app-0", "h"),)
    pair.run()
    assert "the group has members on A (app-0)" in pair.err.getvalue()
    pair.b.members[GROUP] = (Member("m", "app-1", "h"),)
    pair.out.truncate(0)
    pair.run()
    assert "--execute is refused as long as the group has members on B: app-1" in (
        pair.err.getvalue()
    )


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"max_latency": "soon"}, InvalidTime),
        ({"max_latency": "-2m"}, InvalidTime),
        ({"topics": ("orders:1",)}, UsageProblem),
        ({"at": "yesterdayish"}, InvalidTime),
    ],
)
def test_invalid_options_are_refused(given: dict[str, object], error: type[Exception]) -> None:
    _, options = typed(ASKED | given)
    with pytest.raises(error):
        request_of(Surroundings(env=Env(clock=ManualClock(START))), options, None)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "without --from, --at TIME and --topic T are needed"),
        (("--at", "-1h"), "without --from, --topic T is needed"),
        (("--topic", "t"), "without --from, --at TIME is needed"),
        (("--at", "-1h", "--topic", "t"), "give it by --max-latency, e.g. 2m"),
        (("--at", "-1h", "-t", "t", "--max-latency", "1s", "--verify"), "give --from"),
        (("--from", "a:1", "--topic", "t:0"), "--topic must be a whole topic"),
        (("--from", "a:1", "--max-latency", "soon"), "not a length of time"),
        (("--from", "a:1", "--sample-records", "0"), "--sample-records"),
        (("--from", "a:1", "--mapping", "maybe"), "--mapping"),
    ],
)
def test_wrong_usage_is_reported_before_any_request(arguments: tuple[str, ...], told: str) -> None:
    err = io.StringIO()
    surroundings = Surroundings(
        env=Env(clock=ManualClock(START)), stdout=io.StringIO(), stderr=err, variables={}
    )
    code = app.run(["failover", "--group", GROUP, "--to", "b:1", *arguments], surroundings)
    assert code == 3, err.getvalue()
    assert told in err.getvalue()


@pytest.mark.parametrize(
    ("lost", "hint"),
    [
        (
            "a:1",
            (
                "check --from, --from-config and --timeout; if A is lost, give --at TIME and"
                " --topic T in place of --from"
            ),
        ),
        ("b:1", "check --to, --to-config and --timeout"),
    ],
)
def test_a_lost_cluster_gets_a_hint_with_options_of_the_command(
    lost: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object, **_more: object) -> int:
        raise ClusterFailure(lost, "describe group billing", "_TIMED_OUT")

    @contextmanager
    def nothing(*_given: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(command, "_watched", nothing)
    monkeypatch.setattr(command, "run", fail)
    err = io.StringIO()
    surroundings = Surroundings(
        env=Env(clock=ManualClock(START)), stdout=io.StringIO(), stderr=err, variables={}
    )
    words = ["failover", "--group", GROUP, "--from", "a:1", "--to", "b:1"]
    assert app.run(words, surroundings) == 1
    assert err.getvalue() == (
        f"error: {lost}: could not describe group billing: _TIMED_OUT\nhint: {hint}\n"
    )


class TestMap:
    """The option `--map` names the map that a mirror has written."""

    def mirrored(self, path: Path) -> tuple[Pair, str]:
        a = MemoryCluster("a:1").create(TOPIC)
        for number in range(20):
            a.append(P0, START + 1_000 * number, value=b"%d" % number)
        a.commit_at(GROUP, P0, 12)
        mirror = MemoryMirror(a, MemoryCluster("b:1").create("copies", 1), (TOPIC,), "copies")
        mirror.b.append(TopicPartition("copies", 0), 1, value=b"before")
        mirror.map = dataclasses.replace(mirror.map, ends={TopicPartition("copies", 0): 1})
        mirror.run(START + 30_000)
        file = str(path / "offsets.map")
        write_map(os_env().files, file, mirror.map)
        return Pair(a, mirror.b), file

    def test_the_map_gives_the_exact_record_under_another_name(self, tmp_path: Path) -> None:
        pair, file = self.mirrored(tmp_path)
        assert pair.run(offset_map=file, max_latency="measured", verify=True) == 0
        (row,) = cast("list[dict[str, object]]", pair.content["partitions"])
        assert (row["topic"], row["new_offset"], row["found_by"]) == ("copies", 13, "map")
        assert row["position_on_a"] == 12
        (verdict,) = cast("list[dict[str, object]]", pair.content["verify"])
        assert (verdict["unconsumed"], verdict["missed"], verdict["duplicates"]) == (8, 0, 0)
        assert verdict["topic"] == "copies"

    def test_the_output_states_that_no_margin_was_needed(self, tmp_path: Path) -> None:
        pair, file = self.mirrored(tmp_path)
        assert pair.run(Format.TABLE, offset_map=file) == 0
        told = pair.err.getvalue()
        assert "the mirror's offset map has every start, so no margin for late records is" in told
        assert "copies: partition N on B corresponds to partition N on A: the mirror kept" in told

    def test_the_offset_from_the_map_is_committed_on_b(self, tmp_path: Path) -> None:
        pair, file = self.mirrored(tmp_path)
        assert pair.run(offset_map=file, execute=True) == 0
        copies = TopicPartition("copies", 0)
        assert pair.b.committed(GROUP)[copies] == Committed(13)

    def test_a_missing_map_is_a_usage_error(self, pair: Pair) -> None:
        with pytest.raises(UsageProblem, match=r"a mirror keeps offsets\.map in its checkpoint"):
            pair.run(offset_map="/nowhere/offsets.map")

    def test_without_a_the_error_lists_the_topics_of_the_map(self, tmp_path: Path) -> None:
        _, file = self.mirrored(tmp_path)
        err = io.StringIO()
        surroundings = Surroundings(stdout=io.StringIO(), stderr=err, variables={})
        words = ["failover", "--group", GROUP, "--to", "b:1", "--at", "-1h", "--map", file]
        assert app.run(words, surroundings) == 3
        assert err.getvalue() == (
            "error: without --from, --topic T is needed: the group's topics are stored only on A;"
            " the map has the topics orders\n"
        )
