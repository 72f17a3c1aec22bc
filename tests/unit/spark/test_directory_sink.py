"""A commit of a directory's sink shows all staged rows, and an abort removes them (no Spark)."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import tidelog
from tidelog.spark.directory_sink import (
    DirectoryStreamWriter,
    DirectoryWriter,
    StagedMessage,
    TaskWriter,
    batch_commit_id,
    new_commit_id,
)
from tidelog.spark.sink_options import SinkOptions, StreamBatch, read_sink_options

BATCH = StreamBatch("query", 7)


@pytest.fixture
def options(tmp_path: Path) -> SinkOptions:
    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic("t", partitions=2)
    return read_sink_options({"path": str(tmp_path), "topic": "t"})


def staged(options: SinkOptions, commit_id: str, batch: StreamBatch | None) -> list[StagedMessage]:
    """Stage the rows of two tasks; return their messages."""
    messages = []
    for task in range(2):
        writer = TaskWriter(options, name=f"{commit_id}-{task}-0", task=task)
        keys = pa.array([b"k%d%d" % (task, row) for row in range(8)], pa.binary())
        writer.take(pa.RecordBatch.from_arrays([keys, keys], ["key", "value"]))
        messages.append(StagedMessage(writer.finish(), batch))
    return messages


def values(options: SinkOptions) -> list[bytes]:
    with tidelog.open(options.path) as directory:
        return sorted(record.value or b"" for _, record in directory.records("t"))


def files(options: SinkOptions, commit_id: str) -> list[Path]:
    return [*Path(options.path).rglob(f"*{commit_id}*")]


ROWS = [b"k%d%d" % (task, row) for task in range(2) for row in range(8)]


def test_a_commit_shows_the_rows_of_all_tasks(options: SinkOptions) -> None:
    commit_id = new_commit_id(options)
    messages = staged(options, commit_id, None)
    assert values(options) == []
    DirectoryWriter(options, commit_id).commit([*messages, None])
    assert values(options) == ROWS


def test_a_repeated_numbered_write_is_logged(
    options: SinkOptions, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"path": options.path, "topic": "t", "txnAppId": "app", "txnVersion": "3"}
    numbered = read_sink_options(given)
    for _ in range(2):
        commit_id = new_commit_id(numbered)
        DirectoryWriter(numbered, commit_id).commit(staged(numbered, commit_id, None))
        assert values(options) == ROWS
    (line,) = caplog.messages
    assert line.startswith(
        f"txnVersion 3 of txnAppId 'app' to topic t ({options.path}) was committed before"
    )


def test_an_abort_removes_all_staged_files(options: SinkOptions) -> None:
    commit_id = new_commit_id(options)
    staged(options, commit_id, None)
    assert files(options, commit_id)
    DirectoryWriter(options, commit_id).abort([])
    assert (files(options, commit_id), values(options)) == ([], [])


def test_a_repeated_batch_of_a_stream_is_shown_once(options: SinkOptions) -> None:
    for _ in range(2):
        messages = staged(options, batch_commit_id(BATCH), BATCH)
        DirectoryStreamWriter(options).commit(messages, BATCH.number)
        assert values(options) == ROWS
        assert files(options, batch_commit_id(BATCH)) == []


def test_an_aborted_batch_of_a_stream_leaves_no_files(options: SinkOptions) -> None:
    messages = staged(options, batch_commit_id(BATCH), BATCH)
    assert files(options, batch_commit_id(BATCH))
    DirectoryStreamWriter(options).abort([None, *messages], BATCH.number)
    assert (files(options, batch_commit_id(BATCH)), values(options)) == ([], [])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("limit", [2_000, 1_048_588])
def test_batches_of_random_bytes_fit_into_the_largest_message(
    options: SinkOptions, codec: str, limit: int
) -> None:
    given = {"path": options.path, "topic": "t", "compression": codec, "batchBytes": "2000000"}
    compressed = read_sink_options(given)
    with tidelog.open(options.path, writable=True) as directory:
        directory.alter_config("t", {"max.message.bytes": str(limit)})
    draw = Random(limit)
    rows = [draw.randbytes(draw.randrange(limit // 5)) for _ in range(100)]
    commit_id = new_commit_id(compressed)
    writer = TaskWriter(compressed, name=commit_id, task=0)
    writer.take(pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], ["value"]))
    DirectoryWriter(compressed, commit_id).commit([StagedMessage(writer.finish(), None)])
    assert values(options) == sorted(rows)
