"""Progress of a streaming query: the metrics of its sources, and the values read from them."""

import json
from pathlib import Path

import pytest

from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.micro_batches import MicroBatches
from tidelog.spark.query_progress import Progress, read_progress
from tidelog.spark.stream_log import StreamLog
from tidelog.spark.stream_options import read_stream_options
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord


def batches_of(root: Path, now_ms: int) -> MicroBatches:
    given = {"path": str(root), "subscribe": "t", "startingOffsets": "earliest"}
    options = read_stream_options({**given, "maxOffsetsPerTrigger": "2"})
    log = StreamLog(options.source, ["offset"], open_backend)
    return MicroBatches(options, log, ManualClock(now_ms))


def as_spark_tells(batches: MicroBatches, number: int, rows: int) -> dict[str, object]:
    told = json.dumps(batches.progress)
    return {
        "batchId": number,
        "numInputRows": rows,
        "sources": [{"latestOffset": told}],
        "sink": {"numOutputRows": -1},
    }


def test_seconds_behind_are_of_the_oldest_record_left_on_both_clocks(tmp_path: Path) -> None:
    env = Env(clock=ManualClock(1_000_000))
    with LogDir.open(str(tmp_path), env=env, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic("t")
        for number in range(4):
            record = NewRecord(value=b"v", timestamp=900_000 + 1000 * number)
            log_dir.log("t", 0).append([record])
    batches = batches_of(tmp_path, 1_060_000)
    offset, found = batches.initial_offset(), []
    for number in range(2):
        offset = batches.next_offset(offset, batches._options.limits)
        found.append(as_spark_tells(batches, number, 2))
    first = read_progress(found[:1])
    assert (first.topics, first.batch, first.offsets_behind) == (("t",), 0, 2)
    assert (first.seconds_behind, first.append_seconds_behind) == (158.0, 60.0)
    assert str(first) == (
        "t: batch 0, 2 offsets behind (the oldest created 158.0 s ago, appended 60.0 s ago),"
        " 2 rows written"
    )
    both = read_progress(found)
    assert (both.offsets_behind, both.seconds_behind, both.append_seconds_behind) == (0, 0.0, 0.0)
    assert (both.rows_read, both.rows_written, both.lost) == (4, 4, ())


def test_losses_of_all_remembered_batches_are_reported() -> None:
    told: dict[str, object] = {"latest": {"t": {"0": 9}}, "behind": {}, "metrics": {}}
    batches: list[dict[str, object]] = [
        {"sources": [{"latestOffset": json.dumps(told | {"lost": ["t-0: 3 to 5"]})}]},
        {"sources": [{"latestOffset": json.dumps(told)}], "sink": {"numOutputRows": 7}},
    ]
    found = read_progress(batches)
    assert found.lost == ("t-0: 3 to 5",)
    assert (found.seconds_behind, found.rows_written) == (None, 7)


def test_before_the_first_batch_there_is_no_progress() -> None:
    assert read_progress([]) == Progress()


def test_a_query_of_another_source_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="reads nothing from"):
        read_progress([{"sources": [{"latestOffset": "7"}]}])
