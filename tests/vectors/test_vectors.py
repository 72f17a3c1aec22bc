"""tidelog reads files that Kafka wrote, with the results that Kafka has. No Java is needed.

tests/peers/vectors.py made the files with Kafka; each `.toml` contains what Kafka read from its
file.
"""

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.kafka.compare import our_fields

from tidelog.record.batch_walk import Batch, walk
from tidelog.record.record import ControlType, Record, read_control_type, read_end_marker
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import TxnIndex

HERE = Path(__file__).parent
PARTITION = HERE / "events-0"
BINARIES = sorted(HERE.glob("*.bin"))


def header_values(batch: Batch) -> dict[str, object]:
    """Return the batch's header and records in the form of the `.toml`."""
    fields = our_fields(batch)
    fields["record"] = [record_values(record, batch) for record in batch.records()]
    return {key: value for key, value in fields.items() if value is not None}


def record_values(record: Record, batch: Batch) -> dict[str, object]:
    """Return the record in the form of the `.toml`: bytes in hexadecimal, null values left out."""
    kind = read_control_type(record.key) if batch.is_control else None
    marker = kind in (ControlType.ABORT, ControlType.COMMIT)
    fields: dict[str, object] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "sequence": record.sequence,
        "key": None if record.key is None else record.key.hex(),
        "value": None if record.value is None else record.value.hex(),
        "headers": [
            [header.key] if header.value is None else [header.key, header.value.hex()]
            for header in record.headers
        ],
        "control_type": None if kind is None else kind.name,
        "coordinator_epoch": read_end_marker(record).coordinator_epoch if marker else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


@pytest.mark.parametrize("binary", BINARIES, ids=lambda path: path.stem)
def test_batches_read_as_kafka_reads_them(binary: Path) -> None:
    told = tomllib.loads(binary.with_suffix(".toml").read_text())
    assert [header_values(batch) for batch in walk(binary.read_bytes())] == told["batch"]


def test_every_format_has_a_vector() -> None:
    names = {binary.stem.split("-log")[0] for binary in BINARIES}
    codecs = ("none", "gzip", "snappy", "lz4")
    assert {f"magic{m}-{codec}" for m in (0, 1, 2) for codec in codecs} <= names
    assert {"magic2-zstd", "transactions", "cleaned"} <= names


def dumped_files() -> list[dict[str, object]]:
    """Return the name and Kafka's dump of each index and snapshot of the partition."""
    told = tomllib.loads(PARTITION.with_suffix(".toml").read_text())
    found: list[dict[str, object]] = told["file"]
    return found


def offset_index_lines(data: bytes, base: int) -> Iterator[str]:
    """Return an offset index as the lines that DumpLogSegments prints."""
    for offset, position in OffsetIndex(base, data=data).entries():
        yield f"offset: {offset} position: {position}"


def time_index_lines(data: bytes, base: int) -> Iterator[str]:
    """Return a time index as the lines that DumpLogSegments prints."""
    for timestamp, offset in TimeIndex(base, data=data).entries():
        yield f"timestamp: {timestamp} offset: {offset}"


def txn_index_lines(data: bytes, base: int) -> Iterator[str]:
    """Return an index of aborted transactions as the lines that DumpLogSegments prints."""
    for entry in TxnIndex.decode(data, base).collect(0, 2**63 - 1)[0]:
        yield (
            f"version: 0 producerId: {entry.producer_id} firstOffset: {entry.first_offset} "
            f"lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}"
        )


@pytest.mark.parametrize(
    ("suffix", "lines"),
    [
        (".index", offset_index_lines),
        (".timeindex", time_index_lines),
        (".txnindex", txn_index_lines),
    ],
    ids=[".index", ".timeindex", ".txnindex"],
)
def test_index_entries_read_as_kafka_dumps_them(
    suffix: str, lines: Callable[[bytes, int], Iterator[str]]
) -> None:
    seen = 0
    for told in dumped_files():
        file = PARTITION / str(told["name"])
        if file.suffix != suffix:
            continue
        dumped = told["dumped"]
        assert isinstance(dumped, list)
        if dumped == [f"events-0/{file.name} is empty."]:
            dumped = []
        assert list(lines(file.read_bytes(), int(file.stem))) == dumped
        seen += len(dumped)
    assert seen


def test_leader_epochs_read() -> None:
    epochs = LeaderEpochs.decode((PARTITION / "leader-epoch-checkpoint").read_bytes())
    assert [tuple(entry) for entry in epochs.entries] == [(0, 0), (2, 66)]
    assert epochs.encode() == (PARTITION / "leader-epoch-checkpoint").read_bytes()
