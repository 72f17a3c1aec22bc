"""What a producers' snapshot leaves out, read back from the log: all but a producer's last batch.

A client has up to five batches in flight. After a restart it sends again those that nobody
acknowledged, and where they lie before the snapshot only the last one would be known for a
repetition: the first would be refused for its sequence, though it is in the log. (As Apache Kafka
refuses it.) The others are looked for in the log's last bytes; where they lie further back, or
were compacted away, the producer is known by its last batch as before.

Owns no state.
"""

from collections.abc import Sequence
from typing import Final

from tidelog.errors import CorruptData
from tidelog.storage.producers import ProducerStates
from tidelog.storage.reading import slices
from tidelog.storage.segment import Segment

# So far behind a snapshot's offset, rounded to an index entry or a segment. Five requests of a
# megabyte and as much of other producers; of small batches some 100,000, a fraction of a second.
RECALL_BYTES: Final = 8 << 20


def recall_batches(states: ProducerStates, segments: Sequence[Segment], offset: int) -> None:
    """Give producers back their last five batches before `offset`, as far as they are near it.

    Args:
        states: From the snapshot at `offset`.
        segments: Of the log, ascending; those of the tier are not read.
        offset: Of the snapshot.
    """
    start = _recall_start(segments, offset)
    if not states.has_batches_from(start):
        return
    recent = ProducerStates()
    local = [segment for segment in segments if not segment.is_tiered]
    try:
        for part in slices(local, start, offset):
            for _, batch in part.batches():
                if batch.has_producer_id:
                    recent.replay(batch)
    except CorruptData:
        return  # it is reported where somebody wants the records
    states.recall(recent)


def _recall_start(segments: Sequence[Segment], offset: int) -> int:
    """The offset from which on the log's last bytes before `offset` are read; `offset` for none."""
    start, left = offset, RECALL_BYTES
    for segment in reversed(segments):
        if segment.base_offset >= offset:
            continue
        if segment.is_tiered or left <= 0:
            break
        if segment.size_bytes > left:
            return _indexed_offset(segment, segment.size_bytes - left)
        start, left = segment.base_offset, left - segment.size_bytes
    return start


def _indexed_offset(segment: Segment, position: int) -> int:
    """The offset of the last index entry at or before a position, the base where there is none."""
    slot = segment.offset_index.slot_at_or_before_position(position)
    return segment.base_offset if slot < 0 else segment.offset_index.entry(slot)[0]
