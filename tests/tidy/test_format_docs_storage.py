"""Compares docs/format.md with the files of a partition.

Its tables must match the structs in the code, and its examples the encoded bytes.
"""

import re
from collections.abc import Callable
from uuid import UUID

import pytest
from tests.tidy.test_format_docs import CODES, example, section, tables

from tidelog.storage import files, log_files, text_files
from tidelog.storage.clocks import append_times
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log import producers
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.log.producers import SnapshotEntry, encode_snapshot
from tidelog.storage.segment import offset_index, time_index
from tidelog.storage.segment import txn_index as aborted
from tidelog.storage.segment.compaction_history import CompactionHistory
from tidelog.storage.segment.deletion_history import DeletionEvent, encode_events
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.roll import RollReason, SegmentNote
from tidelog.storage.segment.segment_notes import encode_notes
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import AbortedTxn, TxnIndex

TIME = 1_700_000_000_000
TOPIC_ID = UUID(int=(1 << 64) | 2)
BYTES = {"bytes": "s", "uuid": "s"}

STRUCTS = {
    ("Offset index", 0): (offset_index._OFFSET_ENTRY, offset_index.OFFSET_ENTRY_SIZE),
    ("Time index", 0): (time_index._TIME_ENTRY, time_index.TIME_ENTRY_SIZE),
    ("Index of aborted transactions", 0): (aborted._TXN_ENTRY, aborted.TXN_ENTRY_SIZE),
    ("Producer snapshot", 0): (producers._HEADER, producers.SNAPSHOT_HEADER_SIZE),
    ("Producer snapshot", 1): (producers._ENTRY, producers.ENTRY_SIZE),
    ("Append times", 0): (append_times._HEADER, append_times.HEADER_SIZE),
    ("Append times", 1): (append_times._ROW, append_times.ROW_SIZE),
}


@pytest.mark.parametrize(("title", "number"), STRUCTS)
def test_a_table_is_the_struct(title: str, number: int) -> None:
    struct, size = STRUCTS[title, number]
    rows = tables(title)[number]
    at = 0
    codes = ""
    for row in rows:
        assert int(row["at"]) == at
        at += int(row["size"])
        codes += CODES.get(row["type"]) or row["size"] + BYTES[row["type"]]
    assert at == size
    assert f">{codes}" == struct.format


def test_the_fields_of_the_snapshot_are_those_of_the_code() -> None:
    names = [row["field"].replace(" ", "_") for row in tables("Producer snapshot")[1]]
    assert tuple(names) == SnapshotEntry._fields
    covered = [row["covered by CRC"] for row in tables("Producer snapshot")[0]]
    assert covered == ["no", "no", "yes"]
    assert int(tables("Producer snapshot")[0][2]["at"]) == producers.CRC_START_AT


def test_the_fields_of_an_aborted_transaction_are_those_of_the_code() -> None:
    names = [row["field"].replace(" ", "_") for row in tables("Index of aborted transactions")[0]]
    assert tuple(names) == ("version", *AbortedTxn._fields)


def test_the_header_of_append_times() -> None:
    rows = {row["field"]: row["meaning"] for row in tables("Append times")[0]}
    assert bytes.fromhex(rows["magic"].partition(" (")[0]) == append_times.MAGIC
    assert int(rows["version"]) == append_times.VERSION
    assert int(rows["row size"]) == append_times.ROW_SIZE


def test_the_suffixes_are_those_of_the_code() -> None:
    suffixes = {row["suffix"] for row in tables("Files of a partition")[0]}
    assert suffixes == {file.suffix for file in log_files.LOG_FILES}
    for suffix in (
        log_files.DELETED_SUFFIX,
        log_files.CLEANED_SUFFIX,
        log_files.SWAP_SUFFIX,
        files.TMP_SUFFIX,
    ):
        assert f"`{suffix}`" in section("Files of a partition")


def test_the_checkpoints_are_those_of_the_code() -> None:
    assert {row["file"] for row in tables("Text files")[0]} == {
        files.LEADER_EPOCH_CHECKPOINT_FILE,
        files.APPEND_TIME_CHECKPOINT_FILE,
        files.RECOVERY_POINT_CHECKPOINT_FILE,
        files.LOG_START_CHECKPOINT_FILE,
        files.HIGH_WATERMARK_CHECKPOINT_FILE,
        files.CLEANER_CHECKPOINT_FILE,
    }


def _append_times() -> bytes:
    times = AppendTimes(100, TOPIC_ID)
    times.note(105, TIME, 0xBDD556A6)
    times.close(110, 0xBDD556A6)
    return times.encode()


EXAMPLES: dict[str, Callable[[], bytes]] = {
    "Offset index": lambda: OffsetIndex(100).append(149, 4200),
    "Time index": lambda: TimeIndex(100).maybe_append(TIME, 149),
    "Index of aborted transactions": lambda: TxnIndex(100).append(AbortedTxn(7, 100, 120, 115)),
    "Producer snapshot": lambda: encode_snapshot([SnapshotEntry(7, 0, 5, 6, 1, TIME, -1, -1)]),
    "Append times": _append_times,
}


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example(title: str) -> None:
    assert example(title).hex(" ") == EXAMPLES[title]().hex(" ")


def test_the_texts() -> None:
    texts = re.findall(r"^```text\n(.*?)^```", section("Text files"), re.MULTILINE | re.DOTALL)
    assert [text.encode() for text in texts] == [
        LeaderEpochs([(0, 0), (2, 40)]).encode(),
        encode_notes(
            [
                SegmentNote(0, 42, 1_923_367_889, RollReason.SIZE, TIME + 500, TIME + 400),
                SegmentNote(42, 50, 305_419_896, RollReason.UNKNOWN, -1, TIME + 1_000),
            ]
        ),
        encode_events(
            [
                DeletionEvent(
                    *(TIME + 500, TIME + 300_500, "size", "retention.bytes=1073741824"),
                    *(0, 42, 1_699_913_600_400),
                ),
                DeletionEvent(TIME + 400_000, TIME + 400_000, "delete-records", "-", 42, 45),
            ]
        ),
        CompactionHistory(
            end_offset=200,
            record_exact_ms=TIME + 900,
            append_exact_ms=TIME + 950,
            run_ms=TIME + 1_000,
            horizons_ms=(TIME + 86_401_000,),
            segments=frozenset({(0, 52_000), (0, 9_000)}),
        ).encode(),
        text_files.encode_partition_metadata(TOPIC_ID) + b"\n",
        text_files.CLEAN_SHUTDOWN_TEXT + b"\n",
    ]
