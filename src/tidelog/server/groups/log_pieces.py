"""All batches of a log of the broker's own, piece by piece."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tidelog.errors import CorruptData
from tidelog.record.views import Batch
from tidelog.storage.reading import LogSlice

# Taken at a time, before others have their turn.
PIECE_BYTES: Final = 1 << 20


def take_batches(slices: Iterable[LogSlice], take: Callable[[Batch], None]) -> Iterator[int]:
    """Take all batches of a log; a pause after each piece of it, with its bytes.

    Raises:
        CorruptData: A batch is damaged; names file and position.
    """
    taken = 0
    for part in slices:
        for position, batch in part.batches():
            try:
                batch.ensure_valid()
                take(batch)
            except CorruptData as error:
                raise error.located(part.segment.log_path, position - batch.at) from error
            taken += len(batch.view)
            if taken >= PIECE_BYTES:
                yield taken
                taken = 0
