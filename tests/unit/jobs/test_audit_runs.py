"""An audit uses an earlier audit's results for a range only if the records are still the same."""

from pathlib import Path

from tests.worlds.directories.topics import append, make

from tidelog.jobs.audit.plan import ReadScope, Side, plan_side, valid_runs
from tidelog.jobs.audit.state import Run
from tidelog.spark.places import Place
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import IsolationLevel, NewRecord, TopicPartition

NAME = TopicPartition("t", 0)
RECORDS = [NewRecord(key=b"%d" % number, timestamp=number) for number in range(5)]
SCOPE = ReadScope(
    start_ms=None,
    end_ms=None,
    isolation=IsolationLevel.READ_COMMITTED,
    split_bytes=1 << 20,
    tasks=1,
)


def filled(path: Path) -> str:
    root = make(str(path), NAME.topic)
    append(root, NAME.topic, NAME.partition, RECORDS)
    return root


def runs_of(root: str) -> list[Run]:
    plan = plan_side(Side(letter="a", place=Place(root)), [NAME.topic], SCOPE, ())
    return [part.run for part in plan.parts]


def test_the_runs_of_a_topic_that_was_created_again_are_not_kept(tmp_path: Path) -> None:
    """Both topics have the same records, so only their ids differ."""
    first, second = filled(tmp_path / "first"), filled(tmp_path / "second")
    for root, other in ((first, second), (second, first)):
        with LogDir.open(root) as log_dir:
            (run,) = runs_of(root)
            topic_id = log_dir.topic(NAME.topic).topic_id
            assert topic_id is not None
            assert run.topic_id == topic_id.hex
            bounds = {NAME: (0, len(RECORDS))}
            assert list(valid_runs(log_dir, [run], bounds)) == [run]
            assert list(valid_runs(log_dir, runs_of(other), bounds)) == []
