"""`spark mirror` without Spark: its arguments, and the output of a run."""

import dataclasses
from pathlib import Path

import pytest
from tests.worlds.command_line import Cli

from tidelog.cli.app import run
from tidelog.cli.jobs import mirror as mirror_command
from tidelog.cli.jobs.mirror import (
    Request,
    batch_line,
    read_plan,
    report_of,
    split_names,
    start_line,
)
from tidelog.cli.options import Format, SparkAccess
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem
from tidelog.config import TopicConfig
from tidelog.errors import InvalidRequest, UnknownTopic
from tidelog.jobs.mirror import places
from tidelog.jobs.mirror.job import SummaryRow
from tidelog.jobs.mirror.options import TOPIC_WORD, BatchDone, MirrorOptions
from tidelog.jobs.mirror.plan import Pair
from tidelog.jobs.offset_map import Partitioning
from tidelog.jobs.target_check import Effect, Finding, Target, TargetLoses

REQUEST = Request(
    names=("kafka://east:1", "kafka://north:1", "orders", "bills"),
    to="kafka://west:1",
    renames=("kafka://north:1/orders=north.orders",),
    report=None,
    command_config=None,
    to_command_config=None,
    store={},
    compression=None,
    spark=SparkAccess(),
    kind=Format.TABLE,
)
OPTIONS: MirrorOptions = {
    "checkpoint": "check",
    "partitions": "key",
    "start": "latest",
    "isolation": "read_committed",
    "pattern": None,
    "name": TOPIC_WORD,
}


def done(number: int, records: int, *, was_done: bool = False, elapsed_ms: int = 500) -> BatchDone:
    return BatchDone(
        batch_id=number,
        records=records,
        was_done=was_done,
        at_ms=1_000 * number,
        elapsed_ms=elapsed_ms,
    )


class TestNames:
    def test_arguments_with_slashes_before_topics_are_places(self) -> None:
        names = ["data", "kafka://one:1", "s3://b/logs", "orders", "bills"]
        assert split_names(Surroundings(), names) == (names[:3], names[3:])

    def test_a_directory_of_topics_needs_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "other").mkdir()
        (tmp_path / "other/meta.properties").write_text("version=1\n")
        assert split_names(Surroundings(), ["data", "other", "orders"]) == (
            ["data", "other"],
            ["orders"],
        )

    @pytest.mark.parametrize("names", [["data"], ["kafka://one:1", "./data"]])
    def test_a_topic_is_needed(self, names: list[str]) -> None:
        with pytest.raises(UsageProblem, match="then at least one topic"):
            split_names(Surroundings(), names)


class TestPlan:
    def test_everything_arrives(self) -> None:
        plan = read_plan(Surroundings(), REQUEST, OPTIONS)
        assert plan.pairs == [
            Pair(0, "orders", "orders"),
            Pair(0, "bills", "bills"),
            Pair(1, "orders", "north.orders"),
            Pair(1, "bills", "bills"),
        ]
        assert (plan.partitioning, plan.start) == (Partitioning.KEY, "latest")

    def test_client_settings_are_used_for_their_side(self, tmp_path: Path) -> None:
        file = tmp_path / "client.properties"
        file.write_text("security.protocol=SSL\n")
        names = ("kafka://east:1", "./data", "orders")
        request = dataclasses.replace(
            REQUEST, names=names, renames=(), command_config=str(file), to="out"
        )
        plan = read_plan(Surroundings(), request, OPTIONS)
        assert plan.sources[0].place.client == {"security.protocol": "SSL"}
        assert plan.sources[1].place.client == {}
        request = dataclasses.replace(request, to_command_config=str(file))
        with pytest.raises(InvalidRequest, match="client settings apply only to brokers"):
            read_plan(Surroundings(), request, OPTIONS)


def test_a_missing_topic_is_not_one_that_would_be_copied_into_itself(flights: Cli) -> None:
    data = str(flights.data)
    request = dataclasses.replace(REQUEST, names=(data, "nope"), renames=(), to=data)
    with pytest.raises(UnknownTopic, match="nope"):
        read_plan(Surroundings(), request, OPTIONS)
    request = dataclasses.replace(request, names=(data, "flights"))
    with pytest.raises(InvalidRequest, match=r"flights of .* would be copied into itself"):
        read_plan(Surroundings(), request, OPTIONS)


def test_the_line_about_a_batch() -> None:
    assert batch_line(done(3, 1_200)) == "batch 3: 1,200 records, 2,400/s"
    assert batch_line(done(3, 1, elapsed_ms=4_000)) == "batch 3: 1 record, 0.25/s"
    assert batch_line(done(3, 0)) == "batch 3: 0 records"
    told = batch_line(done(3, 1_200, was_done=True))
    assert told == "batch 3: 1,200 records were copied by an earlier run"


def test_the_start_line_has_the_number_of_offsets_left_to_copy() -> None:
    row = SummaryRow("data", "orders", 0, "west", "orders", 10, 20, 10, 1_510, 1_490)
    told = start_line([row, row])
    assert told == "copying 3,000 offsets of 2 partitions; each batch prints a line when done"


def test_a_report_shows_throughput_and_lag() -> None:
    plan = read_plan(Surroundings(), REQUEST, OPTIONS)
    place, target = "kafka://east:1", "kafka://west:1"
    row = SummaryRow(place, "orders", 0, target, "orders", 0, 90, 90, 100, 10)
    finding = Finding(effect=Effect.NOTE, setting="a=b", text="worth a word")
    page = report_of(plan, [row], [done(0, 60), done(1, 30)], {0: 40, 1: 10}, [finding]).html()
    assert "<h1>Mirror of kafka://east:1, kafka://north:1 into kafka://west:1</h1>" in page
    assert "Topics: bills, orders." in page
    assert "90 records were copied in 2 batches; 10 offsets are left to copy." in page
    for text in ("Throughput, by batch", "Offsets behind the ends", "worth a word"):
        assert text in page
    assert "0 records were copied in 0 batches" in report_of(plan, [], [], {}, []).html()


def test_losses_at_a_secured_target_are_repaired_with_its_client_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("source", "target"):
        (tmp_path / f"{name}.properties").write_text("security.protocol=PLAINTEXT\n")
    target = Target(place="kafka://west:1", topic="orders", partitions=1, config=TopicConfig())
    loss = Finding(effect=Effect.REFUSED, setting="a=1", text="one", remedy="a=9")

    def lose(*_given: object, **_options: object) -> None:
        raise TargetLoses(target, [loss])

    monkeypatch.setattr(mirror_command, "check_before", lambda *_given: None)
    monkeypatch.setattr(places, "check_start", lose)
    command = [
        *("spark", "mirror", "kafka://east:1", "orders", "--to", "kafka://west:1"),
        *("--checkpoint", str(tmp_path / "check")),
        *("--command-config", str(tmp_path / "source.properties")),
        *("--to-command-config", str(tmp_path / "target.properties")),
    ]
    assert run(command, Surroundings()) == ExitCode.FINDINGS
    access = f"--bootstrap west:1 --command-config {tmp_path}/target.properties"
    assert f"`tidelog config orders {access} --set a=9`" in " ".join(
        capsys.readouterr().err.split()
    )
