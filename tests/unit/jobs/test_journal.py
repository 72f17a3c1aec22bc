"""The file of a job's progress: damage, use by one job at a time, changed options."""

import json
from pathlib import Path

import pytest

from tidelog.env import Env
from tidelog.errors import CorruptFile, DirectoryLocked, InvalidRequest, UnsupportedVersion
from tidelog.jobs.replay.run import PROGRESS_FILE, Journal, Progress, Replay
from tidelog.spark.offset_ranges import OffsetRange
from tidelog.spark.places import Place
from tidelog.types import TopicPartition

SPAN = OffsetRange(TopicPartition("flights", 3), 10, 20)
PROGRESS = Progress(
    job_id="0f" * 16,
    question={"topic": "flights", "start": "-6h"},
    times=(5, None),
    planned=(SPAN,),
    left=(SPAN._replace(start=15),),
    chunk=(SPAN._replace(end=15),),
    number=4,
    records=99,
    size_bytes=1_234,
)


def test_a_journal_remembers(tmp_path: Path) -> None:
    path = str(tmp_path / "progress.json")
    with Journal.open(Env(), path) as journal:
        assert journal.progress is None
        journal.save(PROGRESS)
    with Journal.open(Env(), path) as again:
        assert again.progress == PROGRESS
        with pytest.raises(DirectoryLocked, match="another job uses"), Journal.open(Env(), path):
            pass


def test_without_a_path_no_state_is_kept(tmp_path: Path) -> None:
    with Journal.open(Env(), None) as journal:
        journal.save(PROGRESS)
        assert journal.progress == PROGRESS
    assert list(tmp_path.iterdir()) == []


def test_another_question_is_refused() -> None:
    PROGRESS.ensure_same_request({"topic": "flights", "start": "-6h"})
    with pytest.raises(InvalidRequest, match="a replay with start '-6h', not '-7h'"):
        PROGRESS.ensure_same_request({"topic": "flights", "start": "-7h"})
    with pytest.raises(InvalidRequest, match="a replay with end 'left out', not 'now'"):
        PROGRESS.ensure_same_request({"topic": "flights", "start": "-6h", "end": "now"})


def test_choices_of_another_question_are_reported_as_words() -> None:
    asked = Replay(Place("a"), "flights", to=Place("b"), clock="append", partitions="key")
    before = Progress(job_id="", question=asked._requested() | {"clock": "record"})
    with pytest.raises(InvalidRequest, match="a replay with clock 'record', not 'append'"):
        before.ensure_same_request(asked._requested())
    before = Progress(job_id="", question=asked._requested() | {"partitions": "keep"})
    with pytest.raises(InvalidRequest, match="a replay with partitions 'keep', not 'key'"):
        before.ensure_same_request(asked._requested())


def test_done() -> None:
    assert not PROGRESS.is_done
    assert Progress(job_id="", question={}, planned=(SPAN,)).is_done


def saved(folder: Path) -> Path:
    path = folder / "progress.json"
    with Journal.open(Env(), str(path)) as journal:
        journal.save(PROGRESS)
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"left": [["t", 0, 2, 1]]},
        {"times": [1]},
        {"times": ["1", None]},
        {"number": "1"},
        {"number": True},
        {"question": {"a": 1}},
        {"question": []},
        {"job_id": None},
    ],
)
def test_invalid_progress_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = saved(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    journal = Journal.open(Env(), str(path))
    with pytest.raises(CorruptFile, match="not the state of a replay") as caught, journal:
        pass
    assert caught.value.path == str(path)


def test_later_releases_and_torn_files(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    later = json.dumps(json.loads(content) | {"version": 2})
    with pytest.raises(
        UnsupportedVersion, match="a replay has version 2, but this release supports only version 1"
    ):
        PROGRESS_FILE.decode(later.encode(), dict)
    path.write_bytes(content[:-20])
    with pytest.raises(CorruptFile), Journal.open(Env(), str(path)):
        pass
