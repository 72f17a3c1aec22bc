"""Dumps of the text files of a directory: checkpoints, ids, settings."""

from collections.abc import Callable, Iterator
from typing import Final

from tidelog.cli import output
from tidelog.cli.dump_file import Dumped, DumpFile
from tidelog.cli.output import Column, Row
from tidelog.errors import CorruptData, CorruptFile, UnsupportedVersion
from tidelog.storage import files, meta_properties, segment_notes, text_files, topics_file
from tidelog.storage.epochs import LeaderEpochs
from tidelog.types import NO_TIMESTAMP

_Rows = Callable[[bytes], Iterator[Row]]


def dump_text(dump: DumpFile, name: str) -> Dumped:
    """The rows of a text file that `TEXT_FILES` knows."""
    columns, rows_of = TEXT_FILES[name]
    return Dumped(columns, _rows(dump, rows_of))


def _rows(dump: DumpFile, rows_of: _Rows) -> Iterator[Row]:
    try:
        yield from rows_of(dump.read())
    except CorruptData as error:
        dump.find_error(error)
    except UnsupportedVersion as error:
        dump.find(str(error))


def _offset_checkpoint(data: bytes) -> Iterator[Row]:
    for place, offset in text_files.decode_offset_checkpoint(data).items():
        yield [place.topic, place.partition, offset]


def _epochs(data: bytes) -> Iterator[Row]:
    yield from (list(entry) for entry in LeaderEpochs.decode(data).entries)


def _append_time_checkpoint(data: bytes) -> Iterator[Row]:
    for fields in text_files.decode_checkpoint(data, 3, 4):
        end, base, named, *last_ms = (text_files.parse_number(text, "field") for text in fields)
        yield [end, base, f"{named:08x}", last_ms[0] if last_ms else NO_TIMESTAMP]


def _segment_notes(data: bytes) -> Iterator[Row]:
    notes, problems = segment_notes.decode_notes(data)
    for note in notes.values():
        base, end, named, reason, roll_ms, seen_ms = note
        yield [base, end, f"{named:08x}", reason, roll_ms, seen_ms]
    if problems:
        raise CorruptFile("; ".join(problems))


def _metadata(data: bytes) -> Iterator[Row]:
    yield ["topic_id", files.encode_topic_id(text_files.decode_partition_metadata(data))]


def _properties(data: bytes) -> Iterator[Row]:
    yield from (list(item) for item in meta_properties.decode_meta_properties(data).items())


def _topics(data: bytes) -> Iterator[Row]:
    for name, entry in topics_file.decode_topics(data).topics.items():
        settings = ",".join(f"{key}={value}" for key, value in entry.given.items())
        yield [name, files.encode_topic_id(entry.topic_id), entry.partitions, settings]


_PLACE: Final = [output.text("topic"), output.number("partition"), output.number("offset")]
_PAIR: Final = [output.text("name"), output.text("value")]
# By the file's name: what its rows are, and where they come from.
TEXT_FILES: Final[dict[str, tuple[list[Column], _Rows]]] = {
    files.RECOVERY_POINT_CHECKPOINT_FILE: (_PLACE, _offset_checkpoint),
    files.LOG_START_CHECKPOINT_FILE: (_PLACE, _offset_checkpoint),
    files.HIGH_WATERMARK_CHECKPOINT_FILE: (_PLACE, _offset_checkpoint),
    files.CLEANER_CHECKPOINT_FILE: (_PLACE, _offset_checkpoint),
    files.LEADER_EPOCH_CHECKPOINT_FILE: (
        [output.number("epoch"), output.number("start_offset")],
        _epochs,
    ),
    files.APPEND_TIME_CHECKPOINT_FILE: (
        [
            output.number("end_offset"),
            output.number("last_base_offset"),
            output.text("fingerprint"),
            output.number("last_append_ms"),
        ],
        _append_time_checkpoint,
    ),
    segment_notes.SEGMENT_NOTES_FILE: (
        [
            output.number("base_offset"),
            output.number("end_offset"),
            output.text("fingerprint"),
            output.text("rolled"),
            output.time("rolled_at"),
            output.time("seen"),
        ],
        _segment_notes,
    ),
    files.PARTITION_METADATA_FILE: (_PAIR, _metadata),
    meta_properties.META_PROPERTIES_FILE: (_PAIR, _properties),
    topics_file.TOPICS_FILE: (
        [
            output.text("topic"),
            output.text("topic_id"),
            output.number("partitions"),
            output.text("settings"),
        ],
        _topics,
    ),
}
