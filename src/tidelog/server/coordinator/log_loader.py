"""All batches of a log of the broker's own, piece by piece: plainly, or by kernels once they are.

A log is read in a thread. Plain Python takes some microseconds for each record and holds up the
loop meanwhile; so as soon as kernels are loaded, in the midst of a log too, they go on.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.errors import CorruptData
from tidelog.record.batch_walk import Batch
from tidelog.storage.segment.slices import LogSlice

if TYPE_CHECKING:
    from tidelog.server.coordinator.log_kernels import KernelPieces, RecordCollector
    from tidelog.server.partitions.services import Services


FindKernels: TypeAlias = "Callable[[], KernelPieces | None]"


# Taken at a time, before others have their turn.
PIECE_BYTES: Final = 1 << 20


class KernelsOf:
    """The kernels of a broker, for one log that is read: None until they are loaded."""

    def __init__(self, services: "Services") -> None:
        self._services = services
        self._made: KernelPieces | None = None

    def __call__(self) -> "KernelPieces | None":
        """What takes pieces by kernels; called in the thread that reads."""
        if self._made is None and self._services.partitions.has_kernels:
            from tidelog.record.columns.decode import SECRET_BYTES
            from tidelog.server.coordinator.log_kernels import KernelPieces

            self._made = KernelPieces(self._services.env.random.randbytes(SECRET_BYTES))
        return self._made


def load_batches(slices: Iterable[LogSlice], take: Callable[[Batch], None]) -> Iterator[int]:
    """Take all batches plainly, in order; as `load_log`."""
    for part in slices:
        begun = part.start_position
        for behind in _take_plainly(part, take):
            yield behind - begun
            begun = behind


def load_log(
    slices: Iterable[LogSlice],
    taker: "RecordCollector",
    find_kernels: FindKernels = lambda: None,
) -> Iterator[int]:
    """Take all batches of a log; a pause after each piece of it, with its bytes.

    Args:
        slices: The log's, in order.
        taker: Who gets them, in order.
        find_kernels: Asked after each piece that was taken plainly; None while there are none.

    Raises:
        CorruptData: A batch is damaged; names file and position.
        StorageFailure: The disk failed.
    """
    for part in slices:
        remaining, kernels = part, find_kernels()
        if kernels is None:
            for behind in _take_plainly(part, taker.add):
                yield behind - remaining.start_position
                remaining, kernels = replace(part, start_position=behind), find_kernels()
                if kernels is not None:
                    break
        if kernels is not None:
            yield from kernels.take(remaining, taker)


def _take_plainly(part: LogSlice, take: Callable[[Batch], None]) -> Iterator[int]:
    """Take a slice; a pause after each piece, with the position behind it."""
    behind = begun = part.start_position
    for position, batch in part.batches():
        try:
            batch.ensure_valid()
            take(batch)
        except CorruptData as error:
            raise error.located(part.segment.log_path, position - batch.at) from error
        behind = position + len(batch.view)
        if behind - begun >= PIECE_BYTES:
            yield behind
            begun = behind
