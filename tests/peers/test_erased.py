"""A directory from which a key was erased, checked by Apache Kafka's own tools."""

from pathlib import Path

import pytest
from tests.worlds.kafka.oracle import Oracle

from tidelog.directory import Directory
from tidelog.storage.erasure import erase
from tidelog.types import Codec, NewRecord

pytestmark = pytest.mark.kafka
KEY = b"the one"


@pytest.mark.parametrize("stamps", ["CreateTime", "LogAppendTime"])
def test_dump_log_segments_accepts_every_file(
    tmp_path: Path, kafka_oracle: Oracle, stamps: str
) -> None:
    config = {"internal.segment.bytes": "900", "message.timestamp.type": stamps}
    with Directory.open(str(tmp_path), writable=True) as directory:
        directory.create_topic("t", config=config)
        for number in range(40):
            codec = list(Codec)[number % len(Codec)]
            keys = [KEY] if number % 4 == 0 else [KEY, b"k%d" % number, KEY]
            records = [NewRecord(key=key, value=b"%040d" % number) for key in keys]
            directory.append("t", records, codec=codec)
        assert erase(directory.log_dir, "t", KEY, execute=True).is_complete
    found = kafka_oracle.check_directory(tmp_path / "t-0")
    assert found.damage == ()
    # The offsets of erased records are missing from the log, as in a compacted log.
    assert found.gaps
    assert len(found.dumped) > 10
