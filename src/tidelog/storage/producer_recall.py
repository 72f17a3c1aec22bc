"""What a producers' snapshot leaves out, read back from the log: all but a producer's last batch.

A client has up to five batches in flight. After a restart it sends again those that nobody
acknowledged, and where they lie before the snapshot only the last one would be known for a
repetition: the first would be refused for its sequence, though it is in the log. (As Apache Kafka
refuses it.) The others are looked for in the log's last bytes; where they lie further back, or
were compacted away, the producer is known by its last batch as before.

Owns no state.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from tidelog.errors import CorruptData, StorageFailure
from tidelog.record.views import Batch
from tidelog.storage.producer_entry import BATCHES_KEPT, ProducerEntry
from tidelog.storage.producers import ProducerStates
from tidelog.storage.proof import position_floor
from tidelog.storage.reading import slices
from tidelog.storage.segment import Segment

# So far behind a snapshot's offset, rounded to an index entry or a segment: what clients have in
# flight at a time. Of the smallest batches it holds 60,000, which takes half a second.
RECALL_BYTES: Final = 4 << 20


def recall_batches(states: ProducerStates, segments: Sequence[Segment], offset: int) -> None:
    """Give producers back their last five batches before `offset`, as far as they are near it.

    What can't be read is left: it is reported where somebody wants the records.

    Args:
        states: From the snapshot at `offset`.
        segments: Of the log, ascending; those of the tier are not read.
        offset: Of the snapshot.
    """
    local = [segment for segment in segments if not segment.is_tiered]
    try:
        _recall(states, local, offset)
    except (CorruptData, StorageFailure, OSError):
        return


def _recall(states: ProducerStates, segments: Sequence[Segment], offset: int) -> None:
    start = _recall_start(segments, offset)
    wanted = {entry.producer_id: entry for entry in states.ending_from(start)}
    if not wanted:
        return
    found: dict[int, deque[Batch]] = {}
    for batch in _batches(segments, start, offset):
        entry = wanted.get(batch.producer_id)
        if entry is not None and batch.producer_epoch == entry.epoch and not batch.is_control:
            found.setdefault(entry.producer_id, deque(maxlen=BATCHES_KEPT)).append(batch)
    for producer_id, batches in found.items():
        states.recall(_entry_of(producer_id, batches))


def _batches(segments: Sequence[Segment], start: int, end: int) -> Iterator[Batch]:
    for part in slices(segments, start, end):
        for _, batch in part.batches():
            yield batch


def _entry_of(producer_id: int, batches: Sequence[Batch]) -> ProducerEntry:
    entry = ProducerEntry(producer_id)
    for batch in batches:
        entry = entry.with_batch(batch)
    return entry


def _recall_start(segments: Sequence[Segment], offset: int) -> int:
    """The offset from which on the log's last bytes before `offset` are read; `offset` for none."""
    start, left = offset, RECALL_BYTES
    for segment in reversed(segments):
        if segment.base_offset >= offset:
            continue
        if left <= 0:
            break
        ends_before = segment.end_offset <= offset
        size = segment.size_bytes if ends_before else position_floor(segment, offset)
        if size > left:
            return _indexed_offset(segment, size - left)
        start, left = segment.base_offset, left - size
    return start


def _indexed_offset(segment: Segment, position: int) -> int:
    """The offset of the last index entry at or before a position, the base where there is none."""
    slot = segment.offset_index.slot_at_or_before_position(position)
    return segment.base_offset if slot < 0 else segment.offset_index.entry(slot)[0]
