"""Creates the files of tests/vectors with Kafka's own classes: `python -m tests.peers.vectors`.

The files are committed for machines without Java. Each `.bin` (or partition folder) has a `.toml`
file beside it with the origin, this command, and every field as Kafka reads it. A null field has no
key. test_vectors_current.py recreates and compares the files, so they can't become outdated.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.worlds.kafka.home import ROOT, kafka_home
from tests.worlds.kafka.oracle import KafkaBatch, Oracle, Script
from tests.worlds.records.samples import CODECS, LEGACY_CODECS, T0, tell_batch

from tidelog.record.builder import build_batch, build_end_marker
from tidelog.types import Codec, Header, NewRecord, TimestampType

VECTORS = ROOT / "tests" / "vectors"
COMMAND = "python -m tests.peers.vectors"
ORIGIN = "Apache Kafka 4.3.0"
TOPIC_ID = "dGlkZWxvZy12ZWN0b3JzMQ"
PARTITION = "events-0"

RECORDS = (
    NewRecord(key=b"k0", value=b"first", timestamp=T0),
    NewRecord(key=None, value=b"no key", timestamp=T0 - 10),
    NewRecord(key=b"k0", value=None, timestamp=T0 + 5),
    NewRecord(key=b"", value=b"", timestamp=-1),
    NewRecord(
        key=b"k1",
        value=b"tidelog " * 40,
        timestamp=T0 + 5,
        headers=(Header("trace", b"\x00\x01"), Header("trace", None), Header("größe", b"")),
    ),
    NewRecord(key=bytes(range(256)), value=b"x", timestamp=0),
)
PLAIN = tuple(NewRecord(key=r.key, value=r.value, timestamp=r.timestamp) for r in RECORDS)
TIMELESS = tuple(NewRecord(key=r.key, value=r.value, timestamp=-1) for r in RECORDS)

PARTITION_CONFIG = {
    "internal.segment.bytes": "1500",
    "index.interval.bytes": "250",
    "segment.index.bytes": "1024",
}
LOOKUPS = (0, 1, T0 - 1, T0, T0 + 1, T0 + 1_000, T0 + 2_500, T0 + 4_000, T0 + 10**9)


def record_vectors() -> dict[str, list[Mapping[str, object]]]:
    """Return the batches of each `.bin`, in the form for `Oracle.write_batches`."""
    stamped = TimestampType.LOG_APPEND_TIME
    found: dict[str, list[Mapping[str, object]]] = {}
    for codec in CODECS:
        name = codec.config_name
        found[f"magic2-{name}"] = [
            tell_batch(RECORDS, codec=codec, base_offset=100, leader_epoch=3),
            tell_batch(RECORDS[::-1], codec=codec, base_offset=106, leader_epoch=4),
        ]
        found[f"magic2-{name}-log-append-time"] = [
            tell_batch(RECORDS, codec=codec, timestamp_type=stamped, append_time=T0 + 60_000)
        ]
    for codec in LEGACY_CODECS:
        name = codec.config_name
        found[f"magic1-{name}"] = [
            tell_batch(PLAIN, magic=1, codec=codec, base_offset=100),
            tell_batch(
                PLAIN,
                magic=1,
                codec=codec,
                base_offset=106,
                timestamp_type=stamped,
                append_time=T0 + 60_000,
            ),
        ]
        found[f"magic0-{name}"] = [
            tell_batch(
                TIMELESS,
                magic=0,
                codec=codec,
                base_offset=100,
                timestamp_type=TimestampType.NO_TIMESTAMP_TYPE,
            )
        ]
    found["transactions"] = _transactions()
    found["cleaned"] = _cleaned()
    return found


def _transactions() -> list[Mapping[str, object]]:
    producer: dict[str, object] = {
        "producer_id": 4_000,
        "producer_epoch": 2,
        "transactional": True,
    }
    marker = producer | {"timestamp": T0 + 1, "coordinator_epoch": 9, "leader_epoch": 1}
    first = {**tell_batch(RECORDS[:2], base_offset=0, base_sequence=2**31 - 1), **producer}
    second = tell_batch(RECORDS[:1], base_offset=3, base_sequence=1, codec=Codec.ZSTD)
    return [
        first,
        marker | {"marker": "ABORT", "base_offset": 2},
        {**second, **producer},
        marker | {"marker": "COMMIT", "base_offset": 4},
    ]


def _cleaned() -> list[Mapping[str, object]]:
    """Return a batch with gaps in offsets, an end after its last record, and a delete horizon."""
    told = tell_batch(RECORDS[1:4], base_offset=100, delete_horizon_ms=T0 + 86_400_000)
    lines = told["records"]
    assert isinstance(lines, list)
    for line, offset in zip(lines, (100, 107, 131), strict=True):
        line["offset"] = offset
    return [{**told, "last_offset": 140}]


def toml_value(value: object) -> str:
    """Return a value as TOML; bytes become hexadecimal text."""
    if isinstance(value, bytes):
        return f'"{value.hex()}"'
    if isinstance(value, bool | int | str):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    raise TypeError(f"no TOML for {value!r}")


def toml_table(fields: Mapping[str, object]) -> list[str]:
    """Return lines of `key = value`, without None."""
    return [f"{key} = {toml_value(v)}" for key, v in fields.items() if v is not None]


def batches_toml(batches: Sequence[KafkaBatch]) -> list[str]:
    """Return lines of TOML with the batches as Kafka reads them."""
    lines = []
    for batch in batches:
        assert batch.error is None
        lines += ["", "[[batch]]", *toml_table(batch.fields)]
        for record in batch.records:
            headers = [
                [key] if value is None else [key, value.hex()] for key, value in record.headers
            ]
            fields = {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "sequence": record.sequence,
                "key": record.key,
                "value": record.value,
                "headers": headers,
                "control_type": record.control_type,
                "coordinator_epoch": record.coordinator_epoch,
            }
            lines += ["", "[[batch.record]]", *toml_table(fields)]
    return lines


def head(what: str) -> list[str]:
    """Return the first lines of each `.toml`."""
    return [f"# {what}", *toml_table({"origin": ORIGIN, "command": COMMAND})]


def make_records(oracle: Oracle, folder: Path) -> None:
    """Write each record vector and its content as read by Kafka."""
    for name, batches in record_vectors().items():
        data = oracle.write_batches(batches)
        lines = head("Written by Kafka's MemoryRecordsBuilder, the fields as MemoryRecords reads.")
        lines += batches_toml(oracle.read_batches(data))
        (folder / f"{name}.bin").write_bytes(data)
        (folder / f"{name}.toml").write_text("\n".join(lines) + "\n")


def partition_steps() -> list[dict[str, object]]:
    """Return appends with several codecs, unordered and missing times, and two transactions."""
    steps: list[dict[str, object]] = []
    for index in range(12):
        codec = CODECS[index % len(CODECS)]
        moved = [
            NewRecord(
                key=r.key,
                value=r.value,
                headers=r.headers,
                timestamp=-1 if index == 4 else (r.timestamp or 0) + index % 5 * 1_000,
            )
            for r in RECORDS[:5]
        ]
        steps.append({"do": "append", "data": build_batch(moved, codec=codec)})
    for producer, commit in ((7_000, False), (7_001, True)):
        data = build_batch(
            RECORDS[:2],
            producer_id=producer,
            producer_epoch=1,
            base_sequence=0,
            transactional=True,
        )
        steps.append({"do": "append", "data": data})
        marker = build_end_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=1,
            coordinator_epoch=5,
            timestamp=T0 + 4_000,
        )
        steps.append({"do": "append", "data": marker, "origin": "COORDINATOR"})
    steps.append({"do": "append", "data": build_batch(RECORDS), "leader_epoch": 2})
    return steps


def make_partition(oracle: Oracle, folder: Path) -> None:
    """Write a partition with Kafka's storage classes, and the results of Kafka's lookups in it."""
    directory = folder / PARTITION
    asked: list[dict[str, object]] = [
        {"do": "state"},
        {"do": "offsets_for_times", "timestamps": list(LOOKUPS)},
        {"do": "aborted", "start": 0, "end": 10**6},
    ]
    script = Script(
        directory, [*partition_steps(), *asked], PARTITION_CONFIG, now_ms=T0, topic_id=TOPIC_ID
    )
    state, lookups, aborted = oracle.run_well(script)[-3:]
    assert isinstance(state, dict)
    lines = head("Written by Kafka's UnifiedLog; lookups and index entries as Kafka tells them.")
    lines += toml_table({key: value for key, value in state.items() if key != "segments"})
    lines += toml_table({"topic_id": TOPIC_ID, "aborted": aborted})
    lines += ["", "[config]", *toml_table({f'"{k}"': v for k, v in PARTITION_CONFIG.items()})]
    assert isinstance(lookups, list)
    for asked_ms, found in zip(LOOKUPS, lookups, strict=True):
        names = ("found_offset", "found_timestamp", "found_epoch")
        answer = dict(zip(names, found, strict=True)) if found else {}
        lines += ["", "[[lookup]]", *toml_table({"timestamp": asked_ms} | answer)]
    lines += _dumped(oracle, directory)
    (folder / f"{PARTITION}.toml").write_text("\n".join(lines) + "\n")


def _dumped(oracle: Oracle, directory: Path) -> list[str]:
    """Return the output of DumpLogSegments for each index and snapshot."""
    lines = []
    for file in sorted(directory.iterdir()):
        if file.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            found = oracle.dump([file])
            assert not found.damage
            told = [line for line in found.lines if not line.startswith("Dumping ")]
            told = [line.replace(str(directory), PARTITION) for line in told]
            lines += ["", "[[file]]", *toml_table({"name": file.name, "dumped": told})]
    return lines


def make_all(oracle: Oracle, folder: Path) -> None:
    """Write everything into an empty folder."""
    make_records(oracle, folder)
    make_partition(oracle, folder)


def main() -> None:
    """Replace tests/vectors."""
    with tempfile.TemporaryDirectory() as fresh, Oracle(kafka_home()) as oracle:
        make_all(oracle, Path(fresh))
        for old in [*VECTORS.glob("*.bin"), *VECTORS.glob("*.toml")]:
            old.unlink()
        shutil.rmtree(VECTORS / PARTITION, ignore_errors=True)
        shutil.copytree(fresh, VECTORS, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
