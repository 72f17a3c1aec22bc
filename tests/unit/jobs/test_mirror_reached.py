"""Offsets that a mirror's query has read, from Spark's checkpoint."""

import json
from pathlib import Path

import pytest

from tidelog.env import os_env
from tidelog.jobs.mirror.job import read_reached
from tidelog.spark.stream_offset import Position, StreamOffset
from tidelog.types import TopicPartition

NAME = TopicPartition("orders", 1)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Create the checkpoint of a query whose batches 0 to 10 are done and whose batch 11 is not."""
    for folder in ("offsets", "commits"):
        (tmp_path / "spark" / folder).mkdir(parents=True)
    for number in range(12):
        lines = [offset_at(number), offset_at(100 + number)]
        text = "\n".join(["v1", "{}", *(json.dumps(line.encode()) for line in lines)])
        (tmp_path / f"spark/offsets/{number}").write_text(text)
        if number < 11:
            (tmp_path / f"spark/commits/{number}").write_text("v1\n{}")
            (tmp_path / f"spark/commits/.{number}.crc").write_text("x")
    return tmp_path


def offset_at(number: int) -> StreamOffset:
    return StreamOffset(positions={NAME: Position(number)}, topic_ids={"orders": ""})


def test_the_last_batch_that_is_done_has_the_offsets(checkpoint: Path) -> None:
    assert read_reached(os_env(), str(checkpoint)) == [offset_at(10), offset_at(110)]


@pytest.mark.parametrize("text", ["", "v1", "v2\n{}\n{}", "v1\n{}\nnot JSON", "v1\n{}\n-", None])
def test_offsets_of_an_unreadable_checkpoint_are_unknown(
    checkpoint: Path, text: str | None
) -> None:
    path = checkpoint / "spark/offsets/10"
    path.unlink() if text is None else path.write_text(text)
    assert read_reached(os_env(), str(checkpoint)) == []


def test_offsets_before_the_first_batch_are_unknown(checkpoint: Path) -> None:
    for path in (checkpoint / "spark/commits").iterdir():
        path.unlink()
    assert read_reached(os_env(), str(checkpoint)) == []
    assert read_reached(os_env(), f"{checkpoint}/none") == []
