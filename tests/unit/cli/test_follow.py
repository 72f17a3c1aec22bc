"""`follow`: output and exit codes."""

import io
import json
import logging
import threading
from dataclasses import dataclass, field, replace

import pytest
from tests.faults import SeededEnv, seeded_env
from tests.worlds.clusters.fake_leader import HOST, FakeLeader
from tests.worlds.command_line import Cli

from tidelog.cli.follow import StandbyOptions, address, run
from tidelog.cli.options import Format
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.errors import ClusterFailure, ConfigError, UnknownTopic

STANDBY = "/standby"


@dataclass
class Standby:
    """Runs the command on a leader in memory, with `--once` by default."""

    leader: FakeLeader
    env: SeededEnv = field(default_factory=lambda: seeded_env(5))
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, kind: Format = Format.JSON, **more: object) -> int:
        asked: dict[str, object] = {
            "leader": f"{HOST}:9092",
            "data": STANDBY,
            "once": True,
            "kind": kind,
        }
        asked |= more
        options = StandbyOptions(**asked)  # type: ignore[arg-type] # options by name
        surroundings = Surroundings(env=self.env, stdout=self.out, stderr=self.err, variables={})
        seams = self.leader.seams(self.env)
        return run(surroundings, options, seams=seams, stopped=self.stopped)

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]


@pytest.fixture
def standby() -> Standby:
    leader = FakeLeader()
    leader.create()
    leader.put(b"a", b"b")
    return Standby(leader)


class TestOnce:
    def test_rows_for_scripts(self, standby: Standby) -> None:
        assert standby.run() == 0
        assert standby.rows[-1] == {
            "topic": "t",
            "partition": 0,
            "leader": 1,
            "leader_epoch": 0,
            "start": 0,
            "end": 2,
            "high_watermark": 2,
            "lag": 0,
            "copied_bytes": standby.leader.log().size_bytes(),
            "dropped": 0,
            "lost": 0,
            "problem": None,
        }
        assert "1 partition of leader:9092 copied to /standby" in standby.err.getvalue()

    def test_the_table_has_a_row_per_partition(self, standby: Standby) -> None:
        assert standby.run(Format.TABLE) == 0
        heading, row = standby.out.getvalue().splitlines()
        assert heading.split()[:4] == ["TOPIC", "PARTITION", "LEADER", "LEADER"]
        assert row.split()[:2] == ["t", "0"]

    def test_a_partition_that_stalls(self, standby: Standby) -> None:
        def mangle(request: object, answer: object) -> object:
            for topic in getattr(answer, "responses", []):
                for partition in topic.partitions:
                    partition.error_code = 29
            return answer

        standby.leader.mangle = mangle  # type: ignore[assignment] # for any API
        assert standby.run() == 2
        assert (
            "error: t-0 has stalled: leader:9092: could not fetch:"
            " TOPIC_AUTHORIZATION_FAILED (error 29)" in standby.err.getvalue()
        )
        assert standby.rows[-1]["problem"] is not None

    def test_truncated_offsets_are_reported(self, standby: Standby) -> None:
        standby.run()
        standby.leader.log().truncate_to(0)
        standby.leader.restart()
        standby.leader.put(b"c")
        assert standby.run() == 0
        assert standby.rows[-1]["dropped"] == 2
        assert "note: t-0: offsets 0 to 1 were truncated" in standby.err.getvalue()

    def test_settings_of_its_own(self, standby: Standby) -> None:
        assert standby.run(settings=("retention.ms=5", "log.retention.bytes=7")) == 0
        from tidelog.storage.directory.log_dir import LogDir

        given = LogDir.open(STANDBY, env=standby.env).topic("t").given
        assert (given["retention.ms"], given["retention.bytes"]) == ("5", "7")


class TestGoingOn:
    def test_it_follows_until_it_is_stopped(
        self, standby: Standby, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        env, leader = standby.env, standby.leader
        seams = leader.seams(env)
        waits: list[float] = []

        def pause(seconds: float) -> None:
            waits.append(seconds)
            env.clock.advance(int(seconds * 1000))
            leader.is_down = len(waits) < 3
            if len(waits) == 5:
                standby.stopped.set()

        monkeypatch.setattr(leader, "seams", lambda env: replace(seams, pause=pause))
        asked = leader.answer

        def answer(frame: bytes, node: int = 0) -> bytes:
            env.clock.advance(700)
            if leader.asked.count("Fetch") == 6:
                leader.is_down = True
            if leader.asked.count("Fetch") > 9:
                standby.stopped.set()
            return asked(frame, node)

        monkeypatch.setattr(leader, "answer", answer)
        assert standby.run(once=False, every="1s") == 0
        assert "trying again" in standby.err.getvalue()
        assert max(waits) == 1, "a leader that is down is tried again every second"
        assert standby.rows[-1]["lag"] == 0

    def test_a_leader_that_is_away_at_the_end_is_reported(
        self, standby: Standby, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leader, seams = standby.leader, standby.leader.seams(standby.env)

        def pause(seconds: float) -> None:
            standby.env.clock.advance(int(seconds * 1000))
            if leader.is_down:
                standby.stopped.set()
            leader.is_down = True

        monkeypatch.setattr(leader, "seams", lambda env: replace(seams, pause=pause))
        asked = leader.answer

        def answer(frame: bytes, node: int = 0) -> bytes:
            leader.is_down = leader.asked.count("Fetch") > 3
            return asked(frame, node)

        monkeypatch.setattr(leader, "answer", answer)
        assert standby.run(once=False) == 1
        assert "since the last successful round may be missing" in standby.err.getvalue()

    def test_a_partition_without_a_response_is_not_copied(
        self, standby: Standby, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leader, seams = standby.leader, standby.leader.seams(standby.env)

        def pause(seconds: float) -> None:
            standby.env.clock.advance(int(seconds * 1000))
            standby.stopped.set()

        monkeypatch.setattr(leader, "seams", lambda env: replace(seams, pause=pause))
        asked = leader.answer

        def answer(frame: bytes, node: int = 0) -> bytes:
            found = asked(frame, node)
            if "Fetch" in leader.asked:
                raise OSError("closed")
            return found

        monkeypatch.setattr(leader, "answer", answer)
        assert standby.run(once=False) == 1
        assert "0 of 1 partition of leader:9092 copied to /standby" in standby.err.getvalue()


class TestArguments:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("h:1", ("h", 1)),
            ("h", ("h", 9092)),
            ("[::1]:9093", ("::1", 9093)),
        ],
    )
    def test_an_address(self, text: str, found: tuple[str, int]) -> None:
        assert address(text) == found

    @pytest.mark.parametrize("text", ["", ":9092", "h:", "h:x", "h:0", "h:70000", "h:999999"])
    def test_no_address(self, text: str) -> None:
        with pytest.raises(UsageProblem, match="HOST:PORT"):
            address(text)

    @pytest.mark.parametrize(
        ("more", "kind"),
        [
            ({"data": None}, UsageProblem),
            ({"every": "0s"}, UsageProblem),
            ({"settings": ("retention.ms",)}, UsageProblem),
            ({"settings": ("retention.mss=1",)}, ConfigError),
            ({"topics": ("tt",)}, UnknownTopic),
        ],
    )
    def test_invalid_arguments_are_refused(
        self, standby: Standby, more: dict[str, object], kind: type[Exception]
    ) -> None:
        with pytest.raises(kind):
            standby.run(**more)  # type: ignore[arg-type] # options by name

    def test_an_unreachable_leader_is_an_error(self, standby: Standby) -> None:
        standby.leader.is_down = True
        with pytest.raises(ClusterFailure):
            standby.run()

    def test_an_unreachable_leader_is_an_error_with_a_hint(self, cli: Cli) -> None:
        result = cli.run("follow", "127.0.0.1:1", "--once")
        assert result.code == 1
        assert "127.0.0.1:1: could not connect" in result.err
        assert (
            "hint: check that the leader is running and that HOST:PORT is its address" in result.err
        )
        assert not cli.data.exists()

    def test_warnings_are_written_as_log_lines(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def warn(*_: object, **__: object) -> int:
            logging.getLogger("tidelog.storage").warning("the clock jumped")
            return 0

        monkeypatch.setattr("tidelog.cli.follow.run", warn)
        lines = cli.ok("follow", "127.0.0.1:1", "--once").err.splitlines()
        assert [line.split(" ", 1)[1] for line in lines] == ["warning the clock jumped"]
