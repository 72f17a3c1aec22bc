"""Kafka's DumpLogSegments accepts segments that a job has staged and the log has attached."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.worlds.kafka.oracle import Oracle

from tidelog.spark.directory_sink import TaskWriter
from tidelog.spark.sink_options import read_sink_options
from tidelog.storage.directory.attach import attach
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import Codec, NewRecord

pytestmark = pytest.mark.kafka
TOPIC = "tides"
ROWS = 30_000


@pytest.mark.parametrize("codec", list(Codec))
def test_kafka_accepts_every_attached_file(
    kafka_oracle: Oracle, tmp_path: Path, codec: Codec
) -> None:
    path = str(tmp_path)
    kind = {0: "CreateTime", 1: "LogAppendTime"}[codec % 2]
    config = {"segment.bytes": str(1 << 20), "message.timestamp.type": kind}
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, partitions=2, config=config)
        log_dir.log(TOPIC, 0).append([NewRecord(value=b"old")])
    options = read_sink_options({"path": path, "topic": TOPIC, "compression": codec.config_name})
    staged = []
    for task in range(2):
        writer = TaskWriter(options, name=f"job-{task}", task=task)
        writer.take(rows(task))
        staged += writer.finish()
    with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
        result = attach(log_dir, staged)
        log_dir.log(TOPIC, 0).append([NewRecord(value=b"new")])
    assert result.record_count == 2 * ROWS
    found = kafka_oracle.check_directory(tmp_path)
    assert found.accepted, found.damage[:3]
    assert sum(name.endswith(".log") for name in found.dumped) >= len(staged) + 2


def rows(seed: int) -> pa.RecordBatch:
    """Return keyed rows of about 100 bytes, whose times are out of order."""
    draw = np.random.default_rng(seed)
    numbers = draw.integers(0, 1_000, ROWS)
    keys = pa.array([b"k%d" % number for number in numbers], pa.binary())
    values = pa.array([b"v%090d" % number for number in numbers], pa.binary())
    times = pa.array((1_360_342_800_000 + numbers).tolist(), pa.int64())
    return pa.RecordBatch.from_arrays([keys, values, times], ["key", "value", "timestamp"])
