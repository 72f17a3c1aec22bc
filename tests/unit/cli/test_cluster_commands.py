"""`tidelog rewind` and `tidelog lag` on a simulated cluster: output and exit codes."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.worlds.clusters.fake_cluster import FLIGHTS_0, FakeCluster
from tests.worlds.command_line import NOW, Terminal

from tidelog.cli import groups, lag, places
from tidelog.cli.app import run
from tidelog.cli.groups import RewindOptions
from tidelog.cli.lag import LagOptions
from tidelog.cli.options import Format
from tidelog.cli.places import Access, Place
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem
from tidelog.cli.times import duration_ms
from tidelog.env import Env, ManualClock
from tidelog.errors import (
    ClusterFailure,
    InvalidTime,
    MissingDependency,
    UnknownGroup,
    UnknownTopic,
)
from tidelog.remote.view import Committed, Member
from tidelog.types import ClockName, IsolationLevel, TopicPartition

GROUP = "planes"
SECOND = 1_000
SHARED: dict[str, object] = {
    "access": Access(bootstrap="x:1"),
    "topics": (),
    "data": None,
    "zone": None,
}


def rewind_options(to: str, **more: object) -> RewindOptions:
    given = SHARED | {"group": GROUP, "to": to, "clock": ClockName.RECORD, "kind": Format.JSON}
    return RewindOptions(**given | more)  # type: ignore[arg-type] # options by name


def lag_options(**more: object) -> LagOptions:
    level = IsolationLevel.READ_UNCOMMITTED
    given = SHARED | {"group": GROUP, "isolation": level, "kind": Format.JSON, "show": None}
    return LagOptions(**given | more)  # type: ignore[arg-type] # options by name


@dataclass(slots=True)
class Desk:
    """A cluster with four records, ten seconds apart, and a group that has read one record."""

    cluster: FakeCluster = field(default_factory=FakeCluster)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)
    waited: list[float] = field(default_factory=list)
    on_wait: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        times = [NOW - age * SECOND for age in (40, 30, 20, 10)]
        self.cluster.with_log(FLIGHTS_0, *times)
        self.cluster.put(GROUP, {FLIGHTS_0: 1})

    @property
    def surroundings(self) -> Surroundings:
        env = Env(clock=self.clock)
        return Surroundings(env=env, stdout=self.out, stderr=self.err, wait=self.wait, variables={})

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.clock.advance(int(seconds * SECOND))
        self.on_wait()

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]

    def rewind(self, to: str, kind: Format = Format.JSON, **more: object) -> ExitCode:
        options = rewind_options(to, kind=kind, **more)
        target = groups.target_of(self.surroundings, options)
        return groups.run(self.surroundings, self.cluster, options, target)

    def lag(self, kind: Format = Format.JSON, **more: object) -> ExitCode:
        options = lag_options(kind=kind, **more)
        return lag.run(self.surroundings, self.cluster, options)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_dry_run_changes_nothing_and_names_the_option_to_execute(desk: Desk) -> None:
    desk.cluster.put(GROUP, {FLIGHTS_0: 4})
    assert desk.rewind("-20s") is ExitCode.OK
    assert desk.cluster.offsets[GROUP][FLIGHTS_0] == Committed(4)
    (row,) = desk.rows
    assert (row["old_offset"], row["new_offset"], row["records_again"]) == (4, 2, 2)
    assert row["records_again_is_exact"] is False
    assert row["time_ms"] == NOW - 20 * SECOND
    said = "dry run: would move 1 of 1 partition, at most 2 records would be read again"
    assert desk.err.getvalue() == f"{said}; --execute moves it\n"
    desk.cluster.put(GROUP, {FLIGHTS_0: 2})
    assert desk.rewind("-20s") is ExitCode.OK
    assert desk.err.getvalue().splitlines()[-1] == "dry run: would move nothing"


def test_a_rewind_with_reasons_is_a_table_at_80_columns(desk: Desk) -> None:
    desk.cluster.with_log(TopicPartition("flights", 1), NOW)
    desk.cluster.put(GROUP, {FLIGHTS_0: 4, TopicPartition("flights", 1): 1})
    options = rewind_options("-5s", kind=Format.TABLE)
    surroundings = replace(desk.surroundings, variables={"COLUMNS": "80"})
    target = groups.target_of(surroundings, options)
    groups.run(surroundings, desk.cluster, options, target)
    text = desk.out.getvalue()
    assert "TOPIC    PART  OFFSET" in text
    assert "no record at or after" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_rewinds_verdict_is_above_its_table(desk: Desk) -> None:
    desk.cluster.put(GROUP, {FLIGHTS_0: 4})
    assert desk.rewind("-20s", Format.TABLE) is ExitCode.OK
    assert desk.out.getvalue().startswith("dry run: would move 1 of 1 partition, at most 2 records")
    assert desk.rewind("-20s", Format.TABLE, execute=True) is ExitCode.OK
    assert f"\ngroup {GROUP}: moved 1 of 1 partition" in desk.out.getvalue()
    assert desk.err.getvalue() == ""


def test_execute_commits(desk: Desk) -> None:
    desk.cluster.put(GROUP, {FLIGHTS_0: 4})
    assert desk.rewind("-20s", execute=True, count=True) is ExitCode.OK
    assert desk.cluster.offsets[GROUP][FLIGHTS_0] == Committed(2, 0)
    assert "moved 1 of 1 partition, 2 records are read again" in desk.err.getvalue()


def test_a_rewind_reports_the_unread_records_that_it_skips(desk: Desk) -> None:
    assert desk.rewind("latest", count=True) is ExitCode.OK
    said = "0 records would be read again, 3 unread records would be skipped; --execute moves it"
    assert desk.err.getvalue() == f"dry run: would move 1 of 1 partition, {said}\n"
    assert desk.rewind("latest", execute=True) is ExitCode.OK
    assert desk.cluster.offsets[GROUP][FLIGHTS_0] == Committed(4)
    said = "0 records are read again, at most 3 unread records are skipped"
    assert desk.err.getvalue().splitlines()[-1].endswith(f"moved 1 of 1 partition, {said}")


def test_a_rewind_reports_that_it_creates_the_group(desk: Desk) -> None:
    del desk.cluster.offsets[GROUP]
    topics = ("flights",)
    assert desk.rewind("earliest", topics=topics) is ExitCode.OK
    assert "note: group planes does not exist; --execute creates it\n" in desk.err.getvalue()
    assert desk.rewind("earliest", topics=topics, execute=True) is ExitCode.OK
    assert "note: group planes does not exist; this creates it\n" in desk.err.getvalue()
    before = desk.err.getvalue()
    assert desk.rewind("latest", topics=topics, execute=True) is ExitCode.OK
    assert "does not exist" not in desk.err.getvalue().removeprefix(before)


def test_group_held_back_ends_with_findings(desk: Desk) -> None:
    assert desk.rewind("-10s", Format.TABLE, execute=True) is ExitCode.FINDINGS
    assert desk.cluster.offsets[GROUP][FLIGHTS_0] == Committed(1)
    assert "<=2" in desk.out.getvalue()
    assert "left 1 partition unchanged, because the new offset would skip" in desk.err.getvalue()


def test_dry_run_reports_active_members(desk: Desk) -> None:
    desk.cluster.members[GROUP] = [Member("m", "radar", "/10.0.0.7")]
    assert desk.rewind("earliest") is ExitCode.OK
    assert "is refused while the group has members (radar at /10.0.0.7" in desk.err.getvalue()


def test_the_options_decide_the_offset_if_no_record_matches(desk: Desk) -> None:
    desk.cluster.put(GROUP, {FLIGHTS_0: 3})
    assert desk.rewind("now") is ExitCode.OK
    assert desk.rewind("now", to_end=True) is ExitCode.FINDINGS
    assert desk.rewind("now", to_end=True, forward=True) is ExitCode.OK
    assert [row["new_offset"] for row in desk.rows] == [3, 3, 4]


@pytest.mark.parametrize(
    "options",
    [
        rewind_options(to="earliest", max_skew="2m"),
        rewind_options(to="latest", clock=ClockName.APPEND),
        rewind_options(to="-6h", clock=ClockName.APPEND, max_skew="2m"),
    ],
)
def test_options_that_contradict_each_other(desk: Desk, options: RewindOptions) -> None:
    with pytest.raises(UsageProblem):
        groups.target_of(desk.surroundings, options)


@pytest.mark.parametrize(
    "text", ["", ":1", "flights:", "flights:x", "flights:-1", "flights:\u00b2"]
)
def test_invalid_topics_are_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="write TOPIC or TOPIC:PARTITION"):
        places.parse_topics((text,))


def test_lag_of_one_sample_has_no_speeds(desk: Desk) -> None:
    assert desk.lag() is ExitCode.OK
    (row,) = desk.rows
    assert (row["committed"], row["end"], row["offset_lag"]) == (1, 4, 3)
    assert (row["records_left"], row["records_left_is_exact"]) == (3, False)
    assert (row["behind_ms"], row["clock"]) == (30 * SECOND, "create-time")
    assert (row["offsets_per_s"], row["catch_up_s"], row["is_falling_behind"]) == (
        None,
        None,
        False,
    )
    assert desk.waited == []


def test_lag_over_samples_has_speeds(desk: Desk) -> None:
    def consume_one() -> None:
        offset = desk.cluster.offsets[GROUP][FLIGHTS_0].offset
        desk.cluster.put(GROUP, {FLIGHTS_0: offset + 1})

    desk.on_wait = consume_one
    desk.lag(samples=3, every="2s", count=True)
    (row,) = desk.rows
    assert desk.waited == [2.0, 2.0]
    assert (row["committed"], row["offsets_per_s"], row["catch_up_s"]) == (3, 0.5, 2.0)
    assert row["records_left_is_exact"] is True


def test_group_that_stalls_never_catches_up(desk: Desk) -> None:
    desk.lag(samples=2)
    (row,) = desk.rows
    assert (row["catch_up_s"], row["is_falling_behind"]) == (None, True)
    desk.out.truncate(0)
    desk.lag(Format.TABLE, samples=2)
    assert "never" in desk.out.getvalue()


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"max_lag": 3}, ExitCode.OK),
        ({"max_lag": 2}, ExitCode.FINDINGS),
        ({"max_seconds": 30.0}, ExitCode.OK),
        ({"max_seconds": 29.9}, ExitCode.FINDINGS),
    ],
)
def test_exit_code_for_alerts(desk: Desk, more: dict[str, object], code: ExitCode) -> None:
    assert desk.lag(Format.JSON, **more) is code
    assert ("limit" in desk.err.getvalue()) is (code is ExitCode.FINDINGS)


def test_a_limit_in_seconds_may_have_a_fraction(desk: Desk) -> None:
    desk.clock.advance(500)
    assert desk.lag(Format.JSON, max_seconds=30.5) is ExitCode.OK
    assert desk.lag(Format.JSON, max_seconds=30.4) is ExitCode.FINDINGS


def test_the_output_has_the_result_first_and_then_a_line_per_topic(desk: Desk) -> None:
    assert desk.lag(Format.TABLE, samples=2) is ExitCode.OK
    verdict, heading, *rest = desk.out.getvalue().splitlines()
    assert verdict == (
        "group planes is at most 3 records and 35s (by create time) behind on flights-0; at the"
        " current rates it does not catch up"
    )
    assert heading.split()[:2] == ["TOPIC", "PARTITIONS"]
    assert [line.split() for line in rest] == [
        ["flights", "1", "1", "<=3", "flights-0", "35s", "0.0", "never", "ok"]
    ]


def test_partitions_are_shown_on_demand(desk: Desk) -> None:
    desk.lag(Format.TABLE, show=lag.LagShow.PARTITIONS)
    assert "COMMITTED" in desk.out.getvalue()
    desk.out.truncate(desk.out.seek(0))
    desk.lag(show=lag.LagShow.TOPICS)
    assert [(row["topic"], row["records_left"]) for row in desk.rows] == [("flights", 3)]


@pytest.fixture
def crowd(desk: Desk) -> Desk:
    """Add groups: `done` reads flights, `far` reads flights and ships, and `new` has no offsets."""
    ships = TopicPartition("ships", 0)
    desk.cluster.with_log(ships, NOW - 50 * SECOND)
    desk.cluster.put("done", {FLIGHTS_0: 4})
    desk.cluster.put("far", {FLIGHTS_0: 0, ships: 0})
    desk.cluster.put("new", {})
    return desk


def test_without_a_group_all_are_compared(crowd: Desk) -> None:
    assert crowd.lag(Format.TABLE, group=None) is ExitCode.OK
    verdict, heading, *rest = crowd.out.getvalue().splitlines()
    assert verdict == (
        "2 of 3 groups are behind, the furthest: group far is at most 5 records and 50s (by"
        " create time) behind on flights-0 and ships-0 (2 of 2 partitions); worst: ships-0, at most"
        " 1 record, 50s"
    )
    assert heading.split()[:2] == ["GROUP", "PARTITIONS"]
    assert [line.split()[:6] for line in rest] == [
        ["far", "2", "2", "<=5", "ships-0", "50s"],
        [GROUP, "1", "1", "<=3", "flights-0", "30s"],
        ["done", "1", "0", "0", "-", "0s"],
    ]
    assert crowd.err.getvalue().splitlines() == [
        "note: left out 1 group without committed offsets to compare (new)",
        "note: `<=` marks an upper bound of the unread records; --count counts them",
    ]


@pytest.mark.parametrize("options", [{}, {"watch": True, "samples": 3}])
def test_groups_without_rights_are_named_and_the_others_compared(
    crowd: Desk, options: dict[str, object]
) -> None:
    crowd.cluster.unreadable = {"far"}
    assert crowd.lag(Format.TABLE, group=None, **options) is ExitCode.ERROR
    assert "not authorized" in crowd.out.getvalue()
    err = crowd.err.getvalue()
    assert err.count("note: 1 group (far) can't be read: denied\n") == 1
    assert err.count("`<=` marks") == 1
    assert crowd.lag(Format.TABLE, group=None, max_lag=2) is ExitCode.FINDINGS
    crowd.cluster.unreadable = set()
    assert crowd.lag(Format.TABLE, group=None) is ExitCode.OK


def test_a_group_is_compared_once_the_user_gets_rights_on_it(crowd: Desk) -> None:
    crowd.cluster.unreadable = {"far"}

    def allow() -> None:
        crowd.cluster.unreadable = set()

    crowd.on_wait = allow
    assert crowd.lag(group=None, watch=True, samples=2) is ExitCode.OK
    states = [row["state"] for row in crowd.rows if row["group"] == "far"]
    assert states == ["not authorized", "ok", "ok"]


@pytest.mark.parametrize("show", [*lag.LagShow])
def test_rows_of_groups_without_rights_have_only_name_and_state(
    crowd: Desk, show: lag.LagShow
) -> None:
    crowd.cluster.unreadable = {"far", GROUP, "done", "new"}
    assert crowd.lag(group=None, show=show) is ExitCode.ERROR
    for row in crowd.rows:
        assert {name for name, value in row.items() if value is not None} == {"group", "state"}
    assert [row["group"] for row in crowd.rows] == ["done", "far", "new", GROUP]
    assert {row["state"] for row in crowd.rows} == {"not authorized"}
    assert crowd.lag(Format.TABLE, group=None) is ExitCode.ERROR
    assert "no group can be read\n" in crowd.out.getvalue()


def test_rows_of_all_groups_begin_with_the_group(crowd: Desk) -> None:
    crowd.lag(group=None)
    assert [(row["group"], row["topic"]) for row in crowd.rows] == [
        ("far", "flights"),
        ("far", "ships"),
        (GROUP, "flights"),
        ("done", "flights"),
    ]
    crowd.out.truncate(crowd.out.seek(0))
    assert crowd.lag(group=None, topics=("ships",), show=lag.LagShow.TOPICS) is ExitCode.OK
    assert [(row["group"], row["records_left"]) for row in crowd.rows] == [("far", 1)]
    crowd.out.truncate(crowd.out.seek(0))
    crowd.lag(show=lag.LagShow.GROUPS)
    assert [row["group"] for row in crowd.rows] == [GROUP]
    with pytest.raises(UnknownTopic):
        crowd.lag(group=None, topics=("shps",))


def test_a_limit_applies_to_all_groups_and_samples(crowd: Desk) -> None:
    assert crowd.lag(group=None, max_lag=2, watch=True, samples=2) is ExitCode.FINDINGS
    assert "far: flights-0: at most 4 records left, limit 2" in crowd.err.getvalue()
    assert len(crowd.rows) == 2 * 4


def test_a_group_that_is_deleted_between_samples(crowd: Desk) -> None:
    def delete() -> None:
        crowd.cluster.offsets.pop("far", None)

    crowd.on_wait = delete
    assert crowd.lag(group=None, watch=True, samples=3) is ExitCode.OK
    assert [row["group"] for row in crowd.rows] == ["far", "far", *[GROUP, "done"] * 3]
    with pytest.raises(UnknownGroup):
        crowd.lag(group="far")


def test_a_group_that_is_new_between_samples(crowd: Desk) -> None:
    def commit() -> None:
        crowd.cluster.put("new", {FLIGHTS_0: 2})
        crowd.cluster.put("idle", {})

    crowd.on_wait = commit
    assert crowd.lag(group=None, watch=True, samples=3, topics=("flights",)) is ExitCode.OK
    assert [row["group"] for row in crowd.rows] == [
        *("far", GROUP, "done"),
        *("far", GROUP, "new", "done") * 2,
    ]
    assert crowd.err.getvalue().splitlines() == [
        f"note: left out 1 group without committed offsets to compare ({group})"
        for group in ("new", "idle")
    ]


def test_a_group_that_is_deleted_after_it_was_listed(
    crowd: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = crowd.cluster.groups()
    crowd.cluster.offsets.pop("far")
    monkeypatch.setattr(FakeCluster, "groups", lambda _: names)
    assert crowd.lag(group=None) is ExitCode.OK
    assert [row["group"] for row in crowd.rows] == [GROUP, "done"]


def test_a_cluster_without_groups() -> None:
    desk = Desk()
    desk.cluster.offsets.clear()
    assert desk.lag(Format.TABLE, group=None) is ExitCode.OK
    assert desk.out.getvalue() == "no group has committed offsets\n"


def test_watch_writes_a_row_for_each_sample(desk: Desk) -> None:
    desk.lag(watch=True, samples=3)
    assert [row["seen_ms"] for row in desk.rows] == [NOW, NOW + 5_000, NOW + 10_000]
    assert [row["behind_ms"] for row in desk.rows] == [30_000, 35_000, 40_000]


def test_watch_continues_until_it_is_interrupted(desk: Desk) -> None:
    def interrupt() -> None:
        if len(desk.waited) == 4:
            raise KeyboardInterrupt

    desk.on_wait = interrupt
    assert desk.lag(watch=True) is ExitCode.OK, "as of `read --follow` and `serve`"
    assert len(desk.rows) == 4


def test_watch_survives_a_cluster_that_is_away_for_a_while(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        monkeypatch.undo()
        raise ClusterFailure("nowhere:9092", "look up offsets", "gone")

    monkeypatch.setattr(FakeCluster, "watermarks", fail)
    desk.lag(watch=True, samples=2)
    assert len(desk.rows) == 1
    assert "could not look up offsets: gone; trying again in 5 s" in desk.err.getvalue()


def test_a_watch_that_ends_without_a_response_gives_no_verdict(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the command could take no sample, it must not report that the limits are met."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise ClusterFailure("nowhere:9092", "look up offsets", "gone")

    monkeypatch.setattr(FakeCluster, "watermarks", fail)
    with pytest.raises(ClusterFailure, match="gone"):
        desk.lag(watch=True, samples=2, max_lag=0)
    assert "trying again in 5 s" in desk.err.getvalue()


def test_watch_on_a_terminal_draws_one_table_over_itself(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    raw = io.BytesIO()
    terminal = Terminal(raw, encoding="utf-8", write_through=True)
    surroundings = Surroundings(
        env=Env(clock=desk.clock),
        stdout=terminal,
        stderr=desk.err,
        wait=desk.wait,
        variables={},
    )
    options = lag_options(watch=True, samples=2, kind=Format.TABLE)
    assert lag.run(surroundings, desk.cluster, options) is ExitCode.OK
    drawn = raw.getvalue().decode()
    assert drawn.count("RECORDS LEFT") >= 2
    assert "PARTITIONS BEHIND" in drawn
    assert "\x1b[1A" in drawn, "the second table starts where the first did"
    assert "30s" in drawn
    assert "35s" in drawn


def test_settings_are_read_from_a_file(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("no.such.setting=1\n")
    out = io.StringIO()
    surroundings = Surroundings(stdout=out, stderr=desk.err, variables={})
    arguments = ["lag", GROUP, "-b", "127.0.0.1:1", "--command-config", str(path)]
    assert run(arguments, surroundings) == ExitCode.USAGE
    assert 'No such configuration property: "no.such.setting"' in desk.err.getvalue()
    arguments[-1] = str(tmp_path / "none")
    assert run(arguments, surroundings) == ExitCode.USAGE
    assert "No such file" in desk.err.getvalue()


def test_without_the_client_the_extra_is_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with (
        pytest.raises(MissingDependency, match=r"tidelog\[kafka\]"),
        places.open_cluster(desk.surroundings, Access(bootstrap="x:1")),
    ):
        pass


def test_an_interval_of_0_is_refused(desk: Desk) -> None:
    assert run(["lag", GROUP, "-b", "x:1", "--every", "0s"], desk.surroundings) == ExitCode.USAGE
    assert "--every must be above 0" in desk.err.getvalue()
    with pytest.raises(InvalidTime):
        duration_ms("soon")


def test_partitions_of_one_topic_alone(desk: Desk) -> None:
    desk.cluster.with_log(TopicPartition("ships", 0), NOW)
    desk.cluster.put(GROUP, {TopicPartition("ships", 0): 0})
    desk.lag(topics=("ships",))
    assert [row["topic"] for row in desk.rows] == ["ships"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("-b", ""), "bootstrap='': give HOST:PORT"),
        (("-b", "127.0.0.1:abc"), "bootstrap='127.0.0.1:abc': give HOST:PORT"),
        (("-b", "kafka://b:1"), "bootstrap='kafka://b:1': give HOST:PORT, without kafka://"),
        (("-b", "h:1", "--timeout", "2h"), "timeout=7200.0 s: give a timeout from 0.001 to 3600"),
        (("-b", "h:1", "--timeout", "0s"), "timeout=0.0 s: give a timeout from 0.001 to 3600"),
    ],
)
@pytest.mark.parametrize("command", [("topics",), ("groups", "list"), ("read", "t")])
def test_invalid_addresses_and_timeouts_are_refused_at_once(
    desk: Desk, command: tuple[str, ...], options: tuple[str, ...], told: str
) -> None:
    assert run([*command, *options], desk.surroundings) == ExitCode.USAGE
    assert told in desk.err.getvalue()


def test_an_advised_command_names_the_place_again() -> None:
    assert Place().words == ""
    assert Place(data="my logs").words == " --data 'my logs'"
    there = Place(access=Access(bootstrap="broker:9092", command_config="client.properties"))
    assert there.words == " --bootstrap broker:9092 --command-config client.properties"
