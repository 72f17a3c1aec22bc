"""Records read through librdkafka are in order of offset, even if a batch's offset is wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.errors import CorruptBatch
from tidelog.record.batch_walk import walk
from tidelog.remote.remote_directory import RemoteDirectory
from tidelog.types import NewRecord, TopicPartition

BATCHES, EACH = 20, 10
NAME = TopicPartition("t", 0)
# tidelog's own client does not support this setting, so reads go through librdkafka.
THROUGH_LIBRDKAFKA = {"reconnect.backoff.ms": "50"}


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "t-0" / f"{0:020}.log"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RemoteDirectory]:
    """Run a broker with a topic of 20 batches of 10 records, to be read through librdkafka."""
    # The fixture writes without a client, so that each batch has known offsets. librdkafka would
    # divide the records of a call into batches by time.
    with tidelog.open(tmp_path / "data", writable=True) as directory:
        directory.create_topic("t")
        for _ in range(BATCHES):
            directory.append("t", [NewRecord(value=b"%d" % n) for n in range(EACH)], partition=0)
    with tidelog.broker(str(tmp_path / "data"), settings=SETTINGS) as broker:
        servers = broker.bootstrap_servers
        with tidelog.connect(servers, config=THROUGH_LIBRDKAFKA, timeout_s=PATIENCE_S) as connected:
            assert not connected.source.is_direct
            yield connected


def move(path: Path, batch: int, offset: int) -> None:
    """Overwrite a batch's base offset, as a flipped bit might: no checksum covers the field."""
    with path.open("r+b") as file:
        at = [found.at for found in walk(file.read())][batch]
        file.seek(at)
        file.write(offset.to_bytes(8, "big"))


def by_records(cluster: RemoteDirectory) -> int:
    return len(list(cluster.records("t")))


def by_scan(cluster: RemoteDirectory) -> int:
    return cluster.scan("t").to_arrow().read_all().num_rows


def by_count(cluster: RemoteDirectory) -> int:
    return cluster.count("t")


def by_view(cluster: RemoteDirectory) -> int:
    return len(list(cluster.cluster.records(NAME, 0, BATCHES * EACH)))


@pytest.mark.parametrize("read", [by_records, by_scan, by_count, by_view])
@pytest.mark.parametrize(
    "offset", [64, 164, 1 << 40], ids=["back", "among later ones", "behind the end"]
)
def test_offsets_that_do_not_rise_are_an_error(
    cluster: RemoteDirectory,
    log_path: Path,
    read: Callable[[RemoteDirectory], int],
    offset: int,
) -> None:
    assert read(cluster) == BATCHES * EACH
    move(log_path, 10, offset)
    with pytest.raises(CorruptBatch, match=r"t-0.*offsets? "):
        read(cluster)
