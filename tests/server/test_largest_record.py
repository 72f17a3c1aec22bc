"""The largest record that tidelog's clients write can be read, with TLS and without."""

from pathlib import Path
from typing import Final

import pytest
from tests.server.test_tls import World
from tests.worlds.clients.secured import Key
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.remote.producer import RECORD_BYTES_MAX
from tidelog.types import NewRecord, TopicPartition

# Bytes that librdkafka adds to the size of a record when it compares the size with the limit.
OVERHEAD: Final = 36


@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
def test_the_largest_record_is_written_and_read(tmp_path: Path, protocol: str) -> None:
    world = World(tmp_path)
    key = world.key("SSL") if protocol == "SSL" else Key()
    value = b"v" * (RECORD_BYTES_MAX - OVERHEAD)
    with tidelog.broker(settings=world.settings) as broker:
        place = f"127.0.0.1:{broker.ports[protocol]}"
        settings = {name: str(text) for name, text in key.librdkafka(place).items()}
        del settings["bootstrap.servers"]
        settings["queue.buffering.max.kbytes"] = str(1 << 18)
        with tidelog.connect(place, config=settings, timeout_s=PATIENCE_S) as log:
            log.create_topic("t", config={"max.message.bytes": str(RECORD_BYTES_MAX + 1000)})
            log.append("t", [NewRecord(value=b"before"), NewRecord(value=value)])
            sizes = [len(record.value or b"") for _, record in log.records("t")]
            assert sizes == [6, len(value)]
            view = log.cluster
            (name,) = view.partitions("t")
            assert name == TopicPartition("t", 0)
            assert [len(one.value or b"") for one in view.records(name, 1, 2)] == [len(value)]
